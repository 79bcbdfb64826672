// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"krping/agent/host/rdmalink"
	"krping/agent/trace/biotrace"
	"krping/proc"
)

// fixture is a sampler of a fake host.
type fixture struct {
	t       *testing.T
	dir     string
	sampler *Sampler
	meter   *literalMeter
	clock   time.Time
}

// literalMeter is a fake meter that returns what the test sets.
type literalMeter struct {
	histograms []biotrace.Histogram
	lost       biotrace.Lost
	watched    []string // paths that WatchOnly got, by call
	err        error
}

func (m *literalMeter) WatchOnly(paths []string) error {
	m.watched = append(m.watched, strings.Join(paths, " "))
	return m.err
}

func (m *literalMeter) Read() ([]biotrace.Histogram, biotrace.Lost, error) {
	return m.histograms, m.lost, m.err
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, dir: t.TempDir(), meter: &literalMeter{}, clock: time.Date(2026, 11, 21, 7, 9, 47, 0, time.UTC)}
	mounted, err := proc.NewFS(f.dir)
	if err != nil {
		t.Fatal(err)
	}
	f.sampler = New(mounted)
	f.sampler.Use(f.meter, nil)
	f.sampler.now = func() time.Time { return f.clock }
	f.sampler.list = func() ([]rdmalink.Link, error) {
		return []rdmalink.Link{port("rxe0", "ACTIVE", "eth0")}, nil
	}
	return f
}

// port returns a device with one port.
func port(name, state, netdev string) rdmalink.Link {
	return rdmalink.Link{Name: name, Ports: []rdmalink.Port{{Number: 1, State: state, Netdev: netdev}}}
}

// sessions sets the lines of /proc/krping_sessions.
func (f *fixture) sessions(lines ...string) {
	f.t.Helper()
	if err := os.WriteFile(filepath.Join(f.dir, "krping_sessions"), []byte(strings.Join(lines, "\n")+"\n"), 0o644); err != nil {
		f.t.Fatal(err)
	}
}

// after takes a sample d after the last one.
func (f *fixture) after(d time.Duration) Sample {
	f.clock = f.clock.Add(d)
	return f.sampler.Sample()
}

func vol0(more string) string {
	return "id=0 name=vol0 role=client mode=remote dev=krping0 state=live peer=192.168.77.1:9999 ibdev=rxe0 size=67108864 queues=2 depth=128 inflight=31 " + more
}

