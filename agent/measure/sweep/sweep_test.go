// SPDX-License-Identifier: Apache-2.0

package sweep

import (
	"bytes"
	"encoding/csv"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/measure"
	"krping/proc"
)

func plan(axes ...Axis) Plan {
	return Plan{
		Command:  proc.Command{Role: proc.Client, Addr: netip.MustParseAddr("192.168.77.1"), Test: proc.Bandwidth},
		Grids:    []Grid{{Axes: axes}},
		Duration: time.Second,
	}
}

// verbs changes a plan to measure SENDs.
func verbs(p Plan) Plan {
	p.Command.Test, p.Command.Verb, p.Command.Measure = proc.Verbs, proc.Send, "bw"
	return p
}

func axis(option string, values ...string) Axis { return Axis{option, values} }

func TestPoints(t *testing.T) {
	points, err := plan(axis("size", "64", "4k"), axis("threads", "1", "2"), axis("connections", "1", "10", "500")).Points()
	if err != nil || len(points) != 12 {
		t.Fatalf("%v, %v", points, err)
	}
	last := points[11]
	if last.String() != "4096 bytes, 2 threads of 500 connections" || last.Command.Size != 4096 || last.Command.QPs != 500 || last.Command.TxDepth != 1 || last.value("size") != "4096" {
		t.Errorf("the last point is %s: %s", last, last.Command)
	}
	points, err = verbs(plan(axis("qp", "rc", "uc"), axis("srq", "off", "on"), axis("signal", "4"), axis("connections", "8"))).Points()
	if err != nil || len(points) != 4 {
		t.Fatalf("%v, %v", points, err)
	}
	if got := points[3].Command; got.QPType != "uc" || !got.SRQ || got.Signal != 4 || got.QPs != 8 || got.Duration != time.Second || points[0].Command.SRQ {
		t.Errorf("the last point is %s", got)
	}
}

func TestRefusedPlans(t *testing.T) {
	withDuration := func(d time.Duration, p Plan) Plan {
		p.Duration = d
		return p
	}
	nowhere := plan(axis("size", "64"))
	nowhere.Command.Addr = netip.Addr{}
	rlat := plan(axis("connections", "2"))
	rlat.Command.Test = proc.ReadLatency
	for want, p := range map[string]Plan{
		"must be at most 16384 connections in all": plan(axis("threads", "17"), axis("connections", "1000")),
		"threads 0: must be 1 to 4096":             plan(axis("threads", "0")),
		"connections 1025: must be 1 to 1024":      plan(axis("connections", "1025")),
		"at least one value":                       plan(axis("size")),
		"must be sizes of 1 byte to 1 GiB":         plan(axis("size", "1073741825")),
		"only bw can have several connections":     rlat,
		"must be 100ms or more":                    withDuration(0, plan(axis("size", "64"))),
		"whole seconds":                            withDuration(1500*time.Millisecond, verbs(plan(axis("size", "64")))),
		"an address is needed":                     nowhere,
		"mtu cannot be used with bw":               plan(axis("mtu", "256")),
		"srq maybe: must be on or off":             verbs(plan(axis("srq", "maybe"))),
		"qp \"xc\": must be rc":                    verbs(plan(axis("qp", "xc"))),
		"at most mtu, which is 256":                verbs(plan(axis("size", "64", "512"), axis("qp", "ud"), axis("mtu", "256"))),
		"depth: is no option of a sweep":           plan(axis("depth", "1")),
	} {
		if points, err := p.Points(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, %v, want an error with %q", points, err, want)
		}
	}
}

// Values are written as people do.
func TestAxes(t *testing.T) {
	got, err := NewAxis("size", "4k", "1MiB")
	if err != nil || !slices.Equal(got.Values, []string{"4096", "1048576"}) {
		t.Errorf("sizes: %v, %v", got, err)
	}
	got, err = NewAxis("srq", "true", "off")
	if err != nil || !slices.Equal(got.Values, []string{"on", "off"}) {
		t.Errorf("srq: %v, %v", got, err)
	}
	for option, value := range map[string]string{"size": "0", "txdepth": "0", "threads": "x", "mtu": "100", "nosuch": "1"} {
		if got, err := NewAxis(option, value); err == nil {
			t.Errorf("%s %s: accepted, %v", option, value, got)
		}
	}
}

