// SPDX-License-Identifier: Apache-2.0

//go:build lab

package tap

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/hold"
	"krping/test/guest/internal/targets"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// noStall is the limit for the latency of a tap in a slow VM, whatever happens to its target.
var noStall = guest.Slow(2 * time.Second)

// forwarded waits until each copy has been answered or dropped.
func forwarded(t *testing.T) {
	t.Helper()
	guest.Eventually(t, 30*time.Second, "all copies are forwarded", func() bool { return number(t, "queued") == 0 })
}

// overwritten checks that both sides are equal when all data that was dropped has been overwritten.
func overwritten(t *testing.T, dev, store string) {
	t.Helper()
	write(t, dev, "--size", "16MiB", "--bs", "512KiB")
	forwarded(t)
	check(t, map[string]int64{"dirty_bytes": 0})
	guest.WantSame(t, dev, store)
}

// Verified I/O: the target gets a copy of each write and read, and has the same data as the backing.
func TestTapCopies(t *testing.T) {
	for name, backing := range map[string]string{"memory": "ram:16M", "disk": ""} {
		t.Run(name, func(t *testing.T) {
			if backing == "" {
				backing = ramDisk(t)
			}
			store := guest.StorePath(t)
			guest.StartBridge(t, 9830, store, "16MiB")
			dev := guest.Attach(t, 9830, ",mode=tap,backing="+backing+patient)
			startFio(t, dev, "--rw=randrw", "--bsrange=512-256k", "--iodepth=8", "--io_size=8m").wait(t)
			// The queue has room for everything: nothing is dropped, however slow the target is.
			forwarded(t)
			check(t, map[string]int64{"skipped": 0, "dropped": 0, "mismatches": 0, "dirty_bytes": 0, "errors": 0})
			guest.WantSame(t, dev, store)
			forwarded(t)
			check(t, map[string]int64{"dropped": 0, "mismatches": 0})
			if checked := number(t, "forwarded") - number(t, "unchecked"); checked < 50 {
				t.Errorf("only %d of %d copies checked", checked, number(t, "forwarded"))
			}
			if mode := guest.Session(t, "vol0")["mode"]; mode != "tap" {
				t.Errorf("mode=%s", mode)
			}
		})
	}
}

// The target gets only what matches the filter. What is skipped is counted.
func TestTapFilters(t *testing.T) {
	needs.Test(t, needs.Once)
	const half = size / 2
	zeros := make([]byte, half)
	for name, tc := range map[string]struct {
		options string
		write   func(t *testing.T, dev string) // the first half matches, the second does not
	}{
		"comm": {",comm=write_data", func(t *testing.T, dev string) {
			second := make(chan struct{})
			go func() { // writes beside krpingctl, which would refuse to begin beside another writer
				defer close(second)
				guest.Eventually(t, 10*time.Second, "krpingctl writes", func() bool { return number(t, "forwarded_bytes") > 0 })
				guest.Run(t, "dd", "if=/dev/urandom", "of="+dev, "bs=128K", "seek=64", "count=64", "oflag=direct", "status=none")
			}()
			write(t, dev, "--name", "write_data", "--seed", "1", "--size", "8MiB", "--bs", "128KiB")
			<-second
		}},
		"pid": {fmt.Sprintf(",op=write,pid=%d", os.Getpid()), func(t *testing.T, dev string) {
			f := guest.OpenDirect(t, dev)
			data := guest.Aligned(t, 1<<20)
			for at := int64(0); at < half; at += 1 << 20 {
				_, _ = rand.NewChaCha8([32]byte{byte(at >> 20)}).Read(data)
				if _, err := f.WriteAt(data, at); err != nil {
					t.Error(err)
				}
			}
			_ = f.Close()
			write(t, dev, "--offset", "8MiB", "--size", "8MiB")
		}},
		"sectors": {",op=write,sectors=0-16383", func(t *testing.T, dev string) {
			write(t, dev, "--size", "16MiB", "--bs", "128KiB")
		}},
		"op": {",op=write+flush", func(t *testing.T, dev string) {
			write(t, dev, "--size", "8MiB")
			guest.Run(t, "dd", "if="+dev, "of=/dev/null", "bs=1M", "count=8", "iflag=direct", "status=none")
		}},
	} {
		t.Run(name, func(t *testing.T) {
			store := guest.StorePath(t)
			guest.StartBridge(t, 9831, store, "16MiB")
			dev := guest.Attach(t, 9831, ",mode=tap,backing=ram:16M"+tc.options+patient)
			tc.write(t, dev)
			forwarded(t)
			check(t, map[string]int64{"dropped": 0, "forwarded_bytes": half})
			if number(t, "skipped") == 0 {
				t.Error("no I/O was counted as skipped")
			}
			local := guest.Aligned(t, size)
			if _, err := guest.OpenDirect(t, dev).ReadAt(local, 0); err != nil {
				t.Fatal(err)
			}
			remote, err := os.ReadFile(store)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(remote[:half], local[:half]) {
				t.Error("the target does not have what matches the filter")
			}
			if !bytes.Equal(remote[half:], zeros) {
				t.Error("the target has data that does not match the filter")
			}
			dirty := int64(half)
			if name == "op" {
				dirty = 0 // reads were skipped
			}
			check(t, map[string]int64{"dirty_bytes": dirty})
		})
	}
}

