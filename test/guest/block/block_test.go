// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package block tests /dev/krpingN inside one VM, against the module's target and krping-bridge over
// the VM's RDMA device.
package block

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/agent/disk/verify"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

const mib = 1 << 20

// attach serves a new volume and returns its device.
func attach(t *testing.T, target targets.Target, size int64, c targets.Config, options string) (*targets.Served, string) {
	t.Helper()
	s := target.ServeNew(t, size, c)
	return s, guest.Attach(t, s.Port, options)
}

// krpingctl runs a command that must succeed.
func krpingctl(t *testing.T, args ...string) { t.Helper(); guest.MustKrpingctl(t, args...) }

// Two jobs of fio write and verify requests of mixed sizes; then device and store hold the same data.
func TestFioVerify(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		for i, tc := range []struct {
			name    string
			config  targets.Config
			options string
		}{
			{"two queues", targets.Config{}, ",queues=2"},
			{"depth 16", targets.Config{}, ",queues=2,depth=16"},
			{"write-back with large blocks", targets.Config{BlockSize: 4096, Writeback: true}, ""},
		} {
			if testing.Short() && (i == 1) != (target.Name == targets.Bridge.Name) {
				continue
			}
			t.Run(tc.name, func(t *testing.T) {
				tc.config.Store = target.NewStore(t, 16*mib)
				fioVerify(t, target, tc.config, tc.options)
			})
		}
	})
}

// The module also serves memory.
func TestFioVerifyMemory(t *testing.T) {
	guest.CheckResources(t)
	fioVerify(t, targets.Module, targets.Config{Store: "ram:16M", BlockSize: 4096}, ",queues=2,depth=16")
}

func fioVerify(t *testing.T, target targets.Target, c targets.Config, options string) {
	t.Helper()
	served := target.Serve(t, c)
	dev := guest.Attach(t, served.Port, options)
	block := max(c.BlockSize, 512)
	guest.Fio(t, dev, "--rw=randrw", fmt.Sprintf("--bsrange=%d-1M", block), fmt.Sprintf("--blockalign=%d", block), "--iodepth=32", "--numjobs=2",
		"--size=8M", "--offset_increment=8M", "--io_size=3M", "--group_reporting")
	krpingctl(t, "verify", dev)
	if filepath.IsAbs(c.Store) {
		guest.WantSame(t, dev, c.Store)
	}
	session := guest.Session(t, "vol0")
	guest.WantFields(t, session, "errors", "0", "crc_errors", "0", "inflight", "0")
	served.WantVolume(t, "errors", "0", "crc_errors", "0", "inflight", "0", "violations", "0",
		"block_size", strconv.Itoa(block), "size", strconv.Itoa(16*mib), "state", "live")
	// Not zero in rare runs: kmod/DESIGN.md on Soft-RoCE's REG_MR.
	t.Logf("reconnects=%s retries=%s", session["reconnects"], session["retries"])
}

// Data with NUL bytes, at odd offsets in memory, in many segments: earlier modules lost such data.
func TestOddData(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, dev := attach(t, target, 6*mib, targets.Config{}, "")
		guest.WriteOddData(t, guest.OpenDirect(t, dev), 6*mib, nil)
		guest.WantSame(t, dev, served.Store)
	})
}

func TestFileSystem(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served, dev := attach(t, target, 16*mib, targets.Config{}, "")
		guest.Run(t, "mkfs.ext4", "-q", "-F", dev)
		mount := t.TempDir()
		guest.Run(t, "mount", dev, mount)
		guest.Run(t, "cp", "-r", "/usr/include/rdma", mount)
		guest.Run(t, "diff", "-r", "/usr/include/rdma", mount+"/rdma")
		if err := guest.Command("stop,block=vol0", guest.Limit); !errors.Is(err, unix.EBUSY) {
			t.Errorf("stop while mounted: %v, want EBUSY", err)
		}
		guest.Run(t, "umount", mount)
		guest.Run(t, "fsck.ext4", "-fn", dev)
		guest.WantSame(t, dev, served.Store)
		if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
			t.Errorf("stop: %v", err)
		}
		guest.Run(t, "fsck.ext4", "-fn", served.Store)
	})
}

// FLUSH is sent to a write-back volume only.
func TestFlush(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		for _, writeback := range []bool{false, true} {
			t.Run(fmt.Sprintf("writeback=%t", writeback), func(t *testing.T) {
				want := "0"
				if writeback {
					want = "1"
				}
				served, path := attach(t, target, 16*mib, targets.Config{Writeback: writeback}, "")
				guest.WriteAndSync(t, guest.OpenDirect(t, path))
				session := guest.Session(t, "vol0")
				guest.WantFields(t, session, "writeback", want)
				if flushed := session["flushes"] != "0"; flushed != writeback {
					t.Errorf("flushes=%s writeback=%t", session["flushes"], writeback)
				}
				served.WantVolume(t, "writeback", want, "flushes", want)
			})
		}
	})
}