func TestAllSizes(t *testing.T) {
	for want, axes := range map[string][]Axis{
		"1048576": {axis("qp", "rc", "uc")},
		"1024":    {axis("qp", "rc", "ud")},
		"512":     {axis("mtu", "512", "2048"), axis("qp", "ud")},
	} {
		if sizes := AllSizes(axes).Values; sizes[0] != "2" || sizes[len(sizes)-1] != want {
			t.Errorf("%v: %v, want 2 to %s", axes, sizes, want)
		}
	}
}

// The point that needs most of each kind is tried first.
func TestDemanding(t *testing.T) {
	points, err := verbs(plan(axis("size", "64", "4096"), axis("srq", "off", "on"), axis("threads", "2", "1"), axis("connections", "1", "100"))).Points()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, p := range demanding(points) {
		got = append(got, p.String())
	}
	want := []string{"4096 bytes, 2 threads of 100 connections, srq off", "4096 bytes, 2 threads of 100 connections, srq on"}
	if !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
}

// An error about a limit names the option that raises it.
func TestAdvice(t *testing.T) {
	refused := func(reason string) error {
		return &proc.CommandError{Command: "client", Errno: unix.ECONNREFUSED, Reasons: []string{reason}}
	}
	points, err := verbs(plan(axis("size", "4096"), axis("threads", "2"), axis("connections", "100"))).Points()
	if err != nil {
		t.Fatal(err)
	}
	for want, err := range map[string]error{
		"--ping-max-connections 202":             refused("the server has its maximum of connections: 200"),
		"--max-memory":                           refused("the server has not enough memory or queue pairs for the test: 0"),
		"--ping-max-size 4096":                   refused("size is too large; the server's limit is 64"),
		"fewer --threads":                        &proc.CommandError{Errno: unix.EAGAIN},
		"ulimit -n":                              fmt.Errorf("open: %w", unix.EMFILE),
		"this host or its device has too little": &proc.CommandError{Errno: unix.ENOMEM},
	} {
		if got := advice(err, points[0]); !strings.Contains(got, want) {
			t.Errorf("%v: %q, want %q", err, got, want)
		}
	}
	if got := advice(unix.ETIMEDOUT, points[0]); got != "" {
		t.Errorf("of a time-out: %q", got)
	}
}

func TestReceives(t *testing.T) {
	p := verbs(plan(axis("size", "1000"), axis("srq", "off", "on"), axis("validate", "on"), axis("threads", "2"), axis("connections", "1000")))
	points, err := p.Points()
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{2 * 1000 * 128, 2 * 1000} {
		if got := points[i].Receives(); got != want || points[i].ReceiveBytes() != want*1024 {
			t.Errorf("%s: %d receives of %d bytes, want %d of 1024 each", points[i], got, points[i].ReceiveBytes(), want)
		}
	}
	datagrams, write := points[1], points[0]
	datagrams.Command.QPType, datagrams.Command.Size, write.Command.Verb = "ud", 64, proc.Write
	if got := datagrams.ReceiveBytes(); got != 2*1000*128 {
		t.Errorf("datagrams of 64 bytes take %d bytes, want 128 each", got)
	}
	if write.Receives() != 0 || write.ReceiveBytes() != 0 {
		t.Error("a WRITE takes receives")
	}
}

// row returns the row of a point that was measured.
func row(p Point, rate float64) Row {
	return Row{Point: p, Report: measure.Report{
		Test: string(p.Command.Test), Size: p.Command.Size, Threads: p.Threads, Connections: p.total(), Operations: 1000, ElapsedNs: 1e9, OpsPerSecond: rate, GbitPerSecond: rate,
		CPUNs: 5e8, Messages: messages(p.Command),
	}}
}

func messages(c proc.Command) *measure.Messages {
	if c.Test != proc.Verbs {
		return nil
	}
	return &measure.Messages{Verb: c.Verb, QueuePair: c.QPType, Sent: 1000, Received: 990, Lost: 10, Posts: 1000, Completions: 63}
}

func rowsOf(t *testing.T, p Plan) []Row {
	t.Helper()
	points, err := p.Points()
	if err != nil {
		t.Fatal(err)
	}
	var rows []Row
	for i, point := range points {
		rows = append(rows, row(point, float64(100*(i+1))))
	}
	return rows
}

