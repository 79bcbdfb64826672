// SPDX-License-Identifier: Apache-2.0

// Package sampler samples the activity of krping's sessions: rates, latencies by stage, queue depth,
// errors, and problems. `krpingctl top` and the agent's web page show the samples.
package sampler

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"
	"time"

	"krping/agent/host/rdmalink"
	"krping/agent/trace/biotrace"
	"krping/proc"
)

// Meter measures the latencies of block devices. If it has the method WatchOnly, as *biotrace.Meter
// has, the sampler tells it which.
type Meter interface {
	Read() ([]biotrace.Histogram, biotrace.Lost, error)
}

type watcher interface {
	WatchOnly(paths []string) error
}

// Sampler computes samples from successive readings. It must be used by one goroutine only.
type Sampler struct {
	proc    proc.FS
	meter   Meter       // nil: no latencies
	noMeter string      // why there is no meter
	loaded  chan func() // sets the meter once it is loaded

	now  func() time.Time
	list func() ([]rdmalink.Link, error) // rdmalink.List

	last     time.Time // of the last reading; zero before the first
	links    []rdmalink.Link
	noLinks  error           // why links could not be listed
	listed   time.Time       // when links were; zero before
	active   map[string]bool // ports that were active, by name
	sessions map[sessionKey]proc.Session
	meters   map[meterKey]biotrace.Histogram
	lost     uint64
}

// sessionKey identifies a session between readings.
type sessionKey struct {
	role, name string
	id         int
}

type meterKey struct {
	device, op string
	stage      biotrace.Stage
}

// linksInterval is how often the RDMA devices are listed: see rdmalink.List.
const linksInterval = 5 * time.Second

// New returns a Sampler. It has no latencies before Use or Load.
func New(mounted proc.FS) *Sampler {
	return &Sampler{
		proc: mounted, noMeter: "not measured", loaded: make(chan func(), 1), now: time.Now, list: rdmalink.List, active: map[string]bool{},
		sessions: map[sessionKey]proc.Session{}, meters: map[meterKey]biotrace.Histogram{},
	}
}

// Use sets the meter. With an error there is no meter, and samples contain the error.
func (s *Sampler) Use(meter Meter, err error) {
	if err != nil {
		meter = nil
		s.noMeter = err.Error()
	}
	s.meter = meter
}

// Load loads a meter in the background, which may take seconds, then uses it.
func (s *Sampler) Load(load func() (Meter, error)) {
	s.noMeter = "the program that measures them is being loaded"
	go func() {
		meter, err := load()
		s.loaded <- func() { s.Use(meter, err) }
	}()
}

// Run calls f with a sample at the end of each interval. It returns nil when ctx ends, or f's error.
func (s *Sampler) Run(ctx context.Context, interval time.Duration, f func(Sample) error) error {
	s.Sample()
	ticker := time.NewTicker(interval)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
		if err := f(s.Sample()); err != nil {
			return err
		}
	}
}

// Sample returns a sample of the time since the last call. The first one has only the current state.
func (s *Sampler) Sample() Sample {
	select {
	case use := <-s.loaded:
		use()
	default:
	}
	now := s.now()
	out := Sample{Time: now, Sessions: []Session{}, Links: []rdmalink.Link{}, Problems: []string{}}
	first := s.last.IsZero()
	if !first {
		out.Interval = now.Sub(s.last)
	}
	s.last = now

	sessions, err := s.proc.Sessions()
	out.Loaded = !errors.Is(err, proc.ErrNotLoaded)
	out.Hidden = errors.Is(err, fs.ErrPermission)
	out.problem(err)
	before := s.sessions
	if err == nil || !out.Loaded { // otherwise the next sample compares with the last good reading
		s.sessions = map[sessionKey]proc.Session{}
	}
	for _, session := range sessions {
		key := sessionKey{session.Role, session.Name, session.ID}
		s.sessions[key] = session
		old, known := before[key]
		if first {
			old = session // without an earlier reading, nothing counts for an interval
		} else if !known || old.WriteBytes > session.WriteBytes || old.ReadBytes > session.ReadBytes {
			old = proc.Session{} // a new session: all its counts are of this interval
		}
		out.Sessions = append(out.Sessions, compare(session, old, out.Interval))
		out.Problems = append(out.Problems, problems(session, old)...)
	}
	if now.Sub(s.listed) >= linksInterval {
		s.links, s.noLinks = s.list()
		s.listed = now
	}
	out.Links = append(out.Links, s.links...)
	out.problem(s.noLinks)
	out.Problems = append(out.Problems, s.portProblems(out)...)
	s.measure(&out)
	return out
}

// portProblems returns the ports that are missed: those that were active before, and all of a device that
// a session uses. A port that is down otherwise has nothing plugged in.
func (s *Sampler) portProblems(out Sample) []string {
	var lines []string
	for _, link := range out.Links {
		needed := out.Needs(link)
		for _, p := range link.Ports {
			name := link.PortName(p)
			if p.State == rdmalink.Active {
				s.active[name] = true
			} else if needed || s.active[name] {
				lines = append(lines, fmt.Sprintf("the port of %s is %s", name, cmp.Or(p.State, "in an unknown state")))
			}
		}
	}
	return lines
}

