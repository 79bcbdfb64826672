// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// A saved file has all that the tree has, and its mode keeps the keys secret.
func TestSavedFileKeepsEverything(t *testing.T) {
	tree, f := newFake(t)
	serveMuch(t, tree)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tree.fs.write(tree.path("hosts", "nqn.keyed", "dhchap_ctrl_key"), secret))
	must(tree.fs.write(tree.path("discovery_nqn"), "nqn.own-discovery"))
	must(tree.fs.write(tree.subsystem("nqn.second", "namespaces/1/resv_enable"), "1"))
	must(os.WriteFile(tree.subsystem("nqn.second", "namespaces/1/revalidate_size"), nil, 0o200)) // can only be written
	config, err := tree.Read()
	must(err)
	file := filepath.Join(t.TempDir(), "config.json")
	must(config.Save(file))
	if info, err := os.Stat(file); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v, %v", info.Mode(), err)
	}
	data, err := os.ReadFile(file)
	must(err)
	again, unknown, err := Parse(data)
	if err != nil || len(unknown) > 0 {
		t.Fatal(err, unknown)
	}
	other, g := newFake(t)
	must(other.fs.mkdir(other.null("nvmet_null0")))
	for name, value := range map[string]string{"size": "1", "memory_backed": "1", "power": "1"} {
		must(other.fs.write(filepath.Join(other.null("nvmet_null0"), name), value))
	}
	if skipped, err := other.Restore(t.Context(), again, false); err != nil || len(skipped) > 0 {
		t.Fatal(err, skipped)
	}
	must(os.WriteFile(other.subsystem("nqn.second", "namespaces/1/revalidate_size"), nil, 0o200))
	if more, fewer := differences(f.tree(t), g.tree(t)); len(more)+len(fewer) > 0 {
		t.Errorf("new: %q, gone: %q", more, fewer)
	}
}

// What this kernel cannot do is an error if the target would be less secure without it, else it is named.
func TestAttributesOfAnotherKernel(t *testing.T) {
	for text, want := range map[string]string{
		`{"hosts":[{"nqn":"nqn.h","dhchap":{"key":"DHHC-1:00:x:","new_option":"1"}}]}`: "hosts/nqn.h/dhchap_new_option",
		`{"ports":[{"portid":1,"addr":{"trtype":"tcp","tsas":"tls1.3"}}]}`:             "ports/1/addr_tsas",
		`{"subsystems":[{"nqn":"nqn.a","attr":{"allow_any_host":"1","psk":"x"}}]}`:     "subsystems/nqn.a/attr_psk",
		`{"attributes":{"tls_required":1}}`:                                            "nvmet/tls_required",
	} {
		tree, f := newFake(t)
		before := f.tree(t)
		config, _, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		_, err = tree.Restore(t.Context(), config, false)
		if !errors.Is(err, unix.EOPNOTSUPP) || !strings.Contains(err.Error(), want) || !slices.Equal(before, f.tree(t)) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	for text, want := range map[string][]string{
		`{"ports":[{"portid":1,"addr":{"trtype":"rdma","tsas":"connected"},"param":{"max_queue_size":256}}]}`:                              {"addr_tsas", "param_max_queue_size"},
		`{"subsystems":[{"nqn":"nqn.a","namespaces":[{"nsid":1,"attributes":{"new":1,"old":0,"../../../../discovery_nqn":"nqn.made"}}]}]}`: {"discovery_nqn", "new"},
		`{"ports":[{"portid":1,"addr":{"trtype":"tcp","tsas":"none"}}],"attributes":{"quiet":"0","loud":"1"}}`:                             {"loud", "addr_tsas"},
	} {
		tree, _ := newFake(t)
		config, _, err := Parse([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		skipped, err := tree.Restore(t.Context(), config, false)
		for i := range skipped {
			skipped[i] = filepath.Base(skipped[i])
		}
		if err != nil || !slices.Equal(skipped, want) {
			t.Errorf("%s: skipped %q, %v, want %q", text, skipped, err, want)
		}
		if nqn, err := attribute(tree.path(), "discovery_nqn"); nqn != discoveryNQN {
			t.Errorf("%s: discovery NQN %s, %v", text, nqn, err)
		}
	}
}

func TestSaveAndRestore(t *testing.T) {
	saved, err := os.ReadFile("testdata/nvmetcli.json")
	if err != nil {
		t.Fatal(err)
	}
	config, _, err := Parse([]byte(strings.ReplaceAll(string(saved), "/dev/nvme0n1", newFile(t))))
	if err != nil {
		t.Fatal(err)
	}
	tree, f := newFake(t)
	skipped, err := tree.Restore(t.Context(), config, false)
	if err != nil {
		t.Fatal(err)
	}
	if len(skipped) != 2 || !strings.HasSuffix(skipped[0], "attr_from_a_newer_kernel") || !strings.HasSuffix(skipped[1], "addr_tsas") {
		t.Errorf("skipped %q", skipped)
	}
	if _, err := tree.Restore(t.Context(), config, false); !errors.Is(err, ErrExists) {
		t.Errorf("restored over itself: %v", err)
	}
	first := f.tree(t)
	file := filepath.Join(t.TempDir(), "new/config.json")
	read, err := tree.Read()
	if err != nil {
		t.Fatal(err)
	}
	if err := read.Save(file); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	again, _, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Restore(t.Context(), again, true); err != nil {
		t.Fatal(err)
	}
	if second := f.tree(t); !slices.Equal(first, second) {
		t.Errorf("%q became %q", first, second)
	}
	if err := tree.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	if read, err = tree.Read(); err != nil || len(read.Hosts)+len(read.Ports)+len(read.Subsystems) != 0 {
		t.Errorf("after clear: %+v, %v", read, err)
	}
}

// Saving neither replaces a link or a device by a file, nor makes a file of a device that is missing.
func TestSaveReplacesOnlyFiles(t *testing.T) {
	dir := t.TempDir()
	file, link := filepath.Join(dir, "config.json"), filepath.Join(dir, "link")
	null := filepath.Join(dir, "null")
	for path, to := range map[string]string{link: "config.json", null: "/dev/null"} {
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for path, want := range map[string]string{link: "", null: "", dir: "must be a regular file", "/dev/nothing0": "no such device"} {
		if err := (Config{}).Save(path); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %q", path, err, want)
		}
	}
	if to, err := os.Readlink(link); err != nil || to != "config.json" {
		t.Errorf("the link is now %q, %v", to, err)
	}
	if data, err := os.ReadFile(file); err != nil || !strings.Contains(string(data), "subsystems") {
		t.Errorf("%q, %v", data, err)
	}
	if info, err := os.Stat("/dev/null"); err != nil || info.Mode()&os.ModeCharDevice == 0 {
		t.Fatalf("/dev/null is now %v, %v", info.Mode(), err)
	}
}
