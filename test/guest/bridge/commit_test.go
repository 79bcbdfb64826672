// SPDX-License-Identifier: Apache-2.0

//go:build lab

package bridge

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/acklog"
	"krping/test/output"
)

// slowDisk makes a disk that takes a millisecond for each request, and has a write cache.
func slowDisk(t *testing.T) string {
	t.Helper()
	return guest.NullDisk(t, "slow", map[string]string{"size": "32", "cache_size": "16", "irqmode": "2", "completion_nsec": "1000000"})
}

// ext4 makes a file system on a disk, and mounts it until the end of the test.
func ext4(t *testing.T, disk string) (dir string) {
	t.Helper()
	guest.Run(t, "mkfs.ext4", "-q", "-F", "-E", "lazy_itable_init=0,lazy_journal_init=0", disk)
	return mounted(t, disk)
}

func mounted(t *testing.T, disk string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	guest.Run(t, "mount", disk, dir)
	t.Cleanup(func() { guest.Run(t, "umount", dir) })
	return dir
}

// flushes returns how many flushes a disk has carried out.
func flushes(t *testing.T, disk string) int {
	t.Helper()
	stat, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(disk), "stat"))
	if err != nil {
		t.Fatal(err)
	}
	const field = 15 // Documentation/block/stat.rst
	n, err := strconv.Atoi(strings.Fields(string(stat))[field])
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// Writes that wait at the same time share the flushes of the disk. A write that is alone has its own.
func TestWritesShareFlushes(t *testing.T) {
	disk := slowDisk(t)
	dir, port := ext4(t, disk), guest.NextPort()
	guest.StartBridge(t, port, filepath.Join(dir, "vol0.img"), "8MiB")
	dev := guest.Attach(t, port, "")
	for _, tc := range []struct {
		depth, ios int
		min, max   float64 // flushes an I/O
	}{
		{1, 200, 1, 3}, // the journal's for blocks that the file did not have, too
		{32, 2000, 0.02, 0.25},
	} {
		before := flushes(t, disk)
		guest.Run(t, "fio", "--name=load", "--filename="+dev, "--allow_file_create=0", "--direct=1", "--ioengine=libaio", "--rw=randwrite",
			"--bs=4k", "--norandommap", fmt.Sprintf("--iodepth=%d", tc.depth), fmt.Sprintf("--io_size=%d", 4096*tc.ios))
		each := float64(flushes(t, disk)-before) / float64(tc.ios)
		t.Logf("depth %d: %.3f flushes an I/O", tc.depth, each)
		if each < tc.min || each > tc.max {
			t.Errorf("depth %d: %.3f flushes an I/O, want %v to %v", tc.depth, each, tc.min, tc.max)
		}
	}
}

// What a disk has at any moment is what is left when the power fails: each write that was answered by then is there,
// when the file system's journal has been replayed.
func TestAnsweredWritesAreOnTheDisk(t *testing.T) {
	const size = 32 * mib
	disk := slowDisk(t)
	lower, stall := guest.Stalling(t, disk, size)
	dir, port := ext4(t, lower), guest.NextPort()
	guest.StartBridge(t, port, filepath.Join(dir, "vol0.img"), "8MiB")
	dev := guest.Attach(t, port, "")
	var records output.Buffer
	log, err := acklog.NewLog(uint64(time.Now().UnixNano()), &records)
	if err != nil {
		t.Fatal(err)
	}
	run, err := acklog.Load{Path: dev, Limit: guest.Slow(time.Minute), Workers: 32, MaxLength: 16 << 10}.Start(log)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		want := log.Acked() + 100
		guest.Eventually(t, time.Minute, "writes are answered", func() bool { return log.Acked() >= want || run.Ended() })
		stall(true)
		time.Sleep(300 * time.Millisecond) // answers are on their way
		then := records.String()
		left := filepath.Join(t.TempDir(), "disk.img")
		guest.Run(t, "dd", "if="+disk, "of="+left, "iflag=direct", "bs=1M", "status=none")
		stall(false)
		checkLeft(t, left, then)
		if t.Failed() {
			t.Fatalf("at moment %d", i)
		}
	}
	if _, err := run.Stop(); err != nil {
		t.Error(err)
	}
}

// checkLeft checks the volume on the copy of a disk against what had been answered.
func checkLeft(t *testing.T, left, records string) {
	t.Helper()
	log, err := acklog.ReadLog(strings.NewReader(records))
	if err != nil {
		t.Fatal(err)
	}
	report, err := log.CheckStore(filepath.Join(mounted(t, targets.LoopOf(t, left)), "vol0.img"), acklog.Allow{Torn: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d writes had been answered", report.Acked)
	if report.Acked == 0 {
		t.Error("no write had been answered")
	}
	if err := report.Err(); err != nil {
		t.Error(err)
	}
}
