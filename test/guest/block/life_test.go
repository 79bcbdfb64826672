// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"bytes"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// A target that hangs without any I/O in flight is noticed by its silence, and I/O goes on
// when it has woken up: the one connection is fenced, the other made.
func TestSilentTarget(t *testing.T) {
	bridge := guest.StartBridge(t, 9820, guest.StorePath(t), "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9820, ",heartbeat=5"))
	time.Sleep(6 * time.Second) // an idle session that is answered stays live
	if s := guest.Session(t, "vol0"); s["state"] != "live" || s["reconnects"] != "0" {
		t.Fatalf("state %s after %s reconnects while the target answered", s["state"], s["reconnects"])
	}
	guest.Signal(t, bridge.Cmd, unix.SIGSTOP)
	start := time.Now()
	guest.SessionBecomes(t, "reconnecting")
	if took := time.Since(start); took > guest.Slow(6*time.Second) { // one second for a slow machine
		late.Errorf(t, "the silence was noticed after %v, want at most 5 s", took)
	} else {
		t.Logf("noticed after %v", took.Round(time.Millisecond))
	}
	wrote := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
	guest.Signal(t, bridge.Cmd, unix.SIGCONT)
	wrote.Succeeds(30 * time.Second)
}

// With fast_fail I/O fails while the target is lost, and works again when it is back; however seldom signs
// of life are asked for.
func TestFastFail(t *testing.T) {
	for _, heartbeat := range []string{"1", "300"} {
		t.Run("heartbeat="+heartbeat, func(t *testing.T) { fastFail(t, heartbeat) })
	}
}

func fastFail(t *testing.T, heartbeat string) {
	t.Helper()
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9821, store, "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9821, ",fast_fail=2,heartbeat="+heartbeat))
	start := time.Now()
	bridge.Kill()
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("write: %v, want EIO", err)
	}
	if took := time.Since(start); took < time.Second {
		t.Errorf("the write failed after %v, want about 2 s", took)
	} else if took > guest.Slow(10*time.Second) {
		late.Errorf(t, "the write failed after %v, want about 2 s", took)
	}
	start = time.Now()
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); !errors.Is(err, unix.EIO) {
		t.Errorf("the next write: %v, want EIO", err)
	}
	if took := time.Since(start); took > guest.Slow(time.Second) {
		late.Errorf(t, "the next write failed after %v, want at once", took)
	}
	if s := guest.Session(t, "vol0"); s["state"] != "reconnecting" || s["errors"] != "2" {
		t.Errorf("state %s, %s errors, want reconnecting and 2", s["state"], s["errors"])
	}
	guest.StartBridge(t, 9821, store, "16MiB")
	guest.SessionBecomes(t, "live")
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); err != nil {
		t.Errorf("write after the target's return: %v", err)
	}
}

// writeOnes fills the first MiB of the device with a byte that is not zero, and returns it.
func writeOnes(t *testing.T, dev *os.File) []byte {
	t.Helper()
	ones := guest.Aligned(t, 1<<20)
	copy(ones, bytes.Repeat([]byte{1}, len(ones)))
	if _, err := dev.WriteAt(ones, 0); err != nil {
		t.Fatal(err)
	}
	return ones
}

func TestDiscardAndWriteZeroes(t *testing.T) {
	store := guest.StorePath(t)
	guest.StartBridge(t, 9822, store, "16MiB")
	path := guest.Attach(t, 9822, "")
	dev := guest.OpenDirect(t, path)
	ones := writeOnes(t, dev)
	guest.Run(t, "blkdiscard", "--zeroout", "--offset", "4096", "--length", "8192", path)
	guest.Run(t, "blkdiscard", "--offset", "65536", "--length", "65536", path)
	got, err := os.ReadFile(store)
	if err != nil {
		t.Fatal(err)
	}
	zeros := make([]byte, 65536)
	want := bytes.Clone(ones)
	copy(want[4096:], zeros[:8192])
	copy(want[65536:], zeros) // the bridge discards by making a hole
	if !bytes.Equal(got[:1<<20], want) {
		t.Error("the store does not hold what was written, zeroed and discarded")
	}
	if s := guest.Session(t, "vol0"); s["discards"] == "0" || s["zeroes"] == "0" || s["errors"] != "0" {
		t.Errorf("discards=%s zeroes=%s errors=%s", s["discards"], s["zeroes"], s["errors"])
	}
}

func TestResize(t *testing.T) {
	store := guest.StorePath(t)
	guest.StartBridge(t, 9823, store, "16MiB")
	dev := guest.Attach(t, 9823, ",heartbeat=2")
	if err := os.Truncate(store, 24<<20); err != nil {
		t.Fatal(err)
	}
	guest.Eventually(t, 10*time.Second, "the device has grown", func() bool {
		return strings.TrimSpace(guest.Run(t, "blockdev", "--getsize64", dev)) == "25165824"
	})
	data := guest.Aligned(t, 4096)
	if _, err := guest.OpenDirect(t, dev).WriteAt(data, 24<<20-4096); err != nil {
		t.Errorf("write at the new end: %v", err)
	}
	if s := guest.Session(t, "vol0"); s["size"] != "25165824" || s["reconnects"] != "0" {
		t.Errorf("size=%s reconnects=%s", s["size"], s["reconnects"])
	}
}