// Needs reports whether a session uses a device that has no active port.
func (s Sample) Needs(link rdmalink.Link) bool {
	return !slices.ContainsFunc(link.Ports, func(p rdmalink.Port) bool { return p.State == rdmalink.Active }) &&
		slices.ContainsFunc(s.Sessions, func(session Session) bool { return session.IBDev == link.Name })
}

func (s *Sample) problem(err error) {
	if err != nil {
		s.Problems = append(s.Problems, err.Error())
	}
}

func compare(s, old proc.Session, interval time.Duration) Session {
	return Session{
		Name: s.Name, Role: s.Role, Mode: s.Mode, Device: s.Dev, State: s.State,
		Peer: s.Peer, IBDev: s.IBDev, Size: s.Size,
		Read:     flow(count(s.Reads, old.Reads), count(s.ReadBytes, old.ReadBytes), interval),
		Write:    flow(count(s.Writes, old.Writes), count(s.WriteBytes, old.WriteBytes), interval),
		Inflight: s.Inflight, Depth: s.Queues * s.Depth,
		Errors: count(s.Errors, old.Errors), CRCErrors: count(s.CRCErrors, old.CRCErrors), Retries: count(s.Retries, old.Retries),
		Reconnects: count(s.Reconnects, old.Reconnects), Stalls: count(s.Stalls, old.Stalls),
	}
}

func count(now, old uint64) Count {
	return Count{Total: now, Delta: now - min(old, now)}
}

func flow(ops, bytes Count, interval time.Duration) Flow {
	f := Flow{Ops: ops, Bytes: bytes}
	if interval > 0 {
		f.OpsPerSecond = float64(ops.Delta) / interval.Seconds()
		f.BytesPerSecond = float64(bytes.Delta) / interval.Seconds()
	}
	return f
}

// problems returns what needs attention in a session.
func problems(s, old proc.Session) []string {
	var lines []string
	add := func(format string, args ...any) {
		lines = append(lines, s.Name+": "+fmt.Sprintf(format, args...))
	}
	if s.State != "live" {
		add("%s", strings.ReplaceAll(s.State, "_", " "))
	}
	for _, c := range []struct {
		what     string
		now, old uint64
	}{
		{"errors", s.Errors, old.Errors},
		{"CRC errors", s.CRCErrors, old.CRCErrors},
		{"reconnects", s.Reconnects, old.Reconnects},
		{"requests dropped by its tap", tap(s).Dropped, tap(old).Dropped},
		{"reads that differ at the target", tap(s).Mismatches, tap(old).Mismatches},
	} {
		if n := count(c.now, c.old).Delta; n > 0 {
			add("%s: %d", c.what, n)
		}
	}
	return lines
}

func tap(s proc.Session) proc.Tap {
	if s.Tap == nil {
		return proc.Tap{}
	}
	return *s.Tap
}

// disks returns the paths of the sessions' devices.
func disks(sessions []Session) []string {
	var paths []string
	for _, session := range sessions {
		if session.Device != "" {
			paths = append(paths, "/dev/"+session.Device)
		}
	}
	return paths
}

// measure sets the latencies of the interval in the sessions.
func (s *Sampler) measure(out *Sample) {
	if s.meter == nil {
		out.NoLatencies = s.noMeter
		return
	}
	if meter, ok := s.meter.(watcher); ok {
		out.problem(meter.WatchOnly(disks(out.Sessions)))
	}
	histograms, lost, err := s.meter.Read()
	if err != nil {
		out.NoLatencies = err.Error()
		return
	}
	byDevice := map[string][]biotrace.Histogram{}
	before := s.meters
	s.meters = map[meterKey]biotrace.Histogram{}
	for _, h := range histograms {
		key := meterKey{h.Device, h.Op, h.Stage}
		s.meters[key] = h
		if old := before[key]; old.Count <= h.Count { // otherwise it is a new device of that name
			h = h.Sub(old)
		}
		if h.Count > 0 {
			byDevice[h.Device] = append(byDevice[h.Device], h)
		}
	}
	for i := range out.Sessions {
		out.Sessions[i].setLatencies(byDevice[out.Sessions[i].Device])
	}
	if missed := lost.Total() - s.lost; missed > 0 {
		out.Problems = append(out.Problems, fmt.Sprintf("latencies are incomplete: bios or stages not measured: %d", missed))
	}
	s.lost = lost.Total()
}

func (s *Session) setLatencies(histograms []biotrace.Histogram) {
	slices.SortFunc(histograms, func(a, b biotrace.Histogram) int {
		return cmp.Or(cmp.Compare(opRank(a.Op), opRank(b.Op)), cmp.Compare(a.Op, b.Op), cmp.Compare(a.Stage, b.Stage))
	})
	for _, h := range histograms {
		s.Latencies = append(s.Latencies, Latency{
			Op: h.Op, Stage: h.Stage.String(), Count: h.Count, Mean: h.Sum / time.Duration(h.Count),
			P50: h.Quantile(0.5), P99: h.Quantile(0.99), Max: h.Quantile(1),
		})
		if h.Stage != biotrace.StageTotal {
			continue
		}
		if s.Heat == nil {
			s.Heat = map[int]uint64{}
		}
		for i, n := range h.Buckets {
			s.Heat[i] += n
		}
	}
}

// opRank orders operations: READ, WRITE, then the others.
func opRank(op string) int {
	if i := slices.Index([]string{"READ", "WRITE"}, op); i >= 0 {
		return i
	}
	return 2
}
