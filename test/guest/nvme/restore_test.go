// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvme

import (
	_ "embed"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krping/agent/nvme/nvmet"
	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// saved is a file that nvmetcli has written.
//
//go:embed testdata/nvmetcli.json
var saved []byte

func write(t *testing.T, data []byte) string {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config.json")
	if err := os.WriteFile(file, data, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

// A restored nvmetcli file, saved again, has the same contents.
func TestRestoreNvmetcliFile(t *testing.T) {
	needs.Test(t, needs.Once)
	quietly(t)
	newDisk(t)
	t.Cleanup(func() { nvme(t, "target", "remove", "--all") })
	file := write(t, saved)
	ran := guest.Krpingctl(t, "nvme", "target", "restore", file)
	if ran.Code != 0 || ran.Stdout != "restored 2 subsystems, 2 ports, 1 host: "+file+"\n" {
		t.Fatalf("exit code %d, %s%s", ran.Code, ran.Stdout, ran.Stderr)
	}
	if lost := strings.Count(ran.Stderr, "skipped"); lost != 1 || !strings.Contains(ran.Stderr, "attr_attribute_of_another_kernel") {
		t.Errorf("skipped %d attributes\n%s", lost, ran.Stderr)
	}
	var want, got any
	if err := json.Unmarshal(saved, &want); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal([]byte(nvme(t, "target", "save", "-")), &got); err != nil {
		t.Fatal(err)
	}
	has(t, "", got, want)

	fails(t, 1, []string{"subsystem nqn.2024-01.org.example:disk0", "exists already", "--clear"}, "target", "restore", file)
	nvme(t, "target", "restore", "--clear", file)
	c, dev := connect(t, "--nqn", nqn, "--trsvcid", "4460", "--hostnqn", "nqn.2024-01.org.example:host1")
	if d := c.Namespaces[0]; d.NSID != 5 || d.UUID != "b2710bda-8c47-4348-87f1-b71c8c2658bb" || c.Serial != "0123456789abcdef" || c.Model != "Example disk" {
		t.Errorf("connected: %+v", c)
	}
	guest.Fio(t, dev, "--rw=write", "--bs=64k", "--size=1M")
	nvme(t, "disconnect", "--all")
	nvme(t, "target", "remove", "--all")
	clean(t)
}

// has checks that got contains want, except for the attribute that no kernel has and for nvmetcli's second name for
// ana_grpid.
func has(t *testing.T, where string, got, want any) {
	t.Helper()
	switch want := want.(type) {
	case map[string]any:
		there, _ := got.(map[string]any)
		for name, value := range want {
			if name != "attribute_of_another_kernel" && (name != "ana" || !strings.Contains(where, "namespaces")) {
				has(t, where+"."+name, there[name], value)
			}
		}
	case []any:
		there, _ := got.([]any)
		if len(there) != len(want) {
			t.Errorf("%s: %v, want %v", where, got, want)
			return
		}
		for i := range want {
			has(t, where, there[i], want[i])
		}
	default:
		if got != want {
			t.Errorf("%s: %v, want %v", where, got, want)
		}
	}
}

// A failed restore does not change what is served, not even with --clear.
func TestFailedRestoreChangesNothing(t *testing.T) {
	needs.Test(t, needs.Once)
	serve(t, "--nqn", "nqn.2024-01.org.example:there", "--null", "16MiB")
	before := targets(t)
	file := write(t, saved) // its disk does not exist
	for _, args := range [][]string{{"target", "restore", file}, {"target", "restore", "--clear", file}} {
		fails(t, 1, []string{"/dev/nvmetest", "no such device"}, args...)
	}
	after := targets(t)
	if len(after) != 1 || after[0].NQN != before[0].NQN || after[0].Disks[0] != before[0].Disks[0] {
		t.Errorf("served %+v before, %+v after", before, after)
	}
	if ran := guest.Krpingctl(t, "nvme", "target", "restore", write(t, []byte(`{"ports":[{"portid":1,"subsystems":["x"]}]}`))); ran.Code != 2 || !strings.Contains(ran.Stderr, "not among the subsystems") {
		t.Errorf("invalid file: exit code %d\n%s", ran.Code, ran.Stderr)
	}
	nvme(t, "target", "remove", "--all")
	clean(t)
}

// A target that is set up again serves the same file under the same UUID, and another file under the same path
// under another one, or, as a saved one, not at all.
func TestReplacedFileHasAnotherUUID(t *testing.T) {
	needs.Test(t, needs.Once)
	path := filepath.Join(t.TempDir(), "disk.img")
	create := func() {
		t.Helper()
		if err := os.WriteFile(path, make([]byte, 1<<20), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	again := func() string {
		t.Helper()
		uuid := serve(t, "--nqn", nqn, "--device", path).Disks[0].UUID
		nvme(t, "target", "remove", nqn)
		return uuid
	}
	create()
	first := again()
	if second := again(); second != first || nvmet.Identity(path) == "" {
		t.Errorf("UUID %s, then %s; %q", first, second, nvmet.Identity(path))
	}
	serve(t, "--nqn", nqn, "--device", path)
	file := filepath.Join(t.TempDir(), "config.json")
	nvme(t, "target", "save", file)
	nvme(t, "target", "restore", "--clear", file)
	nvme(t, "target", "remove", "--all")

	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	create()
	fails(t, 1, []string{path, "another disk or file than the one that was saved"}, "target", "restore", file)
	if other := again(); other == first {
		t.Errorf("another file has the same UUID, %s", other)
	}
	clean(t)
}

// The key of a host is not lost when what it may use is removed, nor by restore --clear.
func TestHostKeyStays(t *testing.T) {
	needs.Test(t, needs.Once)
	const host = "nqn.2024-01.org.example:keyed"
	const key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	serve(t, "--nqn", nqn, "--null", "16MiB", "--allow-host", host)
	file := "/sys/kernel/config/nvmet/hosts/" + host + "/dhchap_key"
	if _, err := os.Stat(file); err != nil {
		nvme(t, "target", "remove", "--all")
		clean(t)
		return // 6.1 cannot authenticate hosts
	}
	if err := os.WriteFile(file, []byte(key), 0); err != nil {
		t.Fatal(err)
	}
	keeps := func(after string) {
		t.Helper()
		if is, err := os.ReadFile(file); strings.TrimSpace(string(is)) != key {
			t.Errorf("%s: key %q, %v", after, is, err)
		}
	}
	without := write(t, []byte(`{"hosts":[{"nqn":"`+host+`"}]}`))
	nvme(t, "target", "remove", nqn)
	keeps("remove")
	nvme(t, "target", "restore", "--clear", without)
	keeps("restore --clear")
	if ran := guest.Krpingctl(t, "nvme", "target", "remove", "--all"); ran.Code != 0 || !strings.Contains(ran.Stderr, "removed with their DH-HMAC-CHAP keys: "+host) {
		t.Errorf("remove --all: exit code %d\n%s", ran.Code, ran.Stderr)
	}
	clean(t)
}
