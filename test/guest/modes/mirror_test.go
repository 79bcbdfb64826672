// SPDX-License-Identifier: Apache-2.0

//go:build lab

package modes

import (
	"errors"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// insync waits until both sides hold the same.
func insync(t *testing.T) {
	t.Helper()
	guest.Eventually(t, 40*time.Second, "the mirror is in sync", func() bool {
		s := guest.Session(t, "vol0")
		return s["mirror"] == "insync" && s["dirty_bytes"] == "0"
	})
}

// The first attach makes the target equal; then writes go to both.
func TestMirrorCopies(t *testing.T) {
	disk := ramDisk(t)
	guest.Run(t, "dd", "if=/dev/urandom", "of="+disk, "bs=1M", "count=16", "oflag=direct", "iflag=fullblock", "status=none")
	store := guest.StorePath(t)
	guest.StartBridge(t, 9850, store, "16MiB")
	dev := guest.Attach(t, 9850, ",mode=mirror,backing="+disk)
	start := time.Now()
	insync(t)
	t.Logf("16 MiB in sync after %v", time.Since(start).Round(time.Millisecond))
	guest.WantSame(t, dev, store)
	startFio(t, dev, "--rw=randrw", "--bsrange=512-256k", "--iodepth=16", "--io_size=8m").wait(t)
	check(t, map[string]int64{"dirty_bytes": 0, "errors": 0, "reads": 0})
	guest.WantSame(t, dev, store)
	// Stopped and started: what the backing got meanwhile is copied.
	stop(t, "")
	guest.Run(t, "dd", "if=/dev/urandom", "of="+disk, "bs=1M", "count=2", "seek=5", "oflag=direct", "iflag=fullblock", "status=none")
	dev = guest.Attach(t, 9850, ",mode=mirror,backing="+disk)
	insync(t)
	guest.WantSame(t, dev, store)
}

// The peer dies under verified I/O: writes go on locally, are noted, and are copied when it
// is back, with more writes under way.
func TestMirrorPeerKilled(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9851, store, "16MiB")
	dev := guest.Attach(t, 9851, ",mode=mirror,backing=ram:16M")
	insync(t)
	load := startFio(t, dev, "--rw=randwrite", "--bsrange=4k-128k", "--iodepth=8", "--io_size=1g", "--time_based", guest.Runtime(7*time.Second), "--verify_backlog=32")
	for range 2 {
		before := number(t, "writes")
		guest.Eventually(t, 20*time.Second, "fio writes", func() bool { return number(t, "writes") > before+20 })
		bridge.Kill()
		guest.SessionBecomes(t, "reconnecting")
		guest.Eventually(t, 5*time.Second, "what the peer lacks is noted", func() bool {
			s := guest.Session(t, "vol0")
			return s["mirror"] == "degraded" && s["dirty_bytes"] != "0"
		})
		bridge = guest.StartBridge(t, 9851, store, "16MiB")
		guest.SessionBecomes(t, "live")
	}
	t.Logf("longest I/O %v", load.wait(t))
	insync(t)
	guest.WantSame(t, dev, store)
}

// A writeback peer that dies has lost what was not flushed: all is copied again.
func TestMirrorWritebackPeerKilled(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9852, store, "16MiB", "--writeback")
	dev := guest.Attach(t, 9852, ",mode=mirror,backing=ram:16M")
	insync(t)
	write(t, dev, "--size", "4MiB")
	bridge.Kill()
	guest.SessionBecomes(t, "reconnecting")
	before := number(t, "write_bytes")
	guest.StartBridge(t, 9852, store, "16MiB", "--writeback")
	guest.SessionBecomes(t, "live")
	insync(t)
	if copied := number(t, "write_bytes") - before; copied != size {
		t.Errorf("%d bytes were copied, want %d", copied, size)
	}
	guest.WantSame(t, dev, store)
}

