// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package raid puts md RAID1, LVM, dm-crypt and partitions on the block device, as an operator would.
package raid

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
)

const (
	size      = 32 << 20 // of the local disk and the volume
	sizeText  = "32MiB"
	arraySize = "12M" // an emulated machine checks 2 MB/s
	array     = "/dev/md0"
	sysfs     = "/sys/block/md0/md"

	fastFail = 2 * time.Second
	options  = ",fast_fail=2,heartbeat=0" // a slow machine is not a loss
	patience = 90 * time.Second
)

// rig is a volume of krping-bridge and, once create was called, an array of a local disk and of the
// volume's disk, which starts with zeros.
type rig struct {
	t      *testing.T
	port   int
	store  string
	bridge *guest.Bridge
	local  string
	log    *acklog.Log
	run    *acklog.Run
}

func newRig(t *testing.T) *rig {
	t.Helper()
	r := &rig{t: t, port: guest.NextPort(), store: guest.StorePath(t)}
	r.start()
	return r
}

// start starts the bridge, again if it was killed, on the same store.
func (r *rig) start() {
	r.t.Helper()
	r.bridge = guest.StartBridge(r.t, r.port, r.store, sizeText)
}

func (r *rig) disk() string { return "/dev/" + guest.Session(r.t, "vol0")["dev"] }

// create makes the array of a local disk and the session's, without a bad block log, until the end of
// the test. The bitmap has a bit for each 64 KiB, and forgets them a second after the last write.
func (r *rig) create() {
	r.t.Helper()
	guest.Run(r.t, "modprobe", "raid1")
	// md would slow down to 1 MB/s while there is other I/O.
	if err := os.WriteFile("/proc/sys/dev/raid/speed_limit_min", []byte("200000"), 0); err != nil {
		r.t.Fatal(err)
	}
	r.local = guest.RAMDisk(r.t, size)
	guest.Run(r.t, "dd", "if=/dev/zero", "of="+r.local, "bs=1M", fmt.Sprintf("count=%d", size>>20), "oflag=direct", "status=none")
	config := filepath.Join(r.t.TempDir(), "mdadm.conf")
	if err := os.WriteFile(config, []byte("CREATE bbl=no\n"), 0o600); err != nil {
		r.t.Fatal(err)
	}
	guest.Run(r.t, "mdadm", "--create", "--config="+config, array, "--run", "--level=1", "--raid-devices=2", "--assume-clean",
		"--bitmap=internal", "--bitmap-chunk=64K", "--delay=1", "--size="+arraySize, r.local, "--write-mostly", r.disk())
	r.t.Cleanup(func() {
		if _, err := os.Stat(sysfs); err == nil {
			guest.Run(r.t, "mdadm", "--stop", array)
		}
	})
}

// write starts a load on the array that keeps account of what was acknowledged.
func (r *rig) write() {
	r.t.Helper()
	var err error
	if r.log, err = acklog.NewLog(uint64(time.Now().UnixNano()), nil); err != nil {
		r.t.Fatal(err)
	}
	load := acklog.Load{Path: array, Limit: patience, Workers: 4, ReadOne: 4, FsyncOne: 50, MaxLength: 64 << 10}
	if r.run, err = load.Start(r.log); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _, _ = r.run.Stop() })
	r.progress(20)
}

// progress waits until n more writes are acknowledged.
func (r *rig) progress(n int) {
	r.t.Helper()
	want := r.log.Acked() + n
	guest.Eventually(r.t, patience, "the application's writes succeed", func() bool { return r.log.Acked() >= want || r.run.Ended() })
	if r.run.Ended() {
		_, err := r.run.Stop()
		r.t.Fatalf("the application sees %v", err)
	}
}

// stopWriting ends the load, which must have seen no error, and returns its longest operation.
func (r *rig) stopWriting() time.Duration {
	r.t.Helper()
	stats, err := r.run.Stop()
	if err != nil {
		r.t.Fatalf("the application sees %v", err)
	}
	r.t.Logf("load: %v", stats)
	return stats.Slowest
}

