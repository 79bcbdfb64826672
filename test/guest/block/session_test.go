// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// A target that hangs while no I/O is in flight is detected by keep-alive. When it continues, the client
// reconnects and I/O is done.
func TestHangingTarget(t *testing.T) {
	needs.Test(t, needs.Once)
	const heartbeat = 3 * time.Second
	served, path := attach(t, targets.Bridge, 16*mib, targets.Config{}, ",heartbeat=3")
	dev := guest.OpenDirect(t, path)
	time.Sleep(heartbeat + time.Second) // an idle session whose target answers stays live
	guest.NoReconnects(t, "vol0")
	guest.Signal(t, served.Bridge.Cmd, unix.SIGSTOP)
	start := time.Now()
	guest.SessionBecomes(t, "reconnecting")
	if took := time.Since(start); took > guest.Slow(heartbeat+time.Second) {
		late.Errorf(t, "the hang was detected after %v, want at most %v", took, heartbeat)
	} else {
		t.Logf("detected after %v", took.Round(time.Millisecond))
	}
	write := guest.StartWrite(t, dev, guest.Aligned(t, 65536))
	guest.Signal(t, served.Bridge.Cmd, unix.SIGCONT)
	write.Succeeds(30 * time.Second)
}

// With fast_fail= I/O fails while the target is away, whatever the interval of keep-alive, and works again when
// the target is back.
func TestFastFail(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		for _, heartbeat := range []string{"1", "300"} {
			t.Run("heartbeat="+heartbeat, func(t *testing.T) { fastFail(t, target, heartbeat) })
		}
	})
}

func fastFail(t *testing.T, target targets.Target, heartbeat string) {
	t.Helper()
	served, path := attach(t, target, 16*mib, targets.Config{}, ",fast_fail=2,heartbeat="+heartbeat)
	dev := guest.OpenDirect(t, path)
	start := time.Now()
	served.Stop()
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
	guest.WantFields(t, guest.Session(t, "vol0"), "state", "reconnecting", "errors", "2")
	served.Again(t)
	guest.SessionBecomes(t, "live")
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); err != nil {
		t.Errorf("write after the target's return: %v", err)
	}
}

// A fast_fail that is written to sysfs counts at once, for I/O that waits already, and until it is changed again.
// The disk also has the volume's name there.
func TestFastFailChanged(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{}, ",heartbeat=300")
		attribute := func(name string) string { return filepath.Join("/sys/block", filepath.Base(path), name) }
		if name, err := os.ReadFile(attribute("volume")); err != nil || string(name) != "vol0\n" {
			t.Errorf("volume: %q, %v, want vol0", name, err)
		}
		for _, bad := range []string{"86401", "-1", "x", ""} {
			if err := os.WriteFile(attribute("fast_fail"), []byte(bad+"\n"), 0); !errors.Is(err, unix.EINVAL) {
				t.Errorf("fast_fail=%q: %v, want EINVAL", bad, err)
			}
		}
		guest.WantFields(t, guest.Session(t, "vol0"), "fast_fail", "0")
		dev := guest.OpenDirect(t, path)
		served.Stop()
		guest.SessionBecomes(t, "reconnecting")
		write := guest.StartWrite(t, dev, guest.Aligned(t, 4096))
		write.Waits(2 * time.Second)
		if err := os.WriteFile(attribute("fast_fail"), []byte("1\n"), 0); err != nil {
			t.Fatal(err)
		}
		write.Fails(10 * time.Second)
		guest.WantFields(t, guest.Session(t, "vol0"), "state", "reconnecting", "fast_fail", "1")
		served = served.Again(t)
		guest.SessionBecomes(t, "live")
		if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); err != nil {
			t.Errorf("write after the target's return: %v", err)
		}
		if err := os.WriteFile(attribute("fast_fail"), []byte("0\n"), 0); err != nil {
			t.Fatal(err)
		}
		served.Stop()
		write = guest.StartWrite(t, dev, guest.Aligned(t, 4096))
		write.Waits(3 * time.Second)
		served.Again(t)
		write.Succeeds(30 * time.Second)
	})
}

