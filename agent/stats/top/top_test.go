// SPDX-License-Identifier: Apache-2.0

package top

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"krping/agent/host/rdmalink"
	"krping/agent/stats/sampler"
)

var update = flag.Bool("update", false, "update the golden files")

// golden compares a screen with testdata/NAME.golden.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if *update {
		if err := os.WriteFile(path, []byte(got+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got+"\n" != string(want) {
		t.Errorf("differs from %s (update it with go test -update):\n%s", path, got)
	}
}

// fits checks that the screen has at most height lines of at most width columns.
func fits(t *testing.T, screen string, width, height int) {
	t.Helper()
	lines := strings.Split(screen, "\n")
	if len(lines) > height {
		t.Errorf("%dx%d: %d lines", width, height, len(lines))
	}
	for _, line := range lines {
		if n := utf8.RuneCountInString(line); n > width {
			t.Errorf("%dx%d: %d columns in %q", width, height, n, line)
		}
	}
}

func session(name string, factor float64) sampler.Session {
	latency := func(op, stage string, p50 time.Duration) sampler.Latency {
		return sampler.Latency{Op: op, Stage: stage, Count: 1843, P50: p50, P99: 7 * p50, Max: 31 * p50}
	}
	var latencies []sampler.Latency
	for _, op := range []string{"READ", "WRITE"} {
		for i, stage := range stages {
			latencies = append(latencies, latency(op, stage, time.Duration(137*(i*i*i+1))*time.Microsecond))
		}
	}
	return sampler.Session{
		Name: name, Role: "client", Mode: "remote", Device: "krping0", State: "live", Peer: "192.168.77.1:9999", IBDev: "rxe0", Size: 64 << 20,
		Read:     sampler.Flow{Bytes: sampler.Count{Total: 1234567890}, OpsPerSecond: 1843 * factor, BytesPerSecond: 7.55e6 * factor},
		Write:    sampler.Flow{Bytes: sampler.Count{Total: 4 << 20}, OpsPerSecond: 921 * factor, BytesPerSecond: 3.77e6 * factor},
		Inflight: 31, Depth: 256, Stalls: sampler.Count{Total: 12}, Latencies: latencies,
	}
}

func sampleOf(sessions ...sampler.Session) sampler.Sample {
	return sampler.Sample{
		Time: time.Date(2026, 11, 21, 7, 9, 47, 0, time.Local), Interval: time.Second, Loaded: true, Sessions: sessions,
		Links: []rdmalink.Link{{Name: "rxe0", Ports: []rdmalink.Port{{Number: 1, State: "ACTIVE", Netdev: "eth0"}}}},
	}
}

func screen(width, height int) view {
	v := view{width: width, height: height, host: "vm1", styles: plain(), history: map[key]history{}}
	var h history
	for i := range 60 {
		h.read = append(h.read, float64(i%17))
		h.write = append(h.write, float64((i*i)%23))
	}
	h.write[59] = 0
	v.history[key{"client", "vol0"}] = h
	return v
}

func TestScreens(t *testing.T) {
	reconnecting := session("vol1", 0)
	reconnecting.State, reconnecting.IBDev, reconnecting.Latencies = "reconnecting", "", nil
	reconnecting.Reconnects, reconnecting.Errors = sampler.Count{Total: 2, Delta: 1}, sampler.Count{Total: 3, Delta: 3}
	served := sampler.Session{Name: "a-volume-with-a-long-name", Role: "target", Mode: "remote", State: "live", Peer: "[fd77::1]:9999", IBDev: "rxe0", Size: 1 << 30, Depth: 128}
	flushed := session("vol0", 1)
	flushed.Latencies = append(flushed.Latencies, sampler.Latency{Op: "WRITE_ZEROES", Stage: "total", Count: 3, P50: time.Second, P99: 11 * time.Second, Max: time.Minute})
	withProblems := sampleOf(session("vol0", 1), reconnecting, served)
	withProblems.Problems = []string{"vol1: reconnecting", "vol1: errors: 3", "vol1: reconnects: 1", "the port of rxe1 is DOWN"}
	withProblems.Links = append(withProblems.Links, rdmalink.Link{Name: "rxe1", Ports: []rdmalink.Port{{Number: 1, State: "DOWN"}}})
	untraced := sampleOf(session("vol0", 1))
	untraced.NoLatencies = "load the trace program: tracing needs root (CAP_BPF and CAP_PERFMON): operation not permitted"

	hidden := sampleOf()
	hidden.Hidden, hidden.Problems = true, []string{"open /proc/krping_sessions: permission denied: only root with CAP_SYS_ADMIN may read it"}

	for name, tc := range map[string]struct {
		sample sampler.Sample
		change func(*view)
	}{
		"one":        {sampleOf(session("vol0", 1)), nil},
		"one-120x40": {sampleOf(flushed), func(v *view) { v.width, v.height = 120, 40 }},
		"problems":   {withProblems, nil},
		"served":     {withProblems, func(v *view) { v.selected = key{"target", served.Name} }},
		"lost":       {withProblems, func(v *view) { v.selected = key{"client", "vol1"}; v.paused = true }},
		"untraced":   {untraced, nil},
		"idle":       {sampleOf(sampler.Session{Name: "vol0", Role: "client", Device: "krping0", State: "live", IBDev: "rxe0"}), func(v *view) { clear(v.history) }},
		"help":       {sampleOf(session("vol0", 1)), func(v *view) { v.help = true }},
		"none":       {sampleOf(), nil},
		"not-loaded": {sampler.Sample{Time: sampleOf().Time, Interval: time.Second, Problems: []string{"the module rdma_krping is not loaded"}}, nil},
		"hidden":     {hidden, nil},
		"tiny":       {sampleOf(session("vol0", 1)), func(v *view) { v.width, v.height = 20, 3 }},
		"smallest":   {withProblems, func(v *view) { v.width, v.height = minWidth, minHeight }},
	} {
		t.Run(name, func(t *testing.T) {
			v := screen(80, 24)
			if tc.change != nil {
				tc.change(&v)
			}
			got := render(tc.sample, v)
			fits(t, got, v.width, v.height)
			golden(t, name, got)
		})
	}
}

// The screen fits terminals of any size, and colours do not change its text.
func TestEverySizeFits(t *testing.T) {
	var sessions []sampler.Session
	for i := range 30 {
		sessions = append(sessions, session(fmt.Sprintf("volume%d", i), float64(i)))
	}
	s := sampleOf(sessions...)
	s.Problems = []string{strings.Repeat("long ", 50), "b", "c", "d"}
	colours := regexp.MustCompile("\x1b\\[[0-9;]*m")
	for _, width := range []int{1, 2, 10, 59, 60, 79, 80, 81, 100, 300} {
		for _, height := range []int{1, 2, 11, 12, 15, 24, 25, 50, 100} {
			v := screen(width, height)
			without := render(s, v)
			fits(t, without, width, height)
			v.styles = coloured()
			if with := colours.ReplaceAllString(render(s, v), ""); with != without {
				t.Errorf("%dx%d: colours change the text:\n%s\nwithout:\n%s", width, height, with, without)
			}
		}
	}
}

func TestText(t *testing.T) {
	s := sampleOf(session("vol0", 1), session("vol1", 2))
	s.Problems = []string{"vol0: errors: 1"}
	golden(t, "text", Text(s, "vm1"))
}

func newModel() *model {
	m := &model{view: screen(80, 24)}
	m.Update(sampleOf(session("vol0", 1), session("vol1", 3), session("vol2", 2)))
	return m
}

func press(m *model, keys ...string) {
	for _, k := range keys {
		code := map[string]rune{"up": tea.KeyUp, "down": tea.KeyDown, "esc": tea.KeyEscape, "space": tea.KeySpace}[k]
		if code == 0 {
			code = rune(k[0])
		}
		m.Update(tea.KeyPressMsg{Code: code, Text: strings.TrimPrefix(k, "space")})
	}
}

func TestSelect(t *testing.T) {
	m := newModel()
	for _, tc := range []struct{ keys, want string }{
		{"up", "vol0"}, {"down", "vol1"}, {"down down down", "vol2"}, {"k", "vol1"}, {"s", "vol1"}, {"up up", "vol1"}, {"j", "vol2"},
	} {
		press(m, strings.Fields(tc.keys)...)
		if m.view.selected.name != tc.want {
			t.Errorf("after %s: %s, want %s", tc.keys, m.view.selected.name, tc.want)
		}
	}
	m.Update(sampleOf(session("vol7", 1))) // the selected one has gone
	if text := m.View().Content; !strings.Contains(text, "▸ vol7") {
		t.Errorf("nothing is selected:\n%s", text)
	}
	m.Update(sampleOf())
	press(m, "down")
}

func TestOrder(t *testing.T) {
	m := newModel()
	m.shown.Sessions[0].Latencies[5].P99 = time.Hour
	for _, want := range []string{"vol1 vol2 vol0", "vol1 vol2 vol0", "vol0 vol1 vol2", "vol0 vol1 vol2"} {
		press(m, "s")
		var names []string
		for _, s := range m.view.order.sorted(m.shown.Sessions) {
			names = append(names, s.Name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("by %s: %s, want %s", m.view.order, got, want)
		}
	}
}

func TestPause(t *testing.T) {
	m := newModel()
	before := m.View().Content
	press(m, "p")
	m.Update(sampleOf(session("other", 1)))
	if got := strings.Replace(m.View().Content, "   PAUSED", "", 1); got != before {
		t.Errorf("the paused screen changed:\n%s", got)
	}
	press(m, "p")
	if got := m.View().Content; !strings.Contains(got, "other") || strings.Contains(got, "PAUSED") {
		t.Errorf("it did not resume:\n%s", got)
	}
}

func TestHelpAndQuit(t *testing.T) {
	m := newModel()
	press(m, "?")
	if got := m.View().Content; !strings.Contains(got, "throughput, IOPS, latency") {
		t.Errorf("no help:\n%s", got)
	}
	press(m, "esc")
	if got := m.View().Content; !strings.Contains(got, "vol0") {
		t.Errorf("help is still shown:\n%s", got)
	}
	for _, key := range []tea.KeyPressMsg{{Code: 'q', Text: "q"}, {Code: 'c', Mod: tea.ModCtrl}} {
		_, cmd := m.Update(key)
		if cmd == nil || cmd() != tea.Quit() {
			t.Errorf("%s does not quit", key)
		}
	}
}

// Names are others' choice: they must neither hide nor forge lines.
func TestHostileNames(t *testing.T) {
	s := session("vol\x1b[2K\r0", 1)
	s.State, s.Peer, s.IBDev, s.Device = "live\x1b[1A", "192.168.77.1:9999\nERR", "rxe\x07", "krp\x9bing0"
	hostile := sampleOf(s)
	hostile.Problems = []string{"vol0: \x1b[31merrors: 0\n !"}
	hostile.NoLatencies = "\x1b]0;title\x07"
	hostile.Links = []rdmalink.Link{{Name: "rx\re0", Ports: []rdmalink.Port{{State: "ACTIVE", Netdev: "eth\x1b0"}}}}
	plainLines := strings.Count(Text(sampleOf(session("vol0", 1)), "vm1"), "\n")
	for name, text := range map[string]string{"text": Text(hostile, "vm1"), "screen": render(hostile, screen(120, 40))} {
		if strings.ContainsAny(text, "\x1b\r\x07\u009b") || !strings.Contains(text, `vol\x1b[2K`) {
			t.Errorf("%s:\n%q", name, text)
		}
		if lines := strings.Count(text, "\n"); name == "text" && lines > plainLines {
			t.Errorf("%d lines, of a session without tricks %d:\n%q", lines, plainLines, text)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	m := &model{}
	for range historyLength + 10 {
		m.Update(sampleOf(session("vol0", 1)))
	}
	if n := len(m.history[key{"client", "vol0"}].read); n != historyLength {
		t.Errorf("%d values", n)
	}
	m.Update(sampleOf())
	if len(m.history) != 0 {
		t.Error("the history of a session that has gone is kept")
	}
}

func TestNumbers(t *testing.T) {
	for _, tc := range []struct{ got, want string }{
		{rate(0), "0 B/s"}, {rate(999), "999 B/s"}, {rate(999.6), "1.00 kB/s"}, {rate(12345678), "12.3 MB/s"}, {rate(9.999e9), "10.0 GB/s"}, {rate(5e15), "5000 TB/s"},
		{iops(0), "0"}, {iops(99999), "99999"}, {iops(123456), "123k"}, {iops(2.5e6), "2.50M"},
		{latency(0), "0 µs"}, {latency(137 * time.Microsecond), "137 µs"}, {latency(999600), "1.00 ms"}, {latency(12 * time.Millisecond), "12.0 ms"}, {latency(90 * time.Second), "90.0 s"},
		{sparkline([]float64{0, 1, 50, 100}, 6), "  ▁▂▅█"}, {sparkline([]float64{1, 2, 0, 0}, 2), "▁▁"}, {sparkline(nil, 0), ""},
		{shorten("volume", 6), "volume"}, {shorten("volumes", 6), "volum…"},
	} {
		if tc.got != tc.want {
			t.Errorf("got %q, want %q", tc.got, tc.want)
		}
	}
}
