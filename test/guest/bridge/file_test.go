// SPDX-License-Identifier: Apache-2.0

//go:build lab

package bridge

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// A file is created by a command of its own, and served only if it exists and is the one that was created.
func TestFileOfVolume(t *testing.T) {
	program, addr := guest.Binary(t, "krping-bridge"), fmt.Sprintf("%s:%d", guest.Addr(t), guest.NextPort())
	dir := t.TempDir()
	path := filepath.Join(dir, "vol0.img")
	for _, tc := range []struct{ args, want string }{
		{"--listen ADDR --store file:PATH --size 16MiB", "krping-bridge create --store file:" + path + " --size 16777216"},
		{"--listen ADDR --store file:PATH --read-only", "no such file"},
		{"create --store file:PATH", "--size SIZE is needed"},
		{"create --store file:PATH --size 1000", "multiple of the block size"},
		{"create --store mem: --size 1MiB", "must be file:PATH"},
		{"create --store file:PATH.d/vol --size 1MiB", "is its file system mounted?"},
		{"create --store file:PATH --size 4EiB --preallocate", "left"},
		{"adopt --store file:PATH", "no such file"},
	} {
		args := strings.NewReplacer("ADDR", addr, "PATH", path).Replace(tc.args)
		out, err := guest.TryRun(append([]string{program}, strings.Fields(args)...)...)
		if err == nil || !strings.Contains(out, tc.want) {
			t.Errorf("%s: %v, want %q in %s", args, err, tc.want, out)
		}
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 0 {
		t.Errorf("the refused commands left %v, %v", entries, err)
	}
	guest.CreateStore(t, path, "1MiB")
	first := guest.StartBridge(t, guest.NextPort(), path, "1MiB")
	want := fmt.Sprintf("in use by process %d (krping-bridge)", first.Cmd.Process.Pid)
	for _, more := range [][]string{{}, {"--read-only"}} {
		out, err := guest.TryRun(append([]string{program, "--listen", addr, "--store", "file:" + path}, more...)...)
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("a second bridge %v: %v, want %q in %s", more, err, want, out)
		}
	}
	out, err := guest.TryRun(program, "--listen", addr, "--store", "mem:", "--size", "1MiB", "--volume", "a=file:"+path+".x", "--volume", "b=file:"+path)
	if err == nil || !strings.Contains(out, path+".x: no such file") {
		t.Errorf("a volume whose file is missing: %v: %s", err, out)
	}
}

// A killed bridge's last write may still be in the kernel. Until it has returned, the store is locked, so that it cannot
// overwrite what the next bridge stores.
func TestStoreOfKilledBridgeStaysLocked(t *testing.T) {
	disk, dir := targets.Loop(t, 64*mib), t.TempDir()
	guest.Run(t, "mkfs.ext4", "-q", "-F", disk)
	guest.Run(t, "mount", disk, dir)
	t.Cleanup(func() { guest.Run(t, "umount", dir) })
	out, err := guest.TryRun(guest.Binary(t, "krping-bridge"), "--listen", fmt.Sprintf("%s:%d", guest.Addr(t), guest.NextPort()), "--store", "file:"+disk)
	if err == nil || !strings.Contains(out, disk+" is mounted at "+dir+" (ext4)") {
		t.Errorf("a mounted disk as store: %v: %s", err, out)
	}
	path, port := filepath.Join(dir, "vol0.img"), guest.NextPort()
	first := guest.StartBridge(t, port, path, "16MiB")
	c := fakeclient.Connect(t, port, fakeclient.Hello(1))
	thaw := freeze(t, dir)
	defer thaw()
	c.Post(fakeclient.Write(1, 0, bytes.Repeat([]byte{1}, 4096)))
	guest.Eventually(t, 10*time.Second, "a thread of the bridge waits in the kernel", func() bool { return threadsInD(t, first.Cmd.Process.Pid) > 0 })
	if err := first.Cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Second) // it ends as far as it can
	out, err = guest.TryRun(guest.Binary(t, "krping-bridge"), "--listen", first.Addr, "--store", "file:"+path)
	if want := fmt.Sprintf("in use by process %d", first.Cmd.Process.Pid); err == nil || !strings.Contains(out, want) {
		t.Errorf("while the write of the killed bridge is in the kernel: %v, want %q in %s", err, want, out)
	}
	thaw()
	_ = first.Cmd.Wait()
	guest.StartBridge(t, port, path, "16MiB")
	next := fakeclient.Connect(t, port, fakeclient.Hello(2))
	if a := next.Call(fakeclient.Read(1, 0, 4096))[0]; a.Status != wire.StatusOK {
		t.Errorf("the next bridge: %+v", a)
	}
}

// freeze stops all writes to a file system until the returned function is called.
func freeze(t *testing.T, dir string) (thaw func()) {
	t.Helper()
	const fifreeze, fithaw = 0xc0045877, 0xc0045878
	d, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.IoctlSetInt(int(d.Fd()), fifreeze, 0); err != nil {
		t.Fatal(err)
	}
	return func() {
		if d == nil {
			return
		}
		if err := unix.IoctlSetInt(int(d.Fd()), fithaw, 0); err != nil {
			t.Error(err)
		}
		_ = d.Close()
		d = nil
	}
}

// threadsInD returns how many threads of a process sleep without reacting to signals.
func threadsInD(t *testing.T, pid int) int {
	t.Helper()
	stats, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, stat := range stats {
		text, _ := os.ReadFile(stat)
		if _, rest, _ := strings.Cut(string(text), ") "); strings.HasPrefix(rest, "D") {
			n++
		}
	}
	return n
}
