// SPDX-License-Identifier: Apache-2.0

package bioview

import (
	"io"
	"math"
	"strings"
	"testing"
	"time"

	"krping/agent/trace/biotrace"
	"krping/bridge/display"
)

func TestLines(t *testing.T) {
	var out strings.Builder
	lines, err := NewLines(&out, []string{"comm", "sector", "queue", "peer", "device_ms", "total", "tag"})
	if err != nil {
		t.Fatal(err)
	}
	if err := lines.Header(); err != nil {
		t.Fatal(err)
	}
	for _, b := range []biotrace.Bio{
		{Comm: "write_data", Sector: 2048, Queue: time.Millisecond, Peer: 2 * time.Millisecond, Total: 4 * time.Millisecond, Tag: 0x1003},
		{Comm: "a", Total: time.Millisecond, Status: 10},
	} {
		if err := lines.Print(&b); err != nil {
			t.Fatal(err)
		}
	}
	const want = `
COMM                SECTOR    QUEUE     PEER DEVICE_MS    TOTAL    TAG
write_data            2048    1.000    2.000     3.000    4.000 0x1003
a                        0        -        -         -    1.000 0x0000 FAILED (status 10)
`
	if "\n"+out.String() != want {
		t.Errorf("lines:%s, want:%s", "\n"+out.String(), want)
	}
	if _, err := NewLines(&out, []string{"comm", "colour"}); err == nil || !strings.Contains(err.Error(), `column "colour": must be one of`) || !strings.Contains(err.Error(), "slowest") {
		t.Errorf("unknown column: %v", err)
	}
	const first = "time pid comm device op flags sector bytes "
	for want, stages := range map[string][]biotrace.Stage{
		"queue send peer finish device_ms total": biotrace.Stages(), "queue device_ms total": {biotrace.StageQueue, biotrace.StageDevice, biotrace.StageTotal}, "total": {biotrace.StageTotal},
	} {
		names := DefaultColumns(stages)
		if got := strings.Join(names, " "); got != first+want {
			t.Errorf("columns %q, want %q", got, first+want)
		}
		if _, err := NewLines(&out, names); err != nil {
			t.Error(err)
		}
	}
	for _, c := range columns {
		if found, ok := find(c.name); !ok || found.about != c.about {
			t.Errorf("column %s cannot be selected", c.name)
		}
	}
}

func TestNumbers(t *testing.T) {
	for _, want := range []struct {
		n        uint64
		width    int
		decimals int
		text     string
	}{
		{0, 3, 0, "  0 "}, {7, 3, 0, "  7 "}, {99, 2, 0, "99 "}, {99, 1, 0, "99 "}, {120, 3, 0, "120 "}, {1234, 3, 0, "1234 "},
		{0, 6, 3, " 0.000 "}, {1, 6, 3, " 0.001 "}, {999, 6, 3, " 0.999 "}, {1000, 6, 3, " 1.000 "}, {12345, 6, 3, "12.345 "},
		{123456, 6, 3, "123.456 "}, {18446744073709551615, 8, 3, "18446744073709551.615 "}, {18446744073709551615, 20, 0, "18446744073709551615 "},
	} {
		add := appendNumber
		if want.decimals > 0 {
			add = appendThousandths
		}
		if got := string(add([]byte("x"), want.width, want.n)); got != "x"+want.text {
			t.Errorf("%d with %d decimals: %q, want %q", want.n, want.decimals, got, "x"+want.text)
		}
	}
}

// The time of day is that of each bio, also when the second is the same as before, or another day's.
func TestTimes(t *testing.T) {
	var out strings.Builder
	lines, err := NewLines(&out, []string{"time", "comm"})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Date(2026, 1, 2, 23, 59, 59, 1999, time.Local)
	for i, b := range []biotrace.Bio{
		{Time: start, Comm: "a\n"}, {Time: start.Add(998999 * time.Microsecond), Comm: "a\n"}, {Time: start.Add(time.Second), Comm: "b"},
		{Time: time.Unix(0, 5000)}, {Time: start.Add(24 * time.Hour), Comm: "a\n"},
	} {
		out.Reset()
		if err := lines.Print(&b); err != nil {
			t.Fatal(err)
		}
		if want := strings.TrimRight(b.Time.Format("15:04:05.000000")+" "+display.Text(b.Comm), " ") + "\n"; out.String() != want {
			t.Errorf("line %d is %q, want %q", i, out.String(), want)
		}
	}
}

