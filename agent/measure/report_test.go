// SPDX-License-Identifier: Apache-2.0

package measure

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"krping/proc"
)

func result(test proc.Test, ops uint64, elapsed time.Duration, buckets ...proc.Bucket) proc.Result {
	r := proc.Result{ID: 1, Role: proc.Client, Test: test, Peer: "192.168.77.1:9999", Device: "rxe0", Size: 4096, QPs: 1, TxDepth: 64, Ops: ops, Elapsed: elapsed}
	for i, b := range buckets {
		if i == 0 {
			r.Min = b.Upper
		}
		r.Max = b.Upper
		r.Timed += b.Count
		r.Sum += time.Duration(b.Count) * b.Upper
		r.Histogram = append(r.Histogram, b)
	}
	return r
}

func TestReportOfTwoThreads(t *testing.T) {
	slow := result(proc.ReadLatency, 10, time.Second, proc.Bucket{Upper: 2 * time.Microsecond, Count: 9}, proc.Bucket{Upper: time.Millisecond, Count: 1})
	fast := result(proc.ReadLatency, 990, 500*time.Millisecond, proc.Bucket{Upper: time.Microsecond, Count: 990})
	slow.Start, fast.Start = time.Hour, time.Hour+time.Second // fast starts when slow ends
	r, err := Of(slow, fast)
	if err != nil {
		t.Fatal(err)
	}
	l := r.Latency
	if l == nil || l.Count != 1000 || l.Min != 1000 || l.Max != 1e6 || l.P50 != 1000 || l.P99 != 1000 {
		t.Errorf("latency %+v", l)
	}
	if l.P999 < 2000 || l.P999 > 2010 {
		t.Errorf("p99.9 %d, want 2000, that of the 999th of 1000", l.P999)
	}
	if want := (990*1e3 + 9*2e3 + 1e6) / 1000; math.Abs(l.Avg-want) > 1e-6 || l.HalfNs != l.Avg/2 {
		t.Errorf("average %v and half %v, want %v", l.Avg, l.HalfNs, want)
	}
	if want := 1000 / 1.5; math.Abs(r.OpsPerSecond-want) > 1e-6 || math.Abs(r.GbitPerSecond-want*4096*8/1e9) > 1e-9 {
		t.Errorf("%v operations/s, %v Gbit/s, want %v", r.OpsPerSecond, r.GbitPerSecond, want)
	}
	if r.Threads != 2 || r.Connections != 2 || r.ElapsedNs != 15e8 || r.Operations != 1000 {
		t.Errorf("report %+v", r)
	}
}

// The averages of a long test of many threads are not negative, and its rate is operations over time.
func TestReportOfDays(t *testing.T) {
	const month = 30 * 24 * time.Hour
	one := proc.Result{
		Test: proc.ReadLatency, Size: 8, QPs: 1, Ops: 1e12, Elapsed: month, Timed: 1e12, Sum: month, Min: 1, Max: time.Second,
		Histogram: []proc.Bucket{{Upper: 2592, Count: 1e12}},
	}
	r, err := Of(slices.Repeat([]proc.Result{one}, 4096)...)
	if err != nil {
		t.Fatal(err)
	}
	if want := float64(month) / 1e12; math.Abs(r.Latency.Avg-want) > 1e-6*want || r.Latency.P50 < 2590 || r.Latency.P50 > 2600 {
		t.Errorf("average %v, want %v; median %v", r.Latency.Avg, want, r.Latency.P50)
	}
	if want := 4096e12 / month.Seconds(); math.Abs(r.OpsPerSecond-want) > 1 {
		t.Errorf("%v operations a second, want %v", r.OpsPerSecond, want)
	}
}

func TestReportErrors(t *testing.T) {
	if _, err := Of(); err == nil {
		t.Error("no results: accepted")
	}
	if _, err := Of(result(proc.ReadLatency, 1, 1), result(proc.Bandwidth, 1, 1)); err == nil {
		t.Error("results of two tests: accepted")
	}
	if err := Write(&bytes.Buffer{}, "xml"); err == nil {
		t.Error("format xml: accepted")
	}
}

