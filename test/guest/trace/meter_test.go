// SPDX-License-Identifier: Apache-2.0

//go:build lab

package trace

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"krping/agent/trace/biotrace"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

// The histograms agree with a trace of the same I/O.
func TestHistogramsAgreeWithTrace(t *testing.T) {
	guest.StartBridge(t, 9968, guest.StorePath(t), fmt.Sprint(volume), "--writeback") // so that there are flushes
	dev := guest.Attach(t, 9968, "")
	meter, err := biotrace.NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	defer meter.Close()
	users := moduleUsers(t)
	watch := func(paths ...string) {
		t.Helper()
		if err := meter.WatchOnly(paths); err != nil {
			t.Fatal(err)
		}
	}
	watch("/dev/krping99") // missing, like a device that is being added or removed
	watch(dev)
	tr := start(t, dev, "--json")
	write(t, dev, "write_data", "--size", "1MiB", "--bs", "8KiB", "--fsync")
	guest.Fio(t, dev, "--rw=randread", "--bs=4k", "--size=1m", "--iodepth=8", "--verify=0")
	bios := tr.bios()
	tr.complete()
	histograms, losses, err := meter.Read()
	if err != nil {
		t.Fatal(err)
	}
	if losses.Any() {
		lost(t, losses.String())
	}
	for _, op := range []string{"READ", "WRITE"} {
		for _, stage := range biotrace.Stages() {
			compare(t, histogram(t, histograms, dev, op, stage), bios)
		}
	}
	if histogram(t, histograms, dev, "FLUSH", biotrace.StageTotal).Count == 0 {
		t.Error("the flush was not counted")
	}
	watch(dev) // has no effect
	if again, _, err := meter.Read(); err != nil || len(again) != len(histograms) {
		t.Errorf("watched again: %v, %v", again, err)
	}
	watch()
	if histograms, _, err = meter.Read(); err != nil || len(histograms) != 0 {
		t.Errorf("no device watched: %v, %v", histograms, err)
	}
	if err := meter.WatchOnly([]string{"/dev/null"}); err == nil || !strings.Contains(err.Error(), "not a block device") {
		t.Errorf("not a block device: %v", err)
	}
	if now := moduleUsers(t); now != users {
		t.Errorf("%s users of the module, %s before", now, users)
	}
}

func histogram(t *testing.T, all []biotrace.Histogram, dev, op string, stage biotrace.Stage) biotrace.Histogram {
	t.Helper()
	for _, h := range all {
		if "/dev/"+h.Device == dev && h.Op == op && h.Stage == stage {
			return h
		}
	}
	t.Errorf("no histogram of %s, stage %v", op, stage)
	return biotrace.Histogram{}
}

// compare checks that a histogram matches the bios. Two programs at one tracepoint run one after the other, which takes
// a while in an emulated VM.
func compare(t *testing.T, h biotrace.Histogram, bios []biotrace.Bio) {
	t.Helper()
	var count, inside uint64
	var sum time.Duration
	for _, b := range bios {
		if b.Op != h.Op {
			continue
		}
		count++
		sum += b.Stage(h.Stage)
		for bucket := range h.Buckets {
			if b.Total <= biotrace.Upper(bucket+2) && b.Total > biotrace.Upper(bucket-3) {
				inside++
				break
			}
		}
	}
	const other = 300 * time.Microsecond // limit for the run time of the other program
	if apart := (h.Sum - sum).Abs(); h.Count != count || apart > sum/4+time.Duration(count)*other {
		// The CPU may have stood still between the two programs, which read its clock one after the other.
		late.ErrorfIf(t, h.Count == count, "%s, stage %v: the histogram has %d bios with a sum of %v, the trace %d with %v", h.Op, h.Stage, h.Count, h.Sum, count, sum)
	}
	if h.Stage == biotrace.StageTotal && inside < count*9/10 {
		t.Errorf("%s: of %d latencies in the trace only %d are near a non-empty bucket: %v", h.Op, count, inside, h.Buckets)
	}
}

func moduleUsers(t *testing.T) string {
	t.Helper()
	data, err := os.ReadFile("/sys/module/rdma_krping/refcnt")
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(data))
}

