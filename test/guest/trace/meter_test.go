// SPDX-License-Identifier: Apache-2.0

//go:build lab

package trace

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"krping/agent/trace/biotrace"
	"krping/test/guest/internal/guest"
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
	histograms, lost, err := meter.Read()
	if err != nil || lost.Any() {
		t.Fatalf("read: %v, lost %v", err, lost)
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
		t.Errorf("%s, stage %v: the histogram has %d bios with a sum of %v, the trace %d with %v", h.Op, h.Stage, h.Count, h.Sum, count, sum)
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
