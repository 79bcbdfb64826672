// SPDX-License-Identifier: Apache-2.0

// Package metrics exports a host's state to Prometheus: sessions, ping/pong threads, RDMA devices,
// latencies, and the agent's own state. All sources are read at each scrape. krping_collector_up is
// 0 for a source that cannot be read; the others are still exported.
package metrics

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"krping/agent/service/raid"
	"krping/agent/service/reconciler"
	"krping/agent/trace/biotrace"
	"krping/bridge/sysfs"
	"krping/proc"
)

// Sources of the metrics.
type Sources struct {
	Proc     proc.FS
	Version  string                                                 // of the agent
	Sys      string                                                 // mount point of sysfs
	Counters func(device string) (map[int]map[string]uint64, error) // hardware counters of an RDMA device by port and name
	Declared func() []reconciler.Status
	Meter    Meter
	Messages *prometheus.CounterVec // from NewMessages
	Log      zerolog.Logger
}

// ErrNotMeasured is returned by a Meter that has not been loaded.
var ErrNotMeasured = errors.New("latencies are not measured")

// Meter measures latencies. It must be safe for concurrent use.
type Meter interface {
	Read() ([]biotrace.Histogram, biotrace.Lost, error)
}

// NewMessages returns the counter of the module's messages in the kernel log, by subject (a volume,
// control, client, server, or module) and severity.
func NewMessages() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "krping_kernel_messages_total", Help: "Messages of the module in the kernel log since the agent started.",
	}, []string{"subject", "severity"})
}

// NewRegistry returns a registry of all the agent's metrics.
func NewRegistry(s Sources) *prometheus.Registry {
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		&collector{Sources: s, trouble: map[[2]string]string{}}, s.Messages,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	return registry
}

// collector reads the sources at each scrape.
type collector struct {
	Sources

	mu      sync.Mutex           // scrapes may overlap
	trouble map[[2]string]string // the error logged last, by source and device

	pingpong pingpong
}

var descs []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("krping_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

var (
	collectorUp  = desc("collector_up", "Whether a source could be read; device is set for RDMA devices.", "collector", "device")
	buildInfo    = desc("agent_build_info", "Version of the running agent; always 1.", "version", "revision", "goversion")
	moduleLoaded = desc("module_loaded", "Whether the module rdma_krping is loaded.")
	moduleInfo   = desc("module_info", "Version of the loaded module; always 1.", "version", "srcversion")

	declaredState    = desc("declared_session_state", "State of a session in the agent's configuration: 1 for its current state, 0 for the others.", "session", "state")
	declaredAttached = desc("declared_session_attached_total", "Times that the agent attached the session.", "session")
	declaredFailures = desc("declared_session_failures_total", "Times that the agent failed to attach or stop the session.", "session")

	raidState    = desc("raid_member_state", "State in its md array of a declared session's disk: 1 for its current state, 0 for the others.", "session", "array", "state")
	raidReAdded  = desc("raid_member_readded_total", "Times that the agent put the disk back into the array.", "session", "array")
	raidFailures = desc("raid_member_readd_failures_total", "Times that the agent failed to put the disk back into the array.", "session", "array")
)

// Describe implements prometheus.Collector.
func (c *collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range descs {
		ch <- d
	}
}

// Collect implements prometheus.Collector.
func (c *collector) Collect(ch chan<- prometheus.Metric) {
	e := emitter{ch}
	revision, goversion := build()
	e.gauge(buildInfo, 1, c.Version, revision, goversion)
	c.module(e)
	for name, collect := range map[string]func(emitter) error{
		"sessions": c.sessions, "threads": c.threads, "latency": c.latency, "rdma": c.rdma,
	} {
		c.up(e, collect(e), name, "")
	}
	for _, s := range c.Declared() {
		for _, state := range reconciler.States {
			e.gauge(declaredState, truth(s.State == state), s.Name, string(state))
		}
		e.counter(declaredAttached, float64(s.Attached), s.Name)
		e.counter(declaredFailures, float64(s.Failures), s.Name)
		e.raid(s)
	}
}

func (e emitter) raid(s reconciler.Status) {
	if s.Array == "" {
		return
	}
	for _, state := range raid.States {
		e.gauge(raidState, truth(s.Member == state), s.Name, s.Array, string(state))
	}
	e.counter(raidReAdded, float64(s.ReAdded), s.Name, s.Array)
	e.counter(raidFailures, float64(s.ReAddFailures), s.Name, s.Array)
}

// up exports whether a source could be read. A module that is not loaded is no error: it has its
// own metric.
func (c *collector) up(e emitter, err error, name, device string) {
	text := ""
	if err != nil && !errors.Is(err, proc.ErrNotLoaded) {
		text = err.Error()
	}
	e.gauge(collectorUp, truth(text == ""), name, device)
	c.mu.Lock()
	defer c.mu.Unlock()
	source := [2]string{name, device}
	if text != "" && text != c.trouble[source] {
		c.Log.Warn().Str("collector", name).Str("error", text).Msg("metrics are missing")
	}
	c.trouble[source] = text
}

// build returns the commit of the program and the version of Go.
func build() (revision, goversion string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	return revision, info.GoVersion
}

func (c *collector) module(e emitter) {
	dir := filepath.Join(c.Sys, "module/rdma_krping")
	_, err := os.Stat(dir)
	e.gauge(moduleLoaded, truth(err == nil))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	e.gauge(moduleInfo, 1, sysfs.Text(dir, "version"), sysfs.Text(dir, "srcversion")) // "" if the kernel has no such attribute
}