func TestSummary(t *testing.T) {
	var s Summary
	start := time.Unix(1000, 0)
	for i := range 100 {
		s.Add(&biotrace.Bio{Time: start.Add(time.Duration(i) * time.Second), Op: "READ", Bytes: 4096, Queue: time.Millisecond, Total: time.Duration(i+1) * time.Millisecond})
	}
	s.Add(&biotrace.Bio{Time: start, Op: "WRITE", Bytes: 512, Total: time.Hour, Status: 1}) // beyond the histogram's range
	var out strings.Builder
	if err := s.Write(&out); err != nil {
		t.Fatal(err)
	}
	if s.Bios() != 101 {
		t.Errorf("%d bios", s.Bios())
	}
	if p50 := s.Quantile("READ", biotrace.StageTotal, 0.5); p50 < 49*time.Millisecond || p50 > 51*time.Millisecond {
		t.Errorf("median of the reads: %v", p50)
	}
	for _, want := range []string{
		"READ         queue       100       409600       0     1.000", "READ         device", "READ         total       100       409600       0     1.000    50.",
		"WRITE        total         1          512       1", "one column is 2.56s, .:-=+*#%@ are 1 to 3 bios", " us |", "759 s |.", "... |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	for _, unwanted := range []string{"WRITE        queue", "READ         peer"} {
		if strings.Contains(out.String(), unwanted) {
			t.Errorf("%q is in\n%s", unwanted, out.String())
		}
	}
}

func TestHeatMapCountsEveryBio(t *testing.T) {
	var h heatMap
	start := time.Unix(1000, 0)
	const bios = 1000
	for i := range bios {
		h.add(start.Add(time.Duration(i*i)*time.Millisecond), time.Duration(i)*time.Microsecond)
	}
	h.add(start.Add(-time.Second), 0) // submitted before the first one, ended after it
	total := uint64(0)
	for _, column := range h.cells {
		for _, n := range column {
			total += n
		}
	}
	if total != bios+1 {
		t.Errorf("%d bios in the map, want %d", total, bios+1)
	}
	if last := time.Duration((bios-1)*(bios-1)) * time.Millisecond; h.width*heatColumns < last || h.width*heatColumns > 2*last {
		t.Errorf("columns of %v for %v", h.width, last)
	}
}

func TestHeatRows(t *testing.T) {
	for latency, want := range map[time.Duration]int{
		0: 0, 1: 0, 1414: 0, 1415: 1, 1999: 1, 2000: 2, 2828: 2, 2829: 3, 4000: 4,
		1023 * time.Microsecond: 19, 1024 * time.Microsecond: 20, time.Hour: heatRows - 1, math.MaxInt64: heatRows - 1,
	} {
		if row := heatRow(latency); row != want {
			t.Errorf("%v is in row %d, want %d", latency, row, want)
		}
	}
}

func TestShades(t *testing.T) {
	if shade(0, 10) != ' ' || shade(1, 1000000) != '.' || shade(1000000, 1000000) != '@' {
		t.Errorf("%c%c%c", shade(0, 10), shade(1, 1000000), shade(1000000, 1000000))
	}
}

// benchmarked is a bio of a krping disk.
func benchmarked() *biotrace.Bio {
	return &biotrace.Bio{
		Time: time.Unix(1000, 0), Comm: "write_data", Device: "krping0", Op: "WRITE", Flags: "SYNC", Sector: 2048, Bytes: 4096,
		Queue: 100 * time.Microsecond, Send: 50 * time.Microsecond, Peer: time.Millisecond, Finish: 40 * time.Microsecond, Total: 2 * time.Millisecond,
	}
}

func BenchmarkSummary(b *testing.B) {
	var s Summary
	bio := benchmarked()
	for b.Loop() {
		s.Add(bio)
	}
}

func BenchmarkLines(b *testing.B) {
	lines, err := NewLines(io.Discard, DefaultColumns(biotrace.Stages()))
	if err != nil {
		b.Fatal(err)
	}
	bio := benchmarked()
	for b.Loop() {
		if err := lines.Print(bio); err != nil {
			b.Fatal(err)
		}
	}
}

// The name of a thread is its owner's choice: it must neither hide nor forge lines.
func TestHostileNames(t *testing.T) {
	var out strings.Builder
	lines, err := NewLines(&out, []string{"comm", "cgroup", "total"})
	if err != nil {
		t.Fatal(err)
	}
	if err := lines.Print(&biotrace.Bio{Comm: "\x1b[2K\rpass: no", CGroup: "/a\nb", Total: time.Millisecond}); err != nil {
		t.Fatal(err)
	}
	if want := `\x1b[2K\x0dpass: no /a\x0ab                 1.000` + "\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}