// Data with NUL bytes, in odd segments at odd offsets.
func TestTapOddData(t *testing.T) {
	store := guest.StorePath(t)
	guest.StartBridge(t, 9832, store, "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9832, ",mode=tap,backing=ram:16M"+patient))
	want := guest.WriteOddData(t, dev, 4<<20, func() { forwarded(t) })
	forwarded(t)
	check(t, map[string]int64{"dropped": 0, "mismatches": 0, "unchecked": 0})
	got, err := os.ReadFile(store)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got[:len(want)], want) {
		t.Error("the store does not hold what was written")
	}
}

// The target is killed under verified I/O and started again. The application does not notice.
func TestTapTargetKilled(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9833, store, "16MiB")
	dev := guest.Attach(t, 9833, ",mode=tap,backing=ram:16M")
	load := startFio(t, dev, "--rw=randwrite", "--bsrange=4k-128k", "--iodepth=8", "--io_size=1g", "--rate=4m", "--time_based", guest.Runtime(5*time.Second), "--verify_backlog=32")
	guest.Eventually(t, 20*time.Second, "copies are forwarded", func() bool { return number(t, "forwarded") > 20 })
	bridge.Kill()
	guest.SessionBecomes(t, "reconnecting")
	time.Sleep(time.Second)
	guest.StartBridge(t, 9833, store, "16MiB")
	guest.SessionBecomes(t, "live")
	atReturn := number(t, "forwarded")
	longest := load.wait(t) // it may have ended before
	longest = max(longest, startFio(t, dev, "--rw=randwrite", "--bs=4k", "--io_size=256k").wait(t))
	t.Logf("longest I/O %v, %v", longest, guest.Session(t, "vol0"))
	if longest > noStall {
		late.Errorf(t, "an I/O took %v, want less than %v", longest, noStall)
	}
	forwarded(t)
	if number(t, "drops_lost") == 0 || number(t, "dirty_bytes") == 0 {
		t.Error("no copy was dropped while the target was away")
	}
	if number(t, "forwarded") <= atReturn {
		t.Error("no copy is forwarded after the restart")
	}
	check(t, map[string]int64{"mismatches": 0, "drops_error": 0})
	overwritten(t, dev, store)
}

