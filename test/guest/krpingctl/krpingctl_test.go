// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package krpingctl tests krpingctl inside one VM, as a user runs it.
package krpingctl

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/disk/verify"
	"krping/agent/stats/status"
	"krping/proc"
	"krping/test/guest/internal/guest"
)

func TestPingClientAndServer(t *testing.T) {
	guest.NoThreads(t)
	addr := guest.Addr(t)
	server := exec.Command(guest.Binary(t, "krpingctl"), "server", "--addr", addr, "--port", "9900", "--validate")
	var out bytes.Buffer
	server.Stdout = &out
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, 20*time.Second, "the server listens", func() bool { return len(guest.Threads(t)) == 1 })
	time.Sleep(100 * time.Millisecond)
	if got := guest.MustKrpingctl(t, "client", "--addr", addr, "--port", "9900", "--count", "100", "--size", "5000", "--validate"); !strings.HasPrefix(got, "100 pings of 5000 bytes, all data valid\n") {
		t.Errorf("client printed %q", got)
	}
	if err := server.Wait(); err != nil || !strings.HasPrefix(out.String(), "100 pings answered, all data valid\n") {
		t.Errorf("server: %v, printed %q", err, out.String())
	}
}

func TestInterruptedServer(t *testing.T) {
	guest.NoThreads(t)
	server := exec.Command(guest.Binary(t, "krpingctl"), "server", "--addr", guest.Addr(t), "--port", "9901")
	if err := server.Start(); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, 20*time.Second, "the server listens", func() bool { return len(guest.Threads(t)) == 1 })
	guest.Signal(t, server, unix.SIGINT)
	_ = server.Wait()
	if code := server.ProcessState.ExitCode(); code != 130 {
		t.Errorf("exit code %d, want 130", code)
	}
	if threads := guest.Threads(t); len(threads) != 0 {
		t.Errorf("threads left: %q", threads)
	}
}

func TestErrorsAndExitCodes(t *testing.T) {
	addr := guest.Addr(t)
	for _, tc := range []struct {
		args string
		code int
		want string
	}{
		{"client --addr " + addr + " --port 9", 5, "listening at that address"},
		{"client --addr " + addr + " --port 9 --block vol0", 5, "invalid service ID"},
		{"client --addr " + addr + " --cuont 5", 2, "did you mean --count"},
		{"clinet", 2, "client"},
		{"client --addr 1.2.3", 2, "must be an IP address or a host name"},
		{"client", 2, "--addr is needed"},
		{"client --addr " + addr + " --block a//b", 2, "letters, digits"},
		{"server --addr 1.2.3.4", 4, "no RDMA device serves"},
		{"stop nosuch", 1, "krpingctl stat"},
		{"stop", 2, "arg"},
		{"write /dev/null --size 1MiB", 2, "not a krping device"},
		{"write /nosuch/file --size 1MiB", 1, "no such file"},
		{"write /tmp/x", 2, "--size or --count is needed"},
		{"write /tmp/x --size 1000", 2, "multiples of the device's block size"},
		{"write /tmp/x --size 5parsecs", 2, "64k"},
		{"write /tmp/x --size 1MiB --pattern noise", 2, "random"},
		{"verify /tmp/nosuch", 1, "no such file"},
		{"trace /dev/null", 1, "not a block device"},
		{"trace /dev/nosuch", 1, "no such file"},
		{"stat --watch=1ms", 2, "100ms"},
		{"link add rxe9 --netdev nosuch0", 1, "nosuch0"},
		{"link add rxe9", 2, "--netdev is needed"},
		{"link del nosuch", 1, "nosuch"},
	} {
		r := guest.Krpingctl(t, strings.Fields(tc.args)...)
		if r.Code != tc.code || !strings.Contains(r.Stderr, tc.want) || r.Stdout != "" {
			t.Errorf("%s: exit code %d, want %d, and stderr with %q; stdout %q, stderr %s", tc.args, r.Code, tc.code, tc.want, r.Stdout, r.Stderr)
		}
	}
}

func TestModuleNotLoaded(t *testing.T) {
	guest.Run(t, "rmmod", "rdma_krping")
	defer guest.Run(t, "insmod", guest.Module(t))
	for _, args := range [][]string{{"client", "--addr", "192.168.77.1"}, {"stop", "vol0"}} {
		if r := guest.Krpingctl(t, args...); r.Code != 4 || !strings.Contains(r.Stderr, "modprobe") {
			t.Errorf("%v: exit code %d, stderr %s", args, r.Code, r.Stderr)
		}
	}
	for _, args := range [][]string{{"stat"}, {"stat", "--json"}} {
		if r := guest.Krpingctl(t, args...); r.Code != 4 || !strings.Contains(r.Stdout, "not loaded") || !strings.Contains(r.Stdout, "rxe0") {
			t.Errorf("%v: exit code %d, does not show the RDMA device or the missing module:\n%s", args, r.Code, r.Stdout)
		}
	}
}

func TestNotRoot(t *testing.T) {
	cmd := exec.Command("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", guest.Binary(t, "krpingctl"), "client", "--addr", guest.Addr(t))
	out, err := cmd.CombinedOutput()
	if err == nil || !strings.Contains(string(out), "needs root") {
		t.Errorf("%v: %s", err, out)
	}
}

func TestAddAndDeleteLink(t *testing.T) {
	guest.MustKrpingctl(t, "link", "add", "rxe7", "--netdev", "lo")
	if out := guest.MustKrpingctl(t, "link", "list"); !strings.Contains(out, "rxe7") || !strings.Contains(out, "rxe0") || !strings.Contains(out, "ACTIVE") {
		t.Errorf("link list:\n%s", out)
	}
	guest.MustKrpingctl(t, "link", "del", "rxe7")
	if out := guest.MustKrpingctl(t, "link", "list"); strings.Contains(out, "rxe7") {
		t.Errorf("link list after del:\n%s", out)
	}
}