// So has one whose volume was in memory, flushed or not.
func TestMirrorMemoryPeerRestarted(t *testing.T) {
	guest.Serve(t, "vol0", 9855, "backing=ram:16M")
	dev := guest.OpenDirect(t, guest.Attach(t, 9855, ",mode=mirror,backing=ram:16M"))
	insync(t)
	guest.WriteAndSync(t, dev)
	guest.StopServing(t, "vol0")
	before := number(t, "write_bytes")
	guest.Serve(t, "vol0", 9855, "backing=ram:16M")
	guest.SessionBecomes(t, "live")
	insync(t)
	if copied := number(t, "write_bytes") - before; copied != size {
		t.Errorf("%d bytes were copied, want %d", copied, size)
	}
	_ = dev.Close()
	stop(t, "")
}

// A write that touches many others under way has its turn, though there are always some.
func TestMirrorWideWrite(t *testing.T) {
	const each = 100 * time.Millisecond
	backing := guest.NullDisk(t, "nullb1", map[string]string{
		"size": "1", "irqmode": "2", "completion_nsec": strconv.FormatInt(each.Nanoseconds(), 10),
	})
	guest.Serve(t, "vol0", 9856, "backing=ram:1M")
	path := guest.Attach(t, 9856, ",mode=mirror,backing="+backing)
	insync(t)

	const writers, atMost, small = 8, 50, 512
	var ended atomic.Bool
	var others errgroup.Group
	for i := range int64(writers) {
		dev, buf := guest.OpenDirect(t, path), guest.Aligned(t, small)
		time.Sleep(each / writers)
		others.Go(func() error {
			for range atMost {
				if _, err := dev.WriteAt(buf, i*small); err != nil || ended.Load() {
					return err
				}
			}
			return errors.New("the wide write waited for every other")
		})
	}
	if _, err := guest.OpenDirect(t, path).WriteAt(guest.Aligned(t, writers*small), 0); err != nil {
		t.Error(err)
	}
	ended.Store(true)
	if err := others.Wait(); err != nil {
		t.Error(err)
	}
}

func TestMirrorFileSystem(t *testing.T) {
	store := guest.StorePath(t)
	bridge := guest.StartBridge(t, 9853, store, "16MiB")
	dev := guest.Attach(t, 9853, ",mode=mirror,backing="+ramDisk(t))
	guest.Run(t, "mkfs.ext4", "-q", "-F", dev)
	mount := t.TempDir()
	guest.Run(t, "mount", dev, mount)
	guest.Run(t, "cp", "-r", "/usr/include/infiniband", mount)
	bridge.Kill()
	guest.Run(t, "cp", "-r", "/usr/include/infiniband", mount+"/again")
	guest.Run(t, "sync", "-f", mount)
	guest.StartBridge(t, 9853, store, "16MiB")
	if err := guest.Command("stop,block=vol0", guest.Limit); !errors.Is(err, unix.EBUSY) {
		t.Errorf("stop while mounted: %v, want EBUSY", err)
	}
	guest.Run(t, "diff", "-r", "/usr/include/infiniband", mount+"/again")
	guest.Run(t, "umount", mount)
	guest.SessionBecomes(t, "live")
	insync(t)
	guest.WantSame(t, dev, store)
	stop(t, "")
	guest.Run(t, "fsck.ext4", "-fn", store)
}

// The RDMA device goes away under load, in both modes: the application notices nothing.
func TestDeviceRemoved(t *testing.T) {
	for _, mode := range []string{"tap", "mirror"} {
		t.Run(mode, func(t *testing.T) {
			store := guest.StorePath(t)
			bridge := guest.StartBridge(t, 9854, store, "16MiB")
			dev := guest.Attach(t, 9854, ",mode="+mode+",backing=ram:16M")
			load := startFio(t, dev, "--rw=randwrite", "--bs=16k", "--iodepth=8", "--io_size=1g", "--rate=4m", "--time_based", guest.Runtime(5*time.Second), "--verify_backlog=32")
			time.Sleep(1500 * time.Millisecond)
			guest.RemoveDevice(t)
			_ = bridge.Cmd.Wait()
			guest.AddDevice(t)
			guest.StartBridge(t, 9854, store, "16MiB")
			guest.SessionBecomes(t, "live")
			load.wait(t)
			if mode == "mirror" {
				insync(t)
				guest.WantSame(t, dev, store)
			}
			stop(t, "")
		})
	}
}
