// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fake is a directory that behaves like the kernel's configfs: a new directory has attributes and
// groups at once, and cannot be removed while it contains added directories. Change number failAt
// fails; 0 is none.
type fake struct {
	root    string
	changes int
	failAt  int
	atFail  func() // called instead of failing
}

var errFake = errors.New("fails as the test wants")

func newFake(t *testing.T) (*Tree, *fake) {
	t.Helper()
	f := &fake{root: t.TempDir()}
	for _, dir := range []string{"nvmet/hosts", "nvmet/ports", "nvmet/subsystems", "nullb"} {
		if err := os.MkdirAll(filepath.Join(f.root, dir), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(f.root, "nvmet/discovery_nqn"), []byte(discoveryNQN+"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	return &Tree{f.root, f}, f
}

// step counts a change, and returns an error for the one that is to fail.
func (f *fake) step() error {
	f.changes++
	if f.changes != f.failAt {
		return nil
	}
	if f.atFail != nil {
		f.atFail()
		return nil
	}
	return errFake
}

// created are the attributes and groups that a new entry of a directory has.
var created = map[string]struct{ files, dirs []string }{
	"hosts": {[]string{"dhchap_key=", "dhchap_ctrl_key=", "dhchap_hash=hmac(sha256)", "dhchap_dhgroup=null"}, nil},
	"subsystems": {
		[]string{
			"attr_allow_any_host=0", "attr_serial=0123", "attr_model=Linux", "passthru/device_path=", "passthru/enable=0", "passthru/admin_timeout=60",
		},
		[]string{"namespaces", "allowed_hosts", "passthru"},
	},
	"namespaces": {[]string{"device_path=(null)", "device_uuid=0", "device_nguid=0", "enable=0", "ana_grpid=1", "buffered_io=0", "resv_enable=0"}, nil},
	"ports": {
		[]string{"addr_trtype=", "addr_adrfam=", "addr_traddr=", "addr_trsvcid=", "addr_treq=not specified", "param_inline_data_size=-1"},
		[]string{"subsystems", "referrals", "ana_groups", "ana_groups/1"},
	},
	"ana_groups": {[]string{"ana_state=inaccessible"}, nil},
	"referrals":  {[]string{"addr_trtype=", "addr_traddr=", "enable=0"}, nil},
	"nullb":      {[]string{"size=250", "memory_backed=0", "power=0"}, nil},
}

func (f *fake) mkdir(path string) error {
	if err := f.step(); err != nil {
		return err
	}
	if err := os.Mkdir(path, 0o755); err != nil {
		return err
	}
	kind := created[filepath.Base(filepath.Dir(path))]
	for _, dir := range kind.dirs {
		if err := os.Mkdir(filepath.Join(path, dir), 0o755); err != nil {
			return err
		}
	}
	for _, file := range kind.files {
		name, value, _ := strings.Cut(file, "=")
		if err := os.WriteFile(filepath.Join(path, name), []byte(value+"\n"), 0o644); err != nil {
			return err
		}
	}
	if filepath.Base(filepath.Dir(path)) == "ports" {
		return os.WriteFile(filepath.Join(path, "ana_groups/1/ana_state"), []byte("optimized\n"), 0o644)
	}
	return nil
}

func (f *fake) unlink(path string) error {
	if err := f.step(); err != nil {
		return err
	}
	return os.Remove(path)
}

func (f *fake) rmdir(path string) error {
	if !strings.Contains(path, "/nullb/") { // removed last, when there is no way back
		if err := f.step(); err != nil {
			return err
		}
	}
	kind := created[filepath.Base(filepath.Dir(path))]
	for _, dir := range kind.dirs {
		entries, err := os.ReadDir(filepath.Join(path, dir))
		if err != nil {
			return err
		}
		for _, e := range entries {
			if e.IsDir() && filepath.Join(dir, e.Name()) != "ana_groups/1" || e.Type()&os.ModeSymlink != 0 {
				return fmt.Errorf("%s has %s/%s: %w", path, dir, e.Name(), unix.ENOTEMPTY)
			}
		}
	}
	if f.linked(path) {
		return fmt.Errorf("%s is linked to: %w", path, unix.EBUSY)
	}
	return os.RemoveAll(path)
}

func (f *fake) linked(path string) bool {
	found := false
	_ = filepath.WalkDir(f.root, func(link string, _ os.DirEntry, _ error) error {
		target, err := os.Readlink(link)
		found = found || err == nil && target == path
		return nil
	})
	return found
}

func (f *fake) write(path, value string) error {
	if err := f.step(); err != nil {
		return err
	}
	if info, err := os.Stat(path); err != nil || !info.Mode().IsRegular() {
		return fmt.Errorf("no attribute %s: %w", path, unix.ENOENT)
	}
	return os.WriteFile(path, []byte(value+"\n"), 0o644)
}

// Like the kernel, symlink refuses an allowed host while any host is allowed.
func (f *fake) symlink(target, path string) error {
	if err := f.step(); err != nil {
		return err
	}
	subsystem := filepath.Dir(filepath.Dir(path))
	if all, err := attribute(subsystem, "attr_allow_any_host"); err == nil && all == "1" && strings.HasSuffix(filepath.Dir(path), "allowed_hosts") {
		return unix.EINVAL
	}
	return os.Symlink(target, path)
}

// tree lists everything with its content.
func (f *fake) tree(t *testing.T) []string {
	t.Helper()
	var all []string
	err := filepath.WalkDir(f.root, func(path string, entry os.DirEntry, err error) error {
		if err != nil {
			return err
		}
		line := strings.TrimPrefix(path, f.root)
		if entry.Type().IsRegular() {
			data, err := os.ReadFile(path)
			if err != nil {
				return err
			}
			line += "=" + string(data)
		}
		all = append(all, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func differences(before, after []string) (more, fewer []string) {
	in := func(list []string) func(string) bool { return func(s string) bool { return slices.Contains(list, s) } }
	return slices.DeleteFunc(slices.Clone(after), in(before)), slices.DeleteFunc(slices.Clone(before), in(after))
}

func newFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(path, make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func inline(n int) *int { return &n }

func add(t *testing.T, tree *Tree, s Serve) {
	t.Helper()
	if err := tree.Add(t.Context(), s); err != nil {
		t.Fatal(err)
	}
}

func TestAddListRemove(t *testing.T) {
	tree, f := newFake(t)
	empty := f.tree(t)
	file := newFile(t)
	at := netip.MustParseAddrPort("10.0.0.1:4420")
	add(t, tree, Serve{NQN: "nqn.a", Device: file, Transport: RDMA, Addr: at, Inline: inline(8192), AllowHosts: []string{"nqn.h1", "nqn.h2"}})
	add(t, tree, Serve{NQN: "nqn.b", Null: 64 * MiB, Transport: RDMA, Addr: at})
	add(t, tree, Serve{NQN: "nqn.b", Transport: TCP, Addr: netip.MustParseAddrPort("[fd00::1]:4421"), AllowHosts: []string{"nqn.h2"}})
	config, err := tree.Read()
	if err != nil {
		t.Fatal(err)
	}
	targets := config.Targets()
	if len(targets) != 2 || len(config.Ports) != 2 || len(config.Hosts) != 2 {
		t.Fatalf("%+v", config)
	}
	a, b := targets[0], targets[1]
	if a.AllowAnyHost || !slices.Equal(a.AllowedHosts, []string{"nqn.h1", "nqn.h2"}) || a.Serial != StableSerial("nqn.a") ||
		!slices.Equal(a.Addresses, []Address{{1, RDMA, "10.0.0.1", "4420", 8192}}) ||
		!slices.Equal(a.Disks, []Disk{{1, file, StableUUID("nqn.a", file), true}}) {
		t.Errorf("a: %+v", a)
	}
	if b.AllowAnyHost || !slices.Equal(b.AllowedHosts, []string{"nqn.h2"}) || b.Disks[0].Device != "/dev/nvmet_null0" ||
		!slices.Equal(b.Addresses, []Address{{1, RDMA, "10.0.0.1", "4420", 8192}, {2, TCP, "fd00::1", "4421", -1}}) {
		t.Errorf("b: %+v", b)
	}
	if size, err := attribute(tree.null("nvmet_null0"), "size"); err != nil || size != "64" {
		t.Errorf("null disk of %q MiB, %v, want 64", size, err)
	}
	for _, nqn := range []string{"nqn.a", "nqn.b"} {
		if err := tree.Remove(t.Context(), nqn); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.tree(t); !slices.Equal(got, empty) {
		t.Errorf("left behind: %q", got)
	}
	if err := tree.Remove(t.Context(), "nqn.a"); !errors.Is(err, ErrUnknown) {
		t.Errorf("removed twice: %v", err)
	}
}

// If any change of a call fails, the tree is restored.
func TestFailedCallIsUndone(t *testing.T) {
	file := newFile(t)
	at := netip.MustParseAddrPort("10.0.0.1:4420")
	saved, err := os.ReadFile("testdata/nvmetcli.json")
	if err != nil {
		t.Fatal(err)
	}
	config, _, err := Parse([]byte(strings.ReplaceAll(string(saved), "/dev/nvme0n1", file)))
	if err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func(*Tree) error{
		"add a file": func(tree *Tree) error {
			return tree.Add(t.Context(), Serve{NQN: "nqn.a", Device: file, Transport: TCP, Addr: at, Inline: inline(0), AllowHosts: []string{"nqn.h1"}})
		},
		"add a null disk": func(tree *Tree) error {
			return tree.Add(t.Context(), Serve{NQN: "nqn.a", Null: MiB, Transport: TCP, Addr: at})
		},
		"allow": func(tree *Tree) error {
			return tree.Add(t.Context(), Serve{NQN: "nqn.there", AllowHosts: []string{"nqn.h1", "nqn.h2"}, Transport: TCP, Addr: at})
		},
		"restore": func(tree *Tree) error {
			_, err := tree.Restore(t.Context(), config, false)
			return err
		},
		"restore, clear": func(tree *Tree) error {
			_, err := tree.Restore(t.Context(), config, true)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			for n := 1; ; n++ {
				tree, f := newFake(t)
				serveMuch(t, tree)
				before := f.tree(t)
				f.changes, f.failAt = 0, n
				err := call(tree)
				if err == nil {
					if n < 5 {
						t.Errorf("only %d changes", n-1)
					}
					return
				}
				if !errors.Is(err, errFake) && !strings.Contains(err.Error(), errFake.Error()) {
					t.Errorf("change %d: %v", n, err)
				}
				if strings.Contains(err.Error(), secret) {
					t.Errorf("change %d: the error has the key: %v", n, err)
				}
				if more, fewer := differences(before, f.tree(t)); len(more)+len(fewer) > 0 {
					t.Fatalf("change %d failed, and this is new: %q, this is gone: %q", n, more, fewer)
				}
			}
		})
	}
}

const secret = "DHHC-1:00:secret:"

// serveMuch serves three subsystems: two at one port, which has a group and a referral, with a host that
// has a key, and one that passes a controller through.
func serveMuch(t *testing.T, tree *Tree) {
	t.Helper()
	at := netip.MustParseAddrPort("10.0.0.1:4444")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(tree.fs.mkdir(tree.host("nqn.keyed")))
	must(tree.fs.write(tree.path("hosts", "nqn.keyed", "dhchap_key"), secret))
	must(tree.fs.write(tree.path("hosts", "nqn.keyed", "dhchap_dhgroup"), "ffdhe2048"))
	add(t, tree, Serve{NQN: "nqn.there", Null: MiB, Transport: RDMA, Addr: at, AllowHosts: []string{"nqn.keyed", "nqn.plain"}})
	add(t, tree, Serve{NQN: "nqn.second", Device: newFile(t), Transport: RDMA, Addr: at})
	must(tree.fs.write(tree.subsystem("nqn.second", "namespaces/1/buffered_io"), "1"))
	must(tree.fs.mkdir(tree.port(1, "ana_groups/2")))
	must(tree.fs.mkdir(tree.port(1, "referrals/other")))
	must(tree.fs.write(tree.port(1, "referrals/other/addr_traddr"), "10.0.0.9"))
	must(tree.fs.mkdir(tree.subsystem("nqn.through")))
	for name, value := range map[string]string{"device_path": "/dev/nvme7", "admin_timeout": "30", "enable": "1"} {
		must(tree.fs.write(tree.subsystem("nqn.through", "passthru", name), value))
	}
}

// If ctx ends at any change of restore --clear, the tree is restored.
func TestInterruptedRestoreIsUndone(t *testing.T) {
	for n := 1; ; n++ {
		tree, f := newFake(t)
		serveMuch(t, tree)
		before := f.tree(t)
		ctx, cancel := context.WithCancel(t.Context())
		f.changes, f.failAt, f.atFail = 0, n, cancel
		_, err := tree.Restore(ctx, Config{Subsystems: []Subsystem{{NQN: "nqn.new"}, {NQN: "nqn.newer"}}}, true)
		if err == nil {
			if ctx.Err() == nil && n < 10 {
				t.Errorf("only %d changes", n-1)
			}
			if ctx.Err() == nil {
				return
			}
			continue // it ended after the last change that can be refused
		}
		if !errors.Is(err, context.Canceled) {
			t.Errorf("change %d: %v", n, err)
		}
		if more, fewer := differences(before, f.tree(t)); len(more)+len(fewer) > 0 {
			t.Fatalf("interrupted at change %d, and this is new: %q, this is gone: %q", n, more, fewer)
		}
	}
}

// If a part cannot be put back, the others are.
func TestPutBackGoesOn(t *testing.T) {
	tree, f := newFake(t)
	serveMuch(t, tree)
	before, err := tree.Read()
	if err != nil {
		t.Fatal(err)
	}
	for failing := 1; failing < 40; failing += 4 {
		if err := tree.clear(t.Context()); err != nil {
			t.Fatal(err)
		}
		f.changes, f.failAt = 0, failing
		if err := tree.putBack(t.Context(), before); !errors.Is(err, errFake) && !strings.Contains(fmt.Sprint(err), errFake.Error()) {
			t.Fatalf("change %d: %v", failing, err)
		}
		if err := tree.putBack(t.Context(), before); err != nil { // nothing that is there is in the way
			t.Fatal(err)
		}
		if now, err := tree.Read(); err != nil || len(now.Subsystems) != 3 || len(now.Ports) != 1 || len(now.Hosts) != 2 {
			t.Errorf("change %d failed: %+v, %v", failing, now, err)
		}
	}
}

// A host with a key is not made anew without it.
func TestKeysStay(t *testing.T) {
	tree, _ := newFake(t)
	serveMuch(t, tree)
	key := func() string {
		value, err := attribute(tree.host("nqn.keyed"), "dhchap_key")
		if err != nil {
			return err.Error()
		}
		return value
	}
	if err := tree.Remove(t.Context(), "nqn.there"); err != nil {
		t.Fatal(err)
	}
	if key() != secret || exists(tree.host("nqn.plain")) {
		t.Errorf("after remove: key %q, or a host without key is left", key())
	}
	add(t, tree, Serve{NQN: "nqn.there", Null: MiB, Transport: RDMA, Addr: netip.MustParseAddrPort("10.0.0.1:4444"), AllowHosts: []string{"nqn.keyed"}})
	if key() != secret {
		t.Errorf("after add: key %q", key())
	}

	without := Config{Hosts: []Host{{NQN: "nqn.keyed"}}}
	if _, err := tree.Restore(t.Context(), without, true); err != nil || key() != secret {
		t.Errorf("restored a file without keys: %v, key %q", err, key())
	}
	other := Config{Hosts: []Host{{NQN: "nqn.keyed", DHChap: Attributes{"key": "DHHC-1:00:other:"}}}}
	if _, err := tree.Restore(t.Context(), other, false); !errors.Is(err, ErrExists) || key() != secret {
		t.Errorf("restored another key: %v, key %q", err, key())
	}
	if _, err := tree.Restore(t.Context(), other, true); err != nil || key() != "DHHC-1:00:other:" {
		t.Errorf("restored another key with clear: %v, key %q", err, key())
	}
	config, err := tree.Read()
	if err != nil {
		t.Fatal(err)
	}
	if err := tree.Clear(t.Context()); err != nil || exists(tree.host("nqn.keyed")) {
		t.Errorf("clear: %v", err)
	}
	if _, err := tree.Restore(t.Context(), config, false); err != nil || key() != "DHHC-1:00:other:" {
		t.Errorf("restored what was saved: %v, key %q", err, key())
	}
}

// No name of a save file leads out of the target's directory.
func TestMaliciousSaveFile(t *testing.T) {
	port := func(referral string) string {
		name, err := json.Marshal(referral)
		if err != nil {
			t.Fatal(err)
		}
		return fmt.Sprintf(`{"ports":[{"portid":1,"addr":{"trtype":"tcp"},"referrals":[{"name":%s,"addr":{"trtype":"tcp"},"enable":1}]}]}`, name)
	}
	for _, text := range []string{
		port("../../../made"), port(".."), port("."), port(""), port("a/b"), port("a\u0000"), port(strings.Repeat("x", 256)),
		`{"hosts":[{"nqn":"../../made"}]}`,
		`{"hosts":[{"nqn":"nqn.h"},{"nqn":"nqn.h"}]}`,
		`{"subsystems":[{"nqn":"nqn.a","allowed_hosts":["../../../made"]}]}`,
		`{"subsystems":[{"nqn":"nqn.a","namespaces":[{"nsid":1},{"nsid":1}]}]}`,
		`{"ports":[{"portid":1,"ana_groups":[{"grpid":-1}]}]}`,
		`{"ports":[{"portid":1,"referrals":[{"name":"a"},{"name":"a"}]}]}`,
		`{"ports":[{"portid":1,"subsystems":["../made"]}]}`,
	} {
		tree, f := newFake(t)
		before := f.tree(t)
		var config Config
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if _, err := tree.Restore(t.Context(), config, false); err == nil {
			t.Errorf("restored %s", text)
		}
		if more, _ := differences(before, f.tree(t)); len(more) > 0 || f.changes > 0 {
			t.Errorf("%s has made %q", text, more)
		}
	}
}

// A path that begins like the one of a disk in memory leads elsewhere: nothing there is removed, and it
// is checked like any other.
func TestPathLikeADiskInMemory(t *testing.T) {
	tree, f := newFake(t)
	victim := filepath.Join(f.root, "victim")
	if err := os.WriteFile(victim, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(f.root, "nullb/nvmet_null0"), 0o755); err != nil {
		t.Fatal(err)
	}
	path := "/dev/nvmet_null0/../../victim"
	n := Namespace{NSID: 1, Device: Attributes{"path": path}}
	if _, err := tree.Restore(t.Context(), Config{Subsystems: []Subsystem{{NQN: "nqn.a", Namespaces: []Namespace{n}}}}, false); err != nil {
		t.Fatal(err)
	}
	if err := tree.Remove(t.Context(), "nqn.a"); err != nil || !exists(victim) {
		t.Errorf("removed: %v", err)
	}
	n.Enable = true
	if _, err := tree.Restore(t.Context(), Config{Subsystems: []Subsystem{{NQN: "nqn.a", Namespaces: []Namespace{n}}}}, false); !errors.Is(err, unix.ENOENT) {
		t.Errorf("served %s: %v", path, err)
	}
}

func TestInterruptedCallIsUndone(t *testing.T) {
	tree, f := newFake(t)
	before := f.tree(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := tree.Add(ctx, Serve{NQN: "nqn.a", Null: MiB, Transport: TCP, Addr: netip.MustParseAddrPort("10.0.0.1:4420")})
	if !errors.Is(err, context.Canceled) || !slices.Equal(before, f.tree(t)) {
		t.Errorf("%v, %q", err, f.tree(t))
	}
}

func TestAddErrors(t *testing.T) {
	tree, _ := newFake(t)
	file, at := newFile(t), netip.MustParseAddrPort("10.0.0.1:4420")
	add(t, tree, Serve{NQN: "nqn.a", Device: file, Transport: RDMA, Addr: at})
	empty := filepath.Join(t.TempDir(), "empty")
	if err := os.WriteFile(empty, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		s    Serve
		kind error
		text string
	}{
		{Serve{NQN: "nqn.a", Null: MiB, Transport: RDMA, Addr: at}, ErrExists, "nqn.a"},
		{Serve{NQN: "nqn.a", Transport: RDMA, Addr: at}, ErrExists, "10.0.0.1:4420"},
		{Serve{NQN: "nqn.b", Transport: RDMA, Addr: at}, ErrUnknown, "nqn.b"},
		{Serve{NQN: "nqn.b", Device: file, Transport: RDMA, Addr: at}, unix.EBUSY, "nqn.a serves it"},
		{Serve{NQN: "nqn.b", Device: "/dev/nothing", Transport: RDMA, Addr: at}, unix.ENOENT, "no such device"},
		{Serve{NQN: "nqn.b", Device: "/dev/null", Transport: RDMA, Addr: at}, unix.EINVAL, "neither"},
		{Serve{NQN: "nqn.b", Device: empty, Transport: RDMA, Addr: at}, unix.EINVAL, "empty"},
		{Serve{NQN: "nqn.b", Null: MiB, Transport: RDMA, Addr: at, Inline: inline(1)}, unix.EBUSY, "inline size"},
		{Serve{NQN: "nqn.b", Null: 1000, Transport: RDMA, Addr: at}, unix.EINVAL, "1 MiB"},
	} {
		if err := tree.Add(t.Context(), tc.s); !errors.Is(err, tc.kind) || !strings.Contains(err.Error(), tc.text) {
			t.Errorf("%+v: %v, want %v with %q", tc.s, err, tc.kind, tc.text)
		}
	}
}

func TestStableNames(t *testing.T) {
	file := newFile(t)
	a := StableUUID("nqn.a", file)
	if len(a) != 36 || a[14] != '5' || a == StableUUID("nqn.b", file) || a == StableUUID("nqn.a", newFile(t)) || a != StableUUID("nqn.a", file) {
		t.Errorf("UUID %s", a)
	}
	if other := StableUUID("nqn.a", "/dev/null"); other != "" {
		t.Errorf("UUID of no disk: %s", other)
	}
	if s := StableSerial("nqn.a"); len(s) != 20 || s == StableSerial("nqn.b") {
		t.Errorf("serial number %s", s)
	}
}

// Another file under the same path is not the same disk: not for a new target, nor for a saved one.
func TestReplacedFile(t *testing.T) {
	file := newFile(t)
	serve := Serve{NQN: "nqn.a", Device: file, Transport: TCP, Addr: netip.MustParseAddrPort("10.0.0.1:4420")}
	uuid := func(tree *Tree) string {
		t.Helper()
		config, err := tree.Read()
		if err != nil {
			t.Fatal(err)
		}
		return config.Targets()[0].Disks[0].UUID
	}
	tree, _ := newFake(t)
	add(t, tree, serve)
	first := uuid(tree)
	config, err := tree.Read()
	if err != nil {
		t.Fatal(err)
	}
	config = config.Identified()
	if err := tree.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	add(t, tree, serve)
	if again := uuid(tree); again != first {
		t.Errorf("the same file has UUID %s, then %s", first, again)
	}
	if _, err := tree.Restore(t.Context(), config, true); err != nil {
		t.Errorf("restore: %v", err)
	}

	time.Sleep(10 * time.Millisecond) // the clock of the file system ticks
	if err := errors.Join(os.Remove(file), os.WriteFile(file, make([]byte, 4096), 0o600)); err != nil {
		t.Fatal(err)
	}
	if _, err := tree.Restore(t.Context(), config, true); !errors.Is(err, errOther) || !strings.Contains(err.Error(), "another disk or file than the one that was saved") {
		t.Errorf("restored over another file: %v", err)
	}
	if err := tree.Clear(t.Context()); err != nil {
		t.Fatal(err)
	}
	add(t, tree, serve)
	if again := uuid(tree); again == first {
		t.Errorf("another file has the same UUID, %s", again)
	}
}

func TestDiskIdentity(t *testing.T) {
	for name, tc := range map[string]struct {
		files map[string]string // in the disk's directory of sysfs; DIR/ is a partition
		udev  string
		part  bool
		want  string
	}{
		"NVMe":                       {files: map[string]string{"wwid": "eui.0025"}, want: "wwid eui.0025"},
		"SCSI":                       {files: map[string]string{"device/wwid": "naa.5000\n"}, want: "device/wwid naa.5000"},
		"virtio":                     {files: map[string]string{"serial": "disk-1\n"}, want: "serial disk-1"},
		"LVM":                        {files: map[string]string{"dm/uuid": "LVM-abc\n", "serial": ""}, want: "dm/uuid LVM-abc"},
		"nothing":                    {files: map[string]string{"serial": "\n"}},
		"partition":                  {files: map[string]string{"wwid": "eui.0025"}, part: true, want: "wwid eui.0025, sectors 64 from 2048"},
		"partition, kernel":          {files: map[string]string{"p1/uevent": "MAJOR=8\nPARTUUID=AB-01\n"}, part: true, want: "partition ab-01"},
		"partition, udev":            {files: map[string]string{"p1/uevent": "MAJOR=8\n"}, udev: "S:x\nE:ID_PART_ENTRY_UUID=ab-02\n", part: true, want: "partition ab-02"},
		"partition, nothing":         {part: true},
		"loop without file":          {files: map[string]string{"loop/backing_file": "/nonexistent\n"}},
		"disk of a partition's UUID": {files: map[string]string{"uevent": "MAJOR=8\n"}, udev: "E:ID_PART_ENTRY_UUID=ab-02\n"},
	} {
		root := t.TempDir()
		write := func(path, content string) {
			path = filepath.Join(root, path)
			if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600)); err != nil {
				t.Fatal(err)
			}
		}
		write("sys/devices/disk/size", "128\n")
		target := "disk"
		if tc.part {
			write("sys/devices/disk/p1/partition", "1\n")
			write("sys/devices/disk/p1/start", "2048\n")
			write("sys/devices/disk/p1/size", "64\n")
			target = "disk/p1"
		}
		for file, content := range tc.files {
			write("sys/devices/disk/"+file, content)
		}
		if tc.udev != "" {
			write("udev/b8:1", tc.udev)
		}
		dir := filepath.Join(root, "sys/dev/block")
		if err := errors.Join(os.MkdirAll(dir, 0o755), os.Symlink("../../devices/"+target, filepath.Join(dir, "8:1"))); err != nil {
			t.Fatal(err)
		}
		h := system{filepath.Join(root, "sys"), filepath.Join(root, "udev")}
		if got := h.diskIdentity(unix.Mkdev(8, 1)); got != tc.want {
			t.Errorf("%s: %q, want %q", name, got, tc.want)
		}
	}
}

func TestCheckNQN(t *testing.T) {
	for _, nqn := range []string{"", "..", "a b", "a/b", "a,b", "a\nb", strings.Repeat("x", 224), discoveryNQN} {
		if CheckNQN(nqn) == nil {
			t.Errorf("%q was accepted", nqn)
		}
	}
	for _, nqn := range []string{"testnqn", "nqn.2024-01.org.example:disk0", strings.Repeat("x", 223)} {
		if err := CheckNQN(nqn); err != nil {
			t.Errorf("%q: %v", nqn, err)
		}
	}
}