// member returns the flags that md shows for a disk of the array, like "in_sync,write_mostly", or "".
func member(disk string) string {
	text, _ := os.ReadFile(filepath.Join(sysfs, "dev-"+filepath.Base(disk), "state"))
	return strings.TrimSpace(string(text))
}

func (r *rig) becomes(disk, flag string) {
	r.t.Helper()
	guest.Eventually(r.t, patience, disk+" is "+flag, func() bool { return strings.Contains(member(disk), flag) })
}

func (r *rig) attribute(name string) string {
	r.t.Helper()
	text, err := os.ReadFile(filepath.Join(sysfs, name))
	if err != nil {
		r.t.Fatal(err)
	}
	return strings.TrimSpace(string(text))
}

// counter returns a counter of the session.
func (r *rig) counter(key string) int {
	r.t.Helper()
	n, err := strconv.Atoi(guest.Session(r.t, "vol0")[key])
	if err != nil {
		r.t.Fatal(err)
	}
	return n
}

// removeAndReAdd puts the failed disk back. md refuses to remove it until it has noted the failure.
func (r *rig) removeAndReAdd() {
	r.t.Helper()
	guest.Eventually(r.t, patience, "md removes the disk", func() bool {
		_, err := guest.TryRun("mdadm", "--manage", array, "--remove", r.disk())
		return err == nil
	})
	guest.Run(r.t, "mdadm", "--manage", array, "--re-add", r.disk())
}

// sync runs check or repair and returns how many sectors differed.
func (r *rig) sync(action string) int {
	r.t.Helper()
	// A disk is in_sync shortly before the recovery that made it so has ended; md refuses the next
	// action until then.
	guest.Eventually(r.t, patience, "md begins "+action, func() bool {
		err := os.WriteFile(sysfs+"/sync_action", []byte(action), 0)
		if err != nil && !errors.Is(err, syscall.EBUSY) {
			r.t.Fatal(err)
		}
		return err == nil
	})
	guest.Eventually(r.t, patience, action+" ends", func() bool { return r.attribute("sync_action") == "idle" })
	return guest.Number(r.t, sysfs+"/mismatch_cnt")
}

// wantSame stops the array and fails unless the local disk and the file of the volume hold the same
// data. The superblocks and bitmaps before the data may differ.
func (r *rig) wantSame() {
	r.t.Helper()
	offset := guest.Number(r.t, filepath.Join(sysfs, "dev-"+filepath.Base(r.local), "offset")) * 512
	if other := guest.Number(r.t, filepath.Join(sysfs, "dev-"+filepath.Base(r.disk()), "offset")) * 512; other != offset {
		r.t.Fatalf("the data begins at %d and at %d", offset, other)
	}
	length := guest.Number(r.t, sysfs+"/component_size") << 10
	guest.Run(r.t, "mdadm", "--stop", array)
	local, remote := read(r.t, r.local, offset, length), read(r.t, r.store, offset, length)
	if !bytes.Equal(local, remote) {
		r.t.Errorf("%s and %s differ in the %d bytes at %d", r.local, r.store, length, offset)
	}
	if r.log != nil {
		report, err := acklog.Check(bytes.NewReader(remote), int64(length), r.log, acklog.Allow{})
		if err != nil {
			r.t.Fatal(err)
		}
		if err := report.Err(); err != nil {
			r.t.Errorf("the volume's file: %v", err)
		}
	}
}

func read(t *testing.T, path string, offset, length int) []byte {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	data := make([]byte, length)
	if _, err := f.ReadAt(data, int64(offset)); err != nil {
		t.Fatalf("read %s: %v", path, err)
	}
	return data
}

// writeRandom writes random data around the page cache and syncs it.
func writeRandom(t *testing.T, path string, kib, atKiB int) {
	t.Helper()
	guest.Run(t, "dd", "if=/dev/urandom", "of="+path, "bs=1K", fmt.Sprintf("count=%d", kib), fmt.Sprintf("seek=%d", atKiB),
		"iflag=fullblock", "oflag=direct", "conv=fsync,notrunc", "status=none")
}