func TestDmesgJSON(t *testing.T) {
	_ = guest.Command("client,addr=192.168.77.1,frobnicate", time.Minute)
	out := guest.MustKrpingctl(t, "dmesg", "--json")
	var last proc.Message
	for line := range strings.Lines(out) {
		if err := json.Unmarshal([]byte(line), &last); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
	}
	if last.Subject != "control" || last.PID == 0 || last.Text != "unknown option 'frobnicate'" || last.Level != 3 {
		t.Errorf("last message %+v", last)
	}
}

func attach(t *testing.T, port int) (dev string, bridge *guest.Bridge) {
	t.Helper()
	bridge = guest.StartBridge(t, port, guest.StorePath(t), "64MiB")
	var attached struct {
		Version int
		Device  string
		Session proc.Session
	}
	out := guest.MustKrpingctl(t, "client", "--addr", guest.Addr(t)+":"+fmt.Sprint(port), "--block", "vol0", "--json")
	if err := json.Unmarshal([]byte(out), &attached); err != nil || attached.Version != 1 || attached.Session.Name != "vol0" || attached.Device != attached.Session.Device() {
		t.Fatalf("attached: %v, %s", err, out)
	}
	dev = attached.Device
	t.Cleanup(func() { guest.MustKrpingctl(t, "stop", "--all", "--force") })
	return dev, bridge
}

func TestWriteAndVerify(t *testing.T) {
	dev, bridge := attach(t, 9902)
	for i, pattern := range []string{"random", "zero", "ones", "counter", "text"} {
		offset := fmt.Sprintf("%dMiB", 8*i)
		data := []string{"--pattern", pattern, "--seed", "7", "--offset", offset, "--size", "8MiB"}
		guest.MustKrpingctl(t, append([]string{"write", dev, "--bs", "256KiB", "--direct", "--fsync"}, data...)...)
		if out := guest.MustKrpingctl(t, append([]string{"verify", dev}, data...)...); !strings.Contains(out, "device, target and what was written agree") {
			t.Errorf("verify %s: %s", pattern, out)
		}
	}
	if out := guest.MustKrpingctl(t, "verify", dev); !strings.Contains(out, "verified 64 MiB: device and target agree") {
		t.Errorf("verify of the whole device: %s", out)
	}

	// Flip a byte in the store.
	const at = 5<<20 + 12345
	store, err := os.OpenFile(bridge.Store, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	b := make([]byte, 1)
	if _, err := store.ReadAt(b, at); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 0x10
	if _, err := store.WriteAt(b, at); err != nil {
		t.Fatal(err)
	}
	r := guest.Krpingctl(t, "verify", dev, "--pattern", "random", "--seed", "7", "--size", "8MiB")
	if want := fmt.Sprintf("512 bytes at offset %d:", at/512*512); r.Code != 3 || !strings.Contains(r.Stderr, want) || strings.Count(r.Stderr, "sha256") != 1 {
		t.Errorf("flipped byte at %d: exit code %d, want 3 and %q in %s", at, r.Code, want, r.Stderr)
	}
}

func TestVerifyJSON(t *testing.T) {
	dev, _ := attach(t, 9903)
	guest.MustKrpingctl(t, "write", dev, "--size", "4MiB", "--direct")
	var got verify.Result
	if err := json.Unmarshal([]byte(guest.MustKrpingctl(t, "verify", dev, "--size", "4MiB", "--pattern", "random", "--json")), &got); err != nil {
		t.Fatal(err)
	}
	if got.Bytes != 4<<20 || !got.Target || !got.Known || len(got.SHA256) != 64 {
		t.Errorf("%+v", got)
	}
}

func TestVerifyFileWithoutTarget(t *testing.T) {
	file := filepath.Join(t.TempDir(), "data")
	guest.MustKrpingctl(t, "write", file, "--size", "1MiB", "--count", "0")
	r := guest.Krpingctl(t, "verify", file, "--size", "1MiB")
	if r.Code != 1 || !strings.Contains(r.Stderr, "nothing to compare with") {
		t.Errorf("exit code %d: %s", r.Code, r.Stderr)
	}
}

func TestStatCounters(t *testing.T) {
	dev, _ := attach(t, 9904)
	guest.MustKrpingctl(t, "write", dev, "--size", "2MiB", "--direct")
	var s status.Status
	if err := json.Unmarshal([]byte(guest.MustKrpingctl(t, "stat", "--json")), &s); err != nil {
		t.Fatal(err)
	}
	if len(s.Problems) > 0 {
		t.Errorf("problems: %q", s.Problems)
	}
	if len(s.Sessions) != 1 || s.Sessions[0].WriteBytes != 2<<20 || s.Sessions[0].Device() != dev {
		t.Errorf("sessions: %+v", s.Sessions)
	}
	if len(s.Disks) != 1 || s.Disks[0].WriteSectors != 4096 {
		t.Errorf("disks: %+v", s.Disks)
	}
	if len(s.Devices) != 1 || s.Devices[0].Name != "rxe0" || len(s.Devices[0].Ports) != 1 || s.Devices[0].Ports[0].Counters["sent_pkts"] == 0 {
		t.Errorf("RDMA devices: %+v", s.Devices)
	}
	if out := guest.MustKrpingctl(t, "stat"); !strings.Contains(out, "vol0") || !strings.Contains(out, "sent_pkts=") {
		t.Errorf("stat:\n%s", out)
	}
}