// A volume in memory has another identity and no data after a restart of its target. The tap goes on: everything is dirty
// until it is written again.
func TestTapTargetForgets(t *testing.T) {
	needs.Test(t, needs.Once)
	served := targets.Module.Serve(t, targets.Config{Store: "ram:16M"})
	dev := guest.Attach(t, served.Port, ",mode=tap,backing=ram:16M"+patient)
	write(t, dev, "--size", "16MiB", "--bs", "512KiB")
	forwarded(t)
	check(t, map[string]int64{"dirty_bytes": 0, "dropped": 0})
	before := guest.Session(t, "vol0")["uuid"]
	served.Stop()
	guest.SessionBecomes(t, "reconnecting")
	served.Again(t)
	guest.Eventually(t, 20*time.Second, "the session has reconnected", func() bool { return guest.Session(t, "vol0")["state"] != "reconnecting" })
	guest.WantFields(t, guest.Session(t, "vol0"), "state", "live")
	check(t, map[string]int64{"dirty_bytes": size})
	after := guest.Volume(t, "vol0")["uuid"]
	guest.WantFields(t, guest.Session(t, "vol0"), "uuid", after, "version", "2")
	if after == before {
		t.Errorf("the volume had the UUID %s before the restart, too", before)
	}
	write(t, dev, "--size", "16MiB", "--bs", "512KiB")
	forwarded(t)
	unchecked := number(t, "unchecked")
	guest.Run(t, "dd", "if="+dev, "of=/dev/null", "bs=512K", "iflag=direct", "status=none")
	forwarded(t)
	check(t, map[string]int64{"dirty_bytes": 0, "dropped": 0, "mismatches": 0, "unchecked": unchecked})
}

// A tap that wants a certain volume in memory does not go on with what its target has after a restart. I/O is local then.
func TestTapTargetForgetsPinned(t *testing.T) {
	needs.Test(t, needs.Once)
	served := targets.Module.Serve(t, targets.Config{Store: "ram:16M"})
	path := guest.Attach(t, served.Port, ",mode=tap,backing=ram:16M,uuid="+guest.Volume(t, "vol0")["uuid"]+patient)
	dev := guest.OpenDirect(t, path)
	served.Stop()
	guest.SessionBecomes(t, "reconnecting")
	served.Again(t)
	guest.Eventually(t, 20*time.Second, "the session has reconnected", func() bool { return guest.Session(t, "vol0")["state"] != "reconnecting" })
	guest.WantFields(t, guest.Session(t, "vol0"), "state", "failed")
	if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); err != nil {
		t.Errorf("write of the local disk: %v", err)
	}
	served.WantVolume(t, "writes", "0")
}

// With a suspended target the queue fills up. Then copies are dropped, and no I/O waits.
func TestTapTargetSuspended(t *testing.T) {
	needs.Test(t, needs.Once)
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9834, store, "16MiB")
	// The connection is not lost, and the queue fills up.
	dev := guest.Attach(t, 9834, ",mode=tap,backing=ram:16M,op=write"+patient)
	guest.Signal(t, bridge.Cmd, unix.SIGSTOP)
	for range 3 {
		if longest := startFio(t, dev, "--rw=write", "--bs=256k", "--iodepth=4").wait(t); longest > noStall {
			late.Errorf(t, "an I/O took %v, want less than %v", longest, noStall)
		}
	}
	if number(t, "drops_full") == 0 || number(t, "dirty_bytes") == 0 {
		t.Errorf("no copy was dropped: %v", guest.Session(t, "vol0"))
	}
	guest.Signal(t, bridge.Cmd, unix.SIGCONT)
	// After 30 s without an answer the connection is lost nevertheless, on a slow machine perhaps now: then the queue is
	// empty because it was dropped.
	forwarded(t)
	guest.SessionBecomes(t, "live")
	overwritten(t, dev, store)
}

// unbound makes these CPUs run the work of the workqueues that are not bound to a CPU, and their timers.
func unbound(t *testing.T, cpus ...int) {
	t.Helper()
	mask := 0
	for _, cpu := range cpus {
		mask |= 1 << cpu
	}
	if err := os.WriteFile("/sys/devices/virtual/workqueue/cpumask", []byte(strconv.FormatInt(int64(mask), 16)), 0); err != nil {
		t.Fatal(err)
	}
}

