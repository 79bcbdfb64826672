// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package tap tests mode=tap inside one VM: /dev/krpingN on a local disk, with krping-bridge as the target over the VM's
// Soft-RoCE device.
package tap

import (
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

const size = 16 << 20 // of volumes and backings

// patient turns keep-alives off, for tests in which nothing may be dropped: a slow machine could answer one too late.
const patient = ",heartbeat=0"

// ramDisk returns a RAM disk of zeros with the size of the volume.
func ramDisk(t *testing.T) string {
	t.Helper()
	disk := guest.RAMDisk(t, size)
	guest.Run(t, "dd", "if=/dev/zero", "of="+disk, "bs=1M", fmt.Sprintf("count=%d", size>>20), "oflag=direct", "status=none")
	return disk
}

func number(t *testing.T, key string) int64 {
	t.Helper()
	value := guest.Session(t, "vol0")[key]
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil {
		t.Fatalf("%s=%q of %v", key, value, guest.Session(t, "vol0"))
	}
	return n
}

// check checks counters of the session.
func check(t *testing.T, want map[string]int64) {
	t.Helper()
	for key, n := range want {
		if got := number(t, key); got != n {
			t.Errorf("%s=%d, want %d", key, got, n)
		}
	}
	if t.Failed() {
		t.Logf("%v", guest.Session(t, "vol0"))
	}
}

// load is verified I/O whose latency is measured.
type load struct{ *guest.Load }

func startFio(t *testing.T, dev string, args ...string) load {
	t.Helper()
	return load{guest.StartFio(t, dev, append([]string{"--serialize_overlap=1", "--blockalign=512", "--size=" + strconv.Itoa(size),
		"--output-format=json"}, args...)...)}
}

// wait waits for the load, which must not see an error, and returns the longest latency.
func (l load) wait(t *testing.T) time.Duration {
	t.Helper()
	out := l.Succeeds()
	type direction struct {
		Latency struct {
			Max int64 `json:"max"`
		} `json:"lat_ns"`
	}
	var report struct {
		Jobs []struct {
			Read  direction `json:"read"`
			Write direction `json:"write"`
		} `json:"jobs"`
	}
	text := out[max(0, strings.IndexByte(out, '{')):]
	if err := json.Unmarshal([]byte(text), &report); err != nil || len(report.Jobs) == 0 {
		t.Fatalf("fio's report: %v\n%s", err, out)
	}
	return time.Duration(max(report.Jobs[0].Read.Latency.Max, report.Jobs[0].Write.Latency.Max))
}

func write(t *testing.T, dev string, args ...string) {
	t.Helper()
	guest.Run(t, append([]string{guest.Binary(t, "krpingctl"), "write", dev, "--direct"}, args...)...)
}

func stop(t *testing.T, options string) {
	t.Helper()
	start := time.Now()
	if err := guest.Command("stop,block=vol0"+options, guest.Limit); err != nil {
		t.Errorf("stop: %v", err)
	}
	if took := time.Since(start); took > guest.Slow(4*time.Second) {
		late.Errorf(t, "stop took %v", took)
	}
}