// A disk that nobody watches takes no place among the commands, and without a watched disk nothing is attached.
func TestUnwatchedDisks(t *testing.T) {
	needs.Test(t, needs.Once)
	null := guest.NullDisk(t, "trace4", map[string]string{"irqmode": "0", "memory_backed": "0"})
	other := guest.NullDisk(t, "trace5", map[string]string{"irqmode": "0", "memory_backed": "0"})
	stats, err := ebpf.EnableStats(uint32(unix.BPF_STATS_RUN_TIME))
	if err != nil {
		t.Fatal(err)
	}
	defer stats.Close()
	meter, err := biotrace.NewMeter()
	if err != nil {
		t.Fatal(err)
	}
	defer meter.Close()
	load := func(disk string) {
		t.Helper()
		guest.Run(t, "fio", "--name=load", "--filename="+disk, "--rw=randread", "--bs=4k", "--io_size=2m", "--size=16m", "--direct=1", "--ioengine=io_uring", "--iodepth=32")
	}
	watch := func(paths ...string) {
		t.Helper()
		if err := meter.WatchOnly(paths); err != nil {
			t.Fatal(err)
		}
	}
	load(null)
	if runs := programRuns(t); runs != 0 {
		t.Errorf("no disk is watched, but the programs ran %d times", runs)
	}
	watch(other)
	load(null)
	if n := commandsOf(t, null); n != 0 {
		t.Errorf("a disk that nobody watches has %d commands", n)
	}
	load(other)
	if n := commandsOf(t, other); n == 0 {
		t.Error("the watched disk has no commands")
	}
	histograms, missed, err := meter.Read()
	if err != nil || missed.Any() || histogram(t, histograms, other, "READ", biotrace.StageDevice).Count != 512 {
		late.ErrorfIf(t, onlyMissed(missed.String()), "%v, %v, lost %v", histograms, err, missed)
	}
	watch()
	runs := programRuns(t)
	load(other)
	if now := programRuns(t); now != runs || runs == 0 {
		t.Errorf("no disk is watched any more, but the programs ran %d times", now-runs)
	}
	watch(other)
	load(other)
	histograms, missed, err = meter.Read()
	if err != nil || histogram(t, histograms, other, "READ", biotrace.StageTotal).Count != 512 {
		late.ErrorfIf(t, onlyMissed(missed.String()), "watched again: %v, %v, lost %v", histograms, err, missed)
	}
}

// programRuns returns how often the meter's programs for I/O have run.
func programRuns(t *testing.T) (runs uint64) {
	t.Helper()
	for id := ebpf.ProgramID(0); ; {
		next, err := ebpf.ProgramGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			return runs
		}
		if err != nil {
			t.Fatal(err)
		}
		id = next
		program, err := ebpf.NewProgramFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		info, err := program.Info()
		if err != nil {
			t.Fatal(err)
		}
		if slices.Contains([]string{"bio_queue", "rq_issue", "rq_complete"}, info.Name) {
			stats, err := program.Stats()
			if err != nil {
				t.Fatal(err)
			}
			runs += stats.RunCount
		}
		program.Close()
	}
}

// commandsOf counts the meter's places of commands that a disk takes: struct command of bio.bpf.c.
func commandsOf(t *testing.T, disk string) (n int) {
	t.Helper()
	const diskAt = 4 * 8
	var stat unix.Stat_t
	if err := unix.Stat(disk, &stat); err != nil {
		t.Fatal(err)
	}
	number := unix.Major(stat.Rdev)<<20 | unix.Minor(stat.Rdev)
	for id := ebpf.MapID(0); ; {
		next, err := ebpf.MapGetNextID(id)
		if errors.Is(err, os.ErrNotExist) {
			t.Fatal("the meter has no map of commands")
		}
		if err != nil {
			t.Fatal(err)
		}
		id = next
		table, err := ebpf.NewMapFromID(id)
		if err != nil {
			t.Fatal(err)
		}
		info, err := table.Info()
		if err != nil {
			t.Fatal(err)
		}
		if info.Name != "commands" {
			table.Close()
			continue
		}
		defer table.Close()
		var key uint32
		value := make([]byte, table.ValueSize())
		each := table.Iterate()
		for each.Next(&key, &value) {
			if binary.NativeEndian.Uint32(value[diskAt:]) == number {
				n++
			}
		}
		if err := each.Err(); err != nil {
			t.Fatal(err)
		}
		return n
	}
}