// A read began before the target was lost. Its copy is about to be sent when the target comes back without data that it
// had acknowledged. Other data at the target is then not reported as a mismatch.
func TestTapReadWhileTargetForgets(t *testing.T) {
	needs.Test(t, needs.EBPF, needs.Long) // it takes several tries, more on a busy machine
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9841, store, "16MiB", "--writeback")
	disk, stall := guest.Stalling(t, guest.RAMDisk(t, size), size)
	dev := guest.OpenDirect(t, guest.Attach(t, 9841, ",mode=tap,backing="+disk+patient))
	data := guest.Aligned(t, 65536)
	// One of two to four succeeds, fewer on a busy machine: what else the connection needs may be on the held CPU.
	const tries = 15
	t.Cleanup(func() { unbound(t, 0, 1) })
	for range tries {
		for i := range data {
			data[i] = byte(i * 7)
		}
		if _, err := dev.WriteAt(data, 0); err != nil {
			t.Fatal(err)
		}
		forwarded(t)
		before := number(t, "unchecked")
		stall(true)
		read := make(chan error, 1)
		go func() {
			_, err := dev.ReadAt(data, 0)
			read <- err
		}()
		guest.Eventually(t, 10*time.Second, "the read has begun", func() bool { return number(t, "queued") == 1 })
		unbound(t, 0)
		bridge.Kill()
		guest.SessionBecomes(t, "reconnecting")
		for _, size := range []int64{0, size} {
			if err := os.Truncate(store, size); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(time.Second) // until the old connection has been cleaned up, which needs the CPU that is held next
		sender := hold.Call(t, "tap_forward", 0, 8*time.Second)
		unbound(t, 1) // the copy is sent by the CPU that is held, the client connects on the other one
		stall(false)
		guest.Eventually(t, 10*time.Second, "a copy is about to be sent", sender.Began)
		unbound(t, 0)
		bridge = guest.StartBridge(t, 9841, store, "16MiB", "--writeback")
		// With a CPU held, the session cannot become live, but its queue is quiesced: the copy waits there.
		guest.Eventually(t, 15*time.Second, "everything is dirty", func() bool { return number(t, "dirty_bytes") == size })
		if err := guest.Within(t, 15*time.Second, "the read ends", read); err != nil {
			t.Errorf("read: %v", err)
		}
		guest.SessionBecomes(t, "live")
		forwarded(t)
		check(t, map[string]int64{"mismatches": 0})
		if t.Failed() || number(t, "unchecked") > before {
			return
		}
	}
	late.Errorf(t, "the copy was never sent to the target that had lost data, in %d tries", tries)
}