func TestRates(t *testing.T) {
	f := newFixture(t)
	f.sessions(vol0("reads=100 read_bytes=1000 writes=5 write_bytes=4096 errors=3 reconnects=1"))
	first := f.sampler.Sample()
	if s := first.Sessions[0]; first.Interval != 0 || s.Read.OpsPerSecond != 0 || s.Read.Ops != (Count{100, 0}) || s.Errors != (Count{3, 0}) {
		t.Errorf("the first sample has rates or deltas: %+v", first)
	}
	f.sessions(vol0("reads=110 read_bytes=41960 writes=5 write_bytes=4096 errors=4 reconnects=1"))
	sample := f.after(2 * time.Second)
	want := Session{
		Name: "vol0", Role: "client", Mode: "remote", Device: "krping0", State: "live", Peer: "192.168.77.1:9999", IBDev: "rxe0", Size: 64 << 20,
		Read:     Flow{Ops: Count{110, 10}, Bytes: Count{41960, 40960}, OpsPerSecond: 5, BytesPerSecond: 20480},
		Write:    Flow{Ops: Count{5, 0}, Bytes: Count{4096, 0}},
		Inflight: 31, Depth: 256, Errors: Count{4, 1}, Reconnects: Count{1, 0},
	}
	if got := sample.Sessions[0]; !reflect.DeepEqual(got, want) {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if sample.Interval != 2*time.Second || !reflect.DeepEqual(sample.Problems, []string{"vol0: errors: 1"}) {
		t.Errorf("%v, %q", sample.Interval, sample.Problems)
	}
}

func TestNewAndRemovedSessions(t *testing.T) {
	f := newFixture(t)
	f.sessions()
	f.sampler.Sample()
	f.sessions(vol0("writes=7 write_bytes=700"), strings.ReplaceAll(vol0("reads=9"), "role=client mode=remote dev=krping0", "role=target mode=remote dev=-"))
	sample := f.after(time.Second)
	if len(sample.Sessions) != 2 || sample.Sessions[0].Write.Bytes != (Count{700, 700}) {
		t.Errorf("a new session's counts must be of its first interval: %+v", sample.Sessions)
	}
	if target := sample.Sessions[1]; target.Device != "" || target.Read.Ops.Delta != 9 || target.Latencies != nil {
		t.Errorf("served volume: %+v", target)
	}
	f.sessions(vol0("writes=2 write_bytes=50")) // stopped and attached again
	if s := f.after(time.Second).Sessions[0]; s.Write.Bytes != (Count{50, 50}) {
		t.Errorf("a session that was attached again: %+v", s.Write)
	}
	f.sessions()
	if s := f.after(time.Second).Sessions; s == nil || len(s) != 0 {
		t.Errorf("no session: %+v, want an empty list", s)
	}
	if want := []string{"", "/dev/krping0", "/dev/krping0", ""}; !reflect.DeepEqual(f.meter.watched, want) {
		t.Errorf("the meter watched %q, want %q", f.meter.watched, want)
	}
}

func TestLatencies(t *testing.T) {
	f := newFixture(t)
	f.sessions(vol0(""))
	f.meter.histograms = []biotrace.Histogram{
		{Device: "krping0", Op: "WRITE", Stage: biotrace.StageTotal, Count: 2, Sum: 2 * time.Second, Buckets: map[int]uint64{0: 2}},
	}
	f.sampler.Sample()
	f.meter.histograms = []biotrace.Histogram{
		{Device: "krping0", Op: "FLUSH", Stage: biotrace.StageTotal, Count: 1, Sum: time.Second, Buckets: map[int]uint64{0: 1}},
		{Device: "krping0", Op: "WRITE", Stage: biotrace.StageTotal, Count: 6, Sum: 18 * time.Second, Buckets: map[int]uint64{0: 3, 16: 3}},
		{Device: "krping0", Op: "WRITE", Stage: biotrace.StageQueue, Count: 4, Sum: 8 * time.Second, Buckets: map[int]uint64{8: 4}},
		{Device: "krping0", Op: "READ", Stage: biotrace.StageTotal, Count: 0},
		{Device: "krping1", Op: "WRITE", Stage: biotrace.StageTotal, Count: 9, Sum: time.Second, Buckets: map[int]uint64{0: 9}},
	}
	s := f.after(time.Second).Sessions[0]
	want := []Latency{
		{Op: "WRITE", Stage: "queue", Count: 4, Mean: 2 * time.Second, P50: 2 * time.Second, P99: 2 * time.Second, Max: 2 * time.Second},
		{Op: "WRITE", Stage: "total", Count: 4, Mean: 4 * time.Second, P50: 4 * time.Second, P99: 4 * time.Second, Max: 4 * time.Second},
		{Op: "FLUSH", Stage: "total", Count: 1, Mean: time.Second, P50: time.Second, P99: time.Second, Max: time.Second},
	}
	for i := range s.Latencies { // quantiles are only as exact as their buckets
		for _, d := range []*time.Duration{&s.Latencies[i].P50, &s.Latencies[i].P99, &s.Latencies[i].Max} {
			*d = d.Round(time.Second)
		}
	}
	if !reflect.DeepEqual(s.Latencies, want) {
		t.Errorf("got %+v\nwant %+v", s.Latencies, want)
	}
	if want := map[int]uint64{0: 2, 16: 3}; !reflect.DeepEqual(s.Heat, want) {
		t.Errorf("heat %v, want %v", s.Heat, want)
	}
	if s := f.after(time.Second).Sessions[0]; s.Latencies != nil || s.Heat != nil {
		t.Errorf("latencies of an interval without bios: %+v", s)
	}
}

func TestProblems(t *testing.T) {
	f := newFixture(t)
	f.sessions(vol0(""))
	f.sampler.Sample()
	f.sessions(
		strings.Replace(vol0("crc_errors=2 reconnects=1"), "state=live", "state=reconnecting", 1),
		"id=1 name=vol1 role=client mode=tap dev=krping1 state=live dropped=5 mismatches=1",
		"id=0 name=vol3 role=target mode=remote dev=- state=no_device",
	)
	f.sampler.list = func() ([]rdmalink.Link, error) {
		return []rdmalink.Link{port("rxe0", "DOWN", "")}, nil
	}
	f.meter.lost.Bios = []uint64{1, 3}
	want := []string{
		"vol0: reconnecting", "vol0: CRC errors: 2", "vol0: reconnects: 1",
		"vol1: requests dropped by its tap: 5", "vol1: reads that differ at the target: 1",
		"vol3: no device", "the port of rxe0 is DOWN",
		"latencies are incomplete: bios or stages not measured: 4",
	}
	if got := f.after(linksInterval).Problems; !reflect.DeepEqual(got, want) {
		t.Errorf("got %q\nwant %q", got, want)
	}
}

// A port is missed if it was active before, or if a session uses its device and no other port of it is active.
// One that is down has nothing plugged in otherwise.
func TestPortProblems(t *testing.T) {
	ports := func(states ...string) rdmalink.Link {
		l := rdmalink.Link{Name: "mlx4_0"}
		for i, state := range states {
			l.Ports = append(l.Ports, rdmalink.Port{Number: i + 1, State: state})
		}
		return l
	}
	const of = "the port of "
	for name, tc := range map[string]struct {
		session       string // its RDMA device
		before, after rdmalink.Link
		want          []string
	}{
		"unused":              {"rxe0", ports("DOWN"), ports("DOWN"), nil},
		"used":                {"mlx4_0", ports("DOWN"), ports("INIT"), []string{of + "mlx4_0 is INIT"}},
		"went down":           {"rxe0", ports("ACTIVE"), ports("DOWN"), []string{of + "mlx4_0 is DOWN"}},
		"second port is free": {"mlx4_0", ports("ACTIVE", "DOWN"), ports("ACTIVE", "DOWN"), nil},
		"one of two is gone":  {"mlx4_0", ports("ACTIVE", "ACTIVE"), ports("ACTIVE", "DOWN"), []string{of + "mlx4_0/2 is DOWN"}},
		"both are gone":       {"mlx4_0", ports("DOWN", "DOWN"), ports("DOWN", ""), []string{of + "mlx4_0/1 is DOWN", of + "mlx4_0/2 is in an unknown state"}},
		"came back":           {"mlx4_0", ports("DOWN", "DOWN"), ports("DOWN", "ACTIVE"), nil},
	} {
		f := newFixture(t)
		f.sessions(strings.Replace(vol0(""), "ibdev=rxe0", "ibdev="+tc.session, 1))
		f.sampler.list = func() ([]rdmalink.Link, error) { return []rdmalink.Link{tc.before}, nil }
		f.sampler.Sample()
		f.sampler.list = func() ([]rdmalink.Link, error) { return []rdmalink.Link{tc.after}, nil }
		if got := f.after(linksInterval).Problems; strings.Join(got, "\n") != strings.Join(tc.want, "\n") {
			t.Errorf("%s: problems %q, want %q", name, got, tc.want)
		}
	}
}

// The list of devices is as old as linksInterval at most, and no reading asks the kernel for it in between.
func TestLinksAreListedSeldom(t *testing.T) {
	f := newFixture(t)
	var listed int
	f.sampler.list = func() ([]rdmalink.Link, error) {
		listed++
		return []rdmalink.Link{port("rxe0", "ACTIVE", "")}, nil
	}
	for range 11 {
		if s := f.after(linksInterval / 5); len(s.Links) != 1 {
			t.Errorf("links %v", s.Links)
		}
	}
	if listed != 3 {
		t.Errorf("listed %d times in 10 fifths of the interval, want 3", listed)
	}
}

// A source that cannot be read is reported and does not hide the others.
func TestUnreadableSources(t *testing.T) {
	f := newFixture(t)
	if s := f.sampler.Sample(); s.Loaded || s.Sessions == nil || len(s.Links) != 1 || !strings.Contains(strings.Join(s.Problems, ""), "not loaded") {
		t.Errorf("module not loaded: %+v", s)
	}
	f.sessions("nonsense")
	if s := f.after(time.Second); !s.Loaded || !strings.Contains(strings.Join(s.Problems, ""), "nonsense") {
		t.Errorf("unreadable sessions: %+v", s)
	}
	f.sessions(vol0("writes=3"))
	f.meter.err = errors.New("no BTF")
	s := f.after(time.Second)
	if len(s.Sessions) != 1 || len(s.Problems) != 1 || s.Problems[0] != "no BTF" || s.NoLatencies != "no BTF" {
		t.Errorf("a meter that fails: %+v", s)
	}
	f.meter.err = nil
	f.sampler.Use(f.meter, errors.New("tracing needs root"))
	if s := f.after(time.Second); s.NoLatencies != "tracing needs root" || len(s.Sessions) != 1 || len(s.Problems) != 0 {
		t.Errorf("without a meter: %+v", s)
	}
}

// readOnlyMeter is a meter without WatchOnly.
type readOnlyMeter struct{ of *literalMeter }

func (m readOnlyMeter) Read() ([]biotrace.Histogram, biotrace.Lost, error) { return m.of.Read() }

func TestLoadMeter(t *testing.T) {
	f := newFixture(t)
	f.sessions(vol0(""))
	f.meter.histograms = []biotrace.Histogram{
		{Device: "krping0", Op: "WRITE", Stage: biotrace.StageTotal, Count: 1, Sum: time.Second, Buckets: map[int]uint64{0: 1}},
	}
	f.sampler.Use(nil, nil)
	loaded := make(chan Meter)
	f.sampler.Load(func() (Meter, error) { return <-loaded, nil })
	if s := f.sampler.Sample(); !strings.Contains(s.NoLatencies, "being loaded") {
		t.Errorf("no latencies: %q", s.NoLatencies)
	}
	loaded <- readOnlyMeter{f.meter}
	use := <-f.sampler.loaded // sent when the meter is loaded
	f.sampler.loaded <- use
	if s := f.after(time.Second); s.NoLatencies != "" || len(s.Sessions[0].Latencies) != 1 {
		t.Errorf("the meter is not used: %+v", s)
	}
	if len(f.meter.watched) != 0 {
		t.Errorf("the meter watched %q", f.meter.watched)
	}
}

func TestRun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		f.sampler.now = time.Now
		f.sessions(vol0(""))
		n := 0
		err := f.sampler.Run(t.Context(), time.Second, func(s Sample) error {
			if n++; s.Interval != time.Second {
				t.Errorf("interval %v, want 1s", s.Interval)
			}
			if n == 3 {
				return io.EOF
			}
			return nil
		})
		if !errors.Is(err, io.EOF) || n != 3 {
			t.Errorf("%d samples, %v", n, err)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if err := f.sampler.Run(ended, time.Hour, nil); err != nil {
			t.Error(err)
		}
	})
}

