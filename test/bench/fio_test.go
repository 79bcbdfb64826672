// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"math"
	"os"
	"strings"
	"testing"
)

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile("testdata/" + name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

func near(a, b float64) bool { return math.Abs(a-b) <= 1e-6*math.Abs(b) }

func TestParseFIO(t *testing.T) {
	r, err := parseFIO(read(t, "fio.json"))
	if err != nil {
		t.Fatal(err)
	}
	s := r.sample()
	if !near(s.IOPS, 192865.546218+82831.932773) || !near(s.BytesPerSecond, 789977277+339279596) {
		t.Errorf("throughput: %+v", s)
	}
	if !near(s.P50, 1.752) || !near(s.P99, 2.960) { // the writes', which are slower
		t.Errorf("latency: %+v", s)
	}
	for _, out := range []string{
		"", "fio: engine foo not loadable\n", "{", `{"jobs": []}`, `{"jobs": [{}, {}]}`, `{"jobs": [{"error": 5, "read": {"total_ios": 1}}]}`,
		`{"jobs": [{"error": 0, "read": {"total_ios": 0}, "write": {"total_ios": 0}}]}`, `{"jobs": 1}`,
	} {
		if r, err := parseFIO(out); err == nil {
			t.Errorf("%q: %+v", out, r)
		}
	}
}

func TestJobs(t *testing.T) {
	names := map[string]bool{}
	for _, j := range AllJobs() {
		if names[j.Name] {
			t.Errorf("%s is there twice", j.Name)
		}
		names[j.Name] = true
	}
	for _, name := range []string{"4k-randread-qd1", "4k-randwrite-qd32", "4k-randrw-qd32-x2", "64k-randread-qd32", "1m-randrw-qd1", "4k-randwrite-qd1-polled"} {
		if !names[name] {
			t.Errorf("%s is missing", name)
		}
	}
	if len(names) != 26 {
		t.Errorf("%d jobs", len(names))
	}
	o := FIO{Engine: "io_uring", Runtime: 5e9, Ramp: 1e9, Batch: 8}
	if polled := o.measure("/dev/x", Job{Polled: true}); !strings.Contains(polled, " --ioengine=io_uring --hipri=1 ") {
		t.Errorf("not polled: %s", polled)
	}
	mix := o.measure("/dev/x", newJob("randrw", 1<<20, 32, 2))
	for _, want := range []string{"--filename=/dev/x", "--bs=1048576", "--iodepth=32", "--numjobs=2", "--runtime=5000ms", "--ramp_time=1000ms", "--rwmixread=70", "--iodepth_batch_submit=8"} {
		if !strings.Contains(mix, want+" ") && !strings.HasSuffix(mix, want) {
			t.Errorf("no %s in %s", want, mix)
		}
	}
}