// Reads are compared with the target's data. A mismatch is counted, and the application does not notice.
func TestTapCountsMismatches(t *testing.T) {
	needs.Test(t, needs.Once)
	store := guest.StorePath(t)
	guest.StartBridge(t, 9835, store, "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9835, ",mode=tap,backing=ram:16M"+patient))
	data, got := guest.Aligned(t, 65536), guest.Aligned(t, 65536)
	for i := range data {
		data[i] = byte(i * 7)
	}
	if _, err := dev.WriteAt(data, 1<<20); err != nil {
		t.Fatal(err)
	}
	forwarded(t)
	f, err := os.OpenFile(store, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt([]byte{data[1000] ^ 1}, 1<<20+1000); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if _, err := dev.ReadAt(got, 1<<20); err != nil || !bytes.Equal(got, data) {
		t.Errorf("the application's read: %v", err)
	}
	forwarded(t)
	check(t, map[string]int64{"mismatches": 1, "dropped": 0})
}

// An error of the backing is reported to the application, and the target does not get the data.
func TestTapLocalError(t *testing.T) {
	needs.Test(t, needs.Once)
	disk := guest.HalfBad(t, ramDisk(t), size)
	guest.StartBridge(t, 9836, guest.StorePath(t), "16MiB")
	dev := guest.OpenDirect(t, guest.Attach(t, 9836, ",mode=tap,backing="+disk))
	data := guest.Aligned(t, 65536)
	copy(data, "krping")
	if _, err := dev.WriteAt(data, 0); err != nil {
		t.Errorf("write of the good half: %v", err)
	}
	if _, err := dev.WriteAt(data, size-65536); !errors.Is(err, unix.EIO) {
		t.Errorf("write of the bad half: %v, want EIO", err)
	}
	if _, err := dev.ReadAt(data, size-65536); !errors.Is(err, unix.EIO) {
		t.Errorf("read of the bad half: %v, want EIO", err)
	}
	_ = dev.Close()
	if number(t, "dirty_bytes") == 0 {
		t.Error("nothing is dirty after the backing failed a write")
	}
	stop(t, "")
}

// The RDMA device is removed under load. The application does not notice.
func TestDeviceRemoved(t *testing.T) {
	guest.StartBridge(t, 9854, guest.StorePath(t), "16MiB")
	dev := guest.Attach(t, 9854, ",mode=tap,backing=ram:16M")
	load := startFio(t, dev, "--rw=randwrite", "--bs=16k", "--iodepth=8", "--io_size=1g", "--rate=4m", "--time_based", guest.Runtime(5*time.Second), "--verify_backlog=32")
	time.Sleep(1500 * time.Millisecond)
	guest.RemoveDevice(t)
	guest.AddDevice(t)
	guest.SessionBecomes(t, "live")
	load.wait(t)
	stop(t, "")
}

// A forced stop of a device in use ends, also if the target is suspended or killed.
func TestForcedStop(t *testing.T) {
	for name, sig := range map[string]unix.Signal{"suspended": unix.SIGSTOP, "killed": unix.SIGKILL} {
		t.Run(name, func(t *testing.T) {
			bridge := guest.StartBridge(t, 9837, guest.StorePath(t), "16MiB")
			path := guest.Attach(t, 9837, ",mode=tap,backing=ram:16M")
			dev := guest.OpenDirect(t, path)
			load := startFio(t, path, "--rw=randrw", "--bs=64k", "--iodepth=8", "--io_size=10g", "--time_based", "--runtime=60")
			before := number(t, "writes")
			guest.Eventually(t, 20*time.Second, "fio writes", func() bool { return number(t, "writes") > before+20 })
			guest.Signal(t, bridge.Cmd, sig)
			time.Sleep(300 * time.Millisecond)
			if err := guest.Command("stop,block=vol0", guest.Limit); !errors.Is(err, unix.EBUSY) {
				t.Errorf("stop of an open device: %v, want EBUSY", err)
			}
			stop(t, ",force")
			load.Fails()
			if _, err := dev.ReadAt(guest.Aligned(t, 4096), 0); err == nil {
				t.Error("a read of a stopped device succeeded")
			}
			digest := struct {
				offset, length uint64
				rest           [40]byte
			}{length: 4096}
			const iocDigest = 3<<30 | 56<<16 | 'K'<<8 | 0x70
			if _, _, errno := unix.Syscall(unix.SYS_IOCTL, dev.Fd(), iocDigest, uintptr(unsafe.Pointer(&digest))); errno == 0 {
				t.Error("a digest of a stopped device succeeded")
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	needs.Test(t, needs.Once)
	guest.StartBridge(t, 9838, guest.StorePath(t), "16MiB")
	addr := guest.Addr(t)
	for options, want := range map[string]error{
		",mode=tap,backing=ram:32M":     unix.EINVAL, // larger than the target
		",mode=tap,backing=/dev/nosuch": unix.ENOENT,
		",mode=tap":                     unix.EINVAL,
		",mode=mirror,backing=ram:16M":  unix.EINVAL, // no such mode
		",mode=remote,backing=ram:16M":  unix.EINVAL,
		",backing=ram:16M,comm=x":       unix.EINVAL,
	} {
		if err := guest.Command("client,addr="+addr+",port=9838,block=vol0"+options, guest.Limit); !errors.Is(err, want) {
			t.Errorf("%s: %v, want %v", options, err, want)
		}
		if guest.Session(t, "vol0") != nil {
			t.Errorf("%s: a session is left", options)
		}
	}
	if err := guest.Command("client,addr="+addr+",port=9,block=vol0,mode=tap,backing=ram:16M", guest.Limit); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("no target: %v, want ECONNREFUSED", err)
	}
}