func TestPictureAndPage(t *testing.T) {
	rows := rowsOf(t, plan(axis("size", "64", "4096"), axis("threads", "1", "2"), axis("connections", "1", "500")))
	rows[1].Report.Latency = &measure.Latency{Count: 1, P50: 1500}
	var svg, html bytes.Buffer
	view := DefaultView
	if err := view.WriteSVG(&svg, rows); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(&svg)
	for {
		_, err := decoder.Token()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
	view.Title, view.Text = "a <sweep>", "It shows & tells."
	if err := view.WriteHTML(&html, rows); err != nil {
		t.Fatal(err)
	}
	text := html.String()
	for _, want := range []string{"a &lt;sweep&gt;", "It shows &amp; tells.", "<td>1000", "Gbit/s", "1.5", "4096 bytes, 500 connections per thread"} {
		if !strings.Contains(text, want) {
			t.Errorf("the page has no %q", want)
		}
	}
	if n := strings.Count(text, "<svg"); n != 3 {
		t.Errorf("the page has %d pictures, want 3", n)
	}
	// The page works offline. XML namespace names are not loaded.
	if loads := regexp.MustCompile(`(src|href)="https?:|url\(http|@import`).FindString(text); loads != "" {
		t.Errorf("the page loads %s", loads)
	}
}

// Charts have connections on the X axis if their number varies, else the first number that does.
func TestLines(t *testing.T) {
	for _, tc := range []struct {
		plan  Plan
		x     string
		names []string
	}{
		{plan(axis("size", "64"), axis("threads", "1", "2")), "connections", []string{"bw"}},
		{plan(axis("size", "64", "128"), axis("threads", "1", "2")), "connections", []string{"64 bytes", "128 bytes"}},
		{verbs(plan(axis("qp", "rc", "ud"), axis("size", "64", "128"))), "size", []string{"qp rc", "qp ud"}},
		{verbs(plan(axis("signal", "1", "2", "4"))), "signal", []string{"send bw "}},
		{verbs(plan(axis("mtu", "256", "512"), axis("size", "64", "128"))), "mtu", []string{"64 bytes", "128 bytes"}},
	} {
		x, lines := linesOf(rowsOf(t, tc.plan), quantityOf("ops/s"))
		var names []string
		for _, l := range lines {
			names = append(names, l.Name)
			if !slices.IsSorted(l.X) || len(l.X) != len(l.Y) || len(l.X) < 2 {
				t.Errorf("%s: %v, %v", l.Name, l.X, l.Y)
			}
		}
		if x != tc.x || !slices.Equal(names, tc.names) {
			t.Errorf("%s: %q, want %s: %q", x, names, tc.x, tc.names)
		}
	}
}

// The table and the CSV have a column for each option that varies, and none for what is not known.
func TestTable(t *testing.T) {
	rows := rowsOf(t, verbs(plan(axis("size", "64"), axis("signal", "1", "16"))))
	rows[1].Packets = 2500
	var out bytes.Buffer
	view := View{Columns: []string{"ops/s", "p50 µs", "lost %", "completions/message", "packets/message", "CPU %", "CPU µs/op", "receives", "receive KiB"}}
	if err := view.WriteTable(&out, rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for i, want := range []string{
		"test bytes threads conns signal ops/s lost % completions/message packets/message CPU % CPU µs/op receives",
		"send bw 64 1 1 1 100 1 0.063 - 50 500.00 128",
		"send bw 64 1 1 16 200 1 0.063 2.50 50 500.00 128",
	} {
		if got := strings.Join(strings.Fields(lines[i]), " "); got != want {
			t.Errorf("line %d: %q, want %q", i, got, want)
		}
	}
	out.Reset()
	if err := WriteCSV(&out, rows); err != nil {
		t.Fatal(err)
	}
	table, err := csv.NewReader(&out).ReadAll()
	if err != nil || len(table) != 3 {
		t.Fatalf("%v, %v", table, err)
	}
	want := map[string]string{"size": "64", "signal": "16", "packets": "2500", "receives": "128", "receive_bytes": "0", "cpu_ns": "500000000", "lost": "10"}
	for name, value := range want {
		if i := slices.Index(table[0], name); i < 0 || table[2][i] != value {
			t.Errorf("%s: column %d of %q, want %s", name, i, table[2], value)
		}
	}
}