// A digest reveals the data, so it needs a descriptor that can read.
func TestDigestNeedsReadAccess(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		_, dev := attach(t, target, 16*mib, targets.Config{}, "")
		for flags, want := range map[int]error{os.O_RDONLY: nil, os.O_RDWR: nil, os.O_WRONLY: unix.EBADF} {
			f, err := os.OpenFile(dev, flags, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := verify.NewTarget(f); !errors.Is(err, want) {
				t.Errorf("opened with flags %#x: %v, want %v", flags, err, want)
			}
			_ = f.Close()
		}
	})
}

func TestReadOnlyAndBlockSize(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		store := target.NewStore(t, 4*mib)
		guest.Run(t, "dd", "if=/dev/urandom", "of="+store, "bs=1M", "count=4", "conv=notrunc,fsync")
		served := target.Serve(t, targets.Config{Store: store, ReadOnly: true, BlockSize: 4096})
		dev := guest.Attach(t, served.Port, "")
		if got := strings.TrimSpace(guest.Run(t, "blockdev", "--getss", "--getro", dev)); got != "4096\n1" {
			t.Errorf("block size and read-only: %q", got)
		}
		guest.WantSame(t, dev, store)
		if err := os.WriteFile(dev, []byte("x"), 0); !errors.Is(err, unix.EPERM) {
			t.Errorf("write: %v, want EPERM", err)
		}
	})
}

func TestRefusedCommands(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served := target.ServeNew(t, 16*mib, targets.Config{})
		at := fmt.Sprintf("client,addr=%s,port=%d", guest.Addr(t), served.Port)
		if err := guest.Command(at+",block=nosuch", guest.Limit); !errors.Is(err, unix.ENOENT) {
			t.Errorf("unknown volume: %v, want ENOENT", err)
		}
		guest.Attach(t, served.Port, "")
		if err := guest.Command(at+",block=vol0", guest.Limit); !errors.Is(err, unix.EEXIST) {
			t.Errorf("second session of the name: %v, want EEXIST", err)
		}
		if err := guest.Command(at, guest.Limit); !errors.Is(err, unix.ECONNREFUSED) {
			t.Errorf("ping of a block target: %v, want ECONNREFUSED", err)
		}
		if out, err := guest.TryRun("rmmod", "rdma_krping"); err == nil {
			t.Errorf("rmmod with a session open succeeded: %s", out)
		}
	})
}

// serveThree serves three volumes and returns their ports: one bridge has them on one port, in the module each has
// its own.
func serveThree(t *testing.T, target targets.Target, names [3]string) (ports [3]int) {
	t.Helper()
	if target.Name == targets.Bridge.Name {
		port := guest.NextPort()
		dir := t.TempDir()
		guest.CreateStore(t, dir+"/2.img", "4MiB")
		guest.StartBridge(t, port, filepath.Join(dir, names[0]+".img"), "16MiB", "--name", names[0],
			"--volume", names[1]+"=mem:,size=8MiB", "--volume", names[2]+"=file:"+dir+"/2.img,size=4MiB,block-size=4096")
		return [3]int{port, port, port}
	}
	for i, name := range names {
		ports[i] = guest.NextPort()
		guest.Serve(t, name, ports[i], "backing=ram:8M")
	}
	return ports
}

func TestSeveralVolumes(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, target targets.Target) {
		names := [3]string{"vol0", "a", "b"}
		ports := serveThree(t, target, names)
		for i, name := range names {
			if err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=%s", guest.Addr(t), ports[i], name), guest.Limit); err != nil {
				t.Fatalf("attach %s: %v", name, err)
			}
			t.Cleanup(func() {
				if err := guest.Command("stop,block="+name, guest.Limit); err != nil {
					t.Errorf("stop %s: %v", name, err)
				}
			})
			krpingctl(t, "write", "/dev/"+guest.Session(t, name)["dev"], "--seed", strconv.Itoa(i), "--size", "1MiB", "--direct")
		}
		for i, name := range names {
			krpingctl(t, "verify", "/dev/"+guest.Session(t, name)["dev"], "--pattern", "random", "--seed", strconv.Itoa(i), "--size", "1MiB")
		}
	})
}

func TestAttachAndStopRepeatedly(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		served := target.ServeNew(t, 16*mib, targets.Config{})
		before := guest.Resources(t)
		for range 15 {
			if err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=vol0,depth=8", guest.Addr(t), served.Port), guest.Limit); err != nil {
				t.Fatal(err)
			}
			if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
				t.Fatal(err)
			}
		}
		guest.SameResources(t, before)
	})
}
