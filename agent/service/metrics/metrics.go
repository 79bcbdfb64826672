// SPDX-License-Identifier: Apache-2.0

// Package metrics exports what a host shows of krping to Prometheus: sessions, ping/pong
// threads, RDMA devices, latencies, and what the agent itself does. Everything is read at the
// scrape. What cannot be read hides nothing else, and krping_collector_up says so.
package metrics

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"runtime/debug"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/rs/zerolog"

	"krping/agent/service/reconciler"
	"krping/agent/trace/biotrace"
	"krping/proc"
)

// Sources are where the figures come from.
type Sources struct {
	Proc     proc.FS
	Sys      string                                         // where sysfs is mounted
	Counters func(device string) (map[string]uint64, error) // hardware counters of an RDMA device by their names
	Declared func() []reconciler.Status
	Meter    Meter                  // nil: latencies are not measured
	Messages *prometheus.CounterVec // of NewMessages
	Log      zerolog.Logger
}

// ErrNotMeasured is returned by a Meter that is not there.
var ErrNotMeasured = errors.New("latencies are not measured")

// Meter measures latencies; a *biotrace.Meter that only one goroutine uses is one.
type Meter interface {
	Read() ([]biotrace.Histogram, biotrace.Lost, error)
}

// NewMessages returns the counter of the module's messages in the kernel log, by what they are
// about (a volume, control, client, server, module) and by severity.
func NewMessages() *prometheus.CounterVec {
	return prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "krping_kernel_messages_total", Help: "Messages of the module in the kernel log since the agent's start.",
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
	trouble map[[2]string]string // what was logged last of a source and a device
}

var descs []*prometheus.Desc

func desc(name, help string, labels ...string) *prometheus.Desc {
	d := prometheus.NewDesc("krping_"+name, help, labels, nil)
	descs = append(descs, d)
	return d
}

var (
	collectorUp  = desc("collector_up", "Whether the last reading of a source succeeded; of an RDMA device by its name.", "collector", "device")
	buildInfo    = desc("agent_build_info", "The running agent.", "version", "revision", "goversion")
	moduleLoaded = desc("module_loaded", "Whether the module rdma_krping is loaded.")
	moduleInfo   = desc("module_info", "The loaded module.", "version", "srcversion")

	declaredState    = desc("declared_session_state", "State of a session of the agent's configuration: 1 for the one that it is in.", "session", "state")
	declaredAttached = desc("declared_session_attached_total", "Times that the agent attached the session.", "session")
	declaredFailures = desc("declared_session_failures_total", "Times that the agent could not attach or stop the session.", "session")

	threadBytes    = desc("thread_bytes_total", "Bytes that a ping/pong thread moved, by RDMA operation.", "thread", "device", "op")
	threadMessages = desc("thread_messages_total", "Operations that a ping/pong thread did.", "thread", "device", "op")
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
	version, revision, goversion := build()
	e.gauge(buildInfo, 1, version, revision, goversion)
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
	}
}

// up says whether a source could be read. A module that is not loaded has nothing to be read,
// and a metric of its own.
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

// build returns what the program was made of.
func build() (version, revision, goversion string) {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return "", "", ""
	}
	for _, setting := range info.Settings {
		if setting.Key == "vcs.revision" {
			revision = setting.Value
		}
	}
	return info.Main.Version, revision, info.GoVersion
}

func (c *collector) module(e emitter) {
	dir := filepath.Join(c.Sys, "module/rdma_krping")
	_, err := os.Stat(dir)
	e.gauge(moduleLoaded, truth(err == nil))
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	attribute := func(name string) string {
		data, _ := os.ReadFile(filepath.Join(dir, name)) // a kernel may have none
		return strings.TrimSpace(string(data))
	}
	e.gauge(moduleInfo, 1, attribute("version"), attribute("srcversion"))
}

func (c *collector) threads(e emitter) error {
	threads, err := c.Proc.Threads()
	if err != nil {
		return err
	}
	for _, t := range threads {
		if t.Device == "" {
			continue // it waits for its client
		}
		for _, op := range []struct {
			name            string
			bytes, messages uint64
		}{
			{"send", t.SendBytes, t.SendMsgs}, {"recv", t.RecvBytes, t.RecvMsgs},
			{"write", t.WriteBytes, t.WriteMsgs}, {"read", t.ReadBytes, t.ReadMsgs},
		} {
			thread := itoa(t.Number)
			e.counter(threadBytes, float64(op.bytes), thread, t.Device, op.name)
			e.counter(threadMessages, float64(op.messages), thread, t.Device, op.name)
		}
	}
	return nil
}