func TestJSONFollowsTheSchema(t *testing.T) {
	schema, err := jsonschema.NewCompiler().Compile("report.schema.json")
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range []proc.Result{
		result(proc.Bandwidth, 5, time.Second),
		result(proc.Ping, 0, 0),
		result(proc.WriteLatency, 1, time.Second, proc.Bucket{Upper: 100 * time.Second, Count: 1}),
	} {
		report, err := Of(r)
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := Write(&out, "json", report); err != nil {
			t.Fatal(err)
		}
		value, err := jsonschema.UnmarshalJSON(bytes.NewReader(out.Bytes()))
		if err != nil {
			t.Fatal(err)
		}
		if err := schema.Validate(value); err != nil {
			t.Errorf("%s: %v", out.String(), err)
		}
		var fields map[string]any
		if err := json.Unmarshal(out.Bytes(), &fields); err != nil {
			t.Fatal(err)
		}
		fields["version"] = float64(Version + 1)
		if err := schema.Validate(fields); err == nil {
			t.Error("the schema accepts another version")
		}
	}
}

func TestCSVAndTable(t *testing.T) {
	bw, _ := Of(result(proc.Bandwidth, 5, time.Second))
	lat, _ := Of(result(proc.ReadLatency, 1, time.Second, proc.Bucket{Upper: 1500, Count: 1}))
	var out bytes.Buffer
	if err := Write(&out, "csv", bw, lat); err != nil {
		t.Fatal(err)
	}
	rows, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(rows) != 3 || rows[0][0] != "test" || rows[1][0] != "bw" || rows[2][10] != "1500" || rows[1][10] != "" {
		t.Errorf("csv %q, %v", rows, err)
	}
	out.Reset()
	if err := Write(&out, "table", bw, lat); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"Gbit/s", "RTT/2", "p99.9", "1.5"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("table has no %q:\n%s", want, out.String())
		}
	}
}

func TestBetween(t *testing.T) {
	before := result(proc.ReadLatency, 3, time.Second, proc.Bucket{Upper: 10, Count: 2}, proc.Bucket{Upper: 50, Count: 1})
	after := result(proc.ReadLatency, 9, 3*time.Second, proc.Bucket{Upper: 10, Count: 2}, proc.Bucket{Upper: 20, Count: 4}, proc.Bucket{Upper: 50, Count: 3})
	d := Between(Reading{before, time.Minute}, Reading{after, time.Minute + 2*time.Second})
	if d.Ops != 6 || d.Start != time.Minute || d.Elapsed != 2*time.Second || d.Timed != 6 || d.Sum != 180 || d.Min != 20 || d.Max != 50 || len(d.Histogram) != 2 || d.Histogram[1].Count != 2 {
		t.Errorf("%+v", d)
	}
}

// Counts of messages are those of all threads, and the title says what was measured.
func TestMessages(t *testing.T) {
	one := proc.Result{Role: proc.Client, Test: proc.Verbs, Verb: "send", QPType: "uc", Size: 8, QPs: 1, TxDepth: 4, Ops: 5, Elapsed: 1, Sent: 5, Received: 3, Lost: 2, PeakOps: 9, Posts: 5, Completions: 2}
	two := one
	two.PeakOps, two.Damaged = 8, 1
	r, err := Of(one, two)
	if err != nil {
		t.Fatal(err)
	}
	want := Messages{Verb: "send", QueuePair: "uc", Sent: 10, Received: 6, Lost: 4, Damaged: 1, PeakRate: 17, Posts: 10, Completions: 4}
	if r.Messages == nil || *r.Messages != want || r.Title() != "send bw uc" || r.TxDepth != 4 {
		t.Errorf("%+v, %s, want %+v", r.Messages, r.Title(), want)
	}
	two.QPType = "ud"
	if _, err := Of(one, two); err == nil {
		t.Error("results of two types of queue pairs are accepted")
	}
	var out strings.Builder
	if err := Write(&out, "table", r, Report{Test: "rlat", Latency: &Latency{}}); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if len(lines) != 3 || !strings.Contains(lines[0], "RTT/2  peak ops/s  sent  received  lost  damaged") || !strings.HasSuffix(lines[1], "17    10         6     4        1") {
		t.Errorf("the table is\n%s", out.String())
	}
}