// The names in JSON are an interface to the web page and to users' scripts.
func TestJSON(t *testing.T) {
	f := newFixture(t)
	f.sessions(vol0("writes=5 write_bytes=4096"))
	f.sampler.Sample()
	f.sessions(vol0("writes=6 write_bytes=8192"))
	f.meter.histograms = []biotrace.Histogram{
		{Device: "krping0", Op: "WRITE", Stage: biotrace.StageTotal, Count: 1, Sum: time.Second, Buckets: map[int]uint64{-8: 1}},
	}
	sample := f.after(time.Second)
	for i := range sample.Sessions[0].Latencies {
		l := &sample.Sessions[0].Latencies[i]
		l.P50, l.P99, l.Max = 1, 2, 3
	}
	got, err := json.Marshal(sample)
	if err != nil {
		t.Fatal(err)
	}
	want := `{"time":"2026-11-21T07:09:48Z","interval_ns":1000000000,"module_loaded":true,` +
		`"sessions":[{"name":"vol0","role":"client","mode":"remote","device":"krping0","state":"live","peer":"192.168.77.1:9999","ibdev":"rxe0","size":67108864,` +
		`"read":{"ops":{"total":0,"delta":0},"bytes":{"total":0,"delta":0},"ops_per_second":0,"bytes_per_second":0},` +
		`"write":{"ops":{"total":6,"delta":1},"bytes":{"total":8192,"delta":4096},"ops_per_second":1,"bytes_per_second":4096},` +
		`"inflight":31,"depth":256,"errors":{"total":0,"delta":0},"crc_errors":{"total":0,"delta":0},"retries":{"total":0,"delta":0},` +
		`"reconnects":{"total":0,"delta":0},"stalls":{"total":0,"delta":0},` +
		`"latencies":[{"op":"WRITE","stage":"total","count":1,"mean_ns":1000000000,"p50_ns":1,"p99_ns":2,"max_ns":3}],"heat":{"-8":1}}],` +
		`"rdma_devices":[{"name":"rxe0","node_guid":"","ports":[{"port":1,"state":"ACTIVE","netdev":"eth0"}]}],"problems":[]}`
	if string(got) != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