// writeOnes fills the first MiB of the device with ones, and returns it.
func writeOnes(t *testing.T, dev *os.File) []byte {
	t.Helper()
	ones := guest.Aligned(t, mib)
	copy(ones, bytes.Repeat([]byte{1}, len(ones)))
	if _, err := dev.WriteAt(ones, 0); err != nil {
		t.Fatal(err)
	}
	return ones
}

func TestDiscardAndWriteZeroes(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, path := attach(t, target, 16*mib, targets.Config{}, "")
		ones := writeOnes(t, guest.OpenDirect(t, path))
		guest.Run(t, "blkdiscard", "--zeroout", "--offset", "4096", "--length", "8192", path)
		guest.Run(t, "blkdiscard", "--offset", "65536", "--length", "65536", path)
		want := bytes.Clone(ones)
		clear(want[4096:][:8192])
		clear(want[65536:][:65536]) // both targets discard by punching a hole into the file
		if !bytes.Equal(guest.Content(t, served.Store, mib), want) {
			t.Error("the store does not hold what was written, zeroed and discarded")
		}
		session := guest.Session(t, "vol0")
		if session["discards"] == "0" || session["zeroes"] == "0" {
			t.Errorf("discards=%s zeroes=%s, want more than 0", session["discards"], session["zeroes"])
		}
		guest.WantFields(t, session, "errors", "0")
	})
}

// waitForSize waits until the device has grown.
func waitForSize(t *testing.T, dev, size string) {
	t.Helper()
	guest.Eventually(t, 10*time.Second, "the device has "+size+" bytes", func() bool {
		return strings.TrimSpace(guest.Run(t, "blockdev", "--getsize64", dev)) == size
	})
}

func TestResize(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		store, resize := target.NewResizable(t, 16*mib)
		served := target.Serve(t, targets.Config{Store: store})
		dev := guest.Attach(t, served.Port, ",heartbeat=2")
		resize(24 * mib)
		waitForSize(t, dev, "25165824")
		data := guest.Aligned(t, 4096)
		copy(data, "at the new end")
		if _, err := guest.OpenDirect(t, dev).WriteAt(data, 24*mib-4096); err != nil {
			t.Errorf("write at the new end: %v", err)
		}
		if !bytes.Equal(guest.ContentAt(t, store, 24*mib-4096, 4096), data) {
			t.Error("the store does not have what was written at the new end")
		}
		guest.WantFields(t, guest.Session(t, "vol0"), "size", "25165824")
		guest.NoReconnects(t, "vol0")
		served.WantVolume(t, "size", "25165824", "errors", "0")
	})
}

// The session of a volume that has shrunk fails when its client learns of it, by a KEEP_ALIVE or when it reconnects.
// Before that, what is left can be used, and I/O beyond the end fails.
func TestShrunkVolume(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		for name, heartbeat := range map[string]string{"keep-alive": "1", "reconnect": "300"} {
			t.Run(name, func(t *testing.T) {
				store, resize := target.NewResizable(t, 16*mib)
				served := target.Serve(t, targets.Config{Store: store})
				dev := guest.OpenDirect(t, guest.Attach(t, served.Port, ",heartbeat="+heartbeat))
				logged := strings.Count(guest.Run(t, "dmesg"), shrunk)
				resize(8 * mib)
				if name == "reconnect" {
					data := guest.Aligned(t, 4096)
					if _, err := dev.ReadAt(data, 8*mib); !errors.Is(err, unix.EIO) {
						t.Errorf("read beyond the end: %v, want EIO", err)
					}
					if _, err := dev.WriteAt(data, 8*mib-4096); err != nil {
						t.Errorf("write before the end: %v", err)
					}
					guest.NoReconnects(t, "vol0")
					served.Stop()
					served.Again(t)
				}
				guest.SessionBecomes(t, "failed")
				if _, err := dev.ReadAt(guest.Aligned(t, 4096), 0); !errors.Is(err, unix.EIO) {
					t.Errorf("read of a failed session: %v, want EIO", err)
				}
				if strings.Count(guest.Run(t, "dmesg"), shrunk) == logged {
					t.Error("the log does not say that the volume has shrunk")
				}
				if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
					t.Error(err)
				}
			})
		}
	})
}

const shrunk = "the volume has shrunk from 16777216 to 8388608 bytes"
