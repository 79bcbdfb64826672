// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"time"

	"krping/agent/host/rdmalink"
)

// Sample describes one interval. `krpingctl top --json` prints it, and the agent's web page reads
// it, as JSON: times are RFC 3339, durations nanoseconds, sizes bytes.
type Sample struct {
	Time     time.Time       `json:"time"`        // end of the interval
	Interval time.Duration   `json:"interval_ns"` // its length; 0 in the first sample, which has no rates
	Loaded   bool            `json:"module_loaded"`
	Hidden   bool            `json:"-"`        // the module's sessions may not be read
	Sessions []Session       `json:"sessions"` // client sessions first, then served volumes
	Links    []rdmalink.Link `json:"rdma_devices"`
	// Problems lists what needs attention and what could not be read, each as a phrase.
	Problems []string `json:"problems"`
	// NoLatencies says why no session has latencies; "" if they are measured.
	NoLatencies string `json:"no_latencies,omitempty"`
}

// Session is a block session, or a volume that this host serves.
type Session struct {
	Name   string `json:"name"`
	Role   string `json:"role"`             // client or target
	Mode   string `json:"mode"`             // remote, tap
	Device string `json:"device,omitempty"` // such as krping0; a target has none
	State  string `json:"state"`            // live if it works
	Peer   string `json:"peer"`             // target: the address it listens on
	IBDev  string `json:"ibdev"`            // RDMA device; "" if it has none now
	Size   uint64 `json:"size"`
	// Read and Write are what the peer answered; of a tap, not what its local disk did.
	Read  Flow `json:"read"`
	Write Flow `json:"write"`

	Inflight uint64 `json:"inflight"` // commands in flight at the end of the interval
	Depth    uint64 `json:"depth"`    // limit of commands in flight

	Errors     Count `json:"errors"`
	CRCErrors  Count `json:"crc_errors"`
	Retries    Count `json:"retries"`
	Reconnects Count `json:"reconnects"`
	Stalls     Count `json:"stalls"` // times that a request waited for a free message or receive

	// Latencies of the bios of Device that ended in the interval, by operation (READ, WRITE, then
	// others by name) and stage (in the order in which a bio passes them).
	Latencies []Latency `json:"latencies,omitempty"`
	// Heat counts those bios by their total latency: bucket i is for 2^((i-1)/8) to 2^(i/8) seconds,
	// as in Prometheus' native histograms of schema 3.
	Heat map[int]uint64 `json:"heat,omitempty"`
}

// Flow is I/O in one direction.
type Flow struct {
	Ops            Count   `json:"ops"`
	Bytes          Count   `json:"bytes"`
	OpsPerSecond   float64 `json:"ops_per_second"`
	BytesPerSecond float64 `json:"bytes_per_second"`
}

// Count is a counter of a session.
type Count struct {
	Total uint64 `json:"total"` // since the session began
	Delta uint64 `json:"delta"` // in the interval
}

// Latency summarizes the time that bios of an operation took in one stage. Percentiles are the upper
// limits of their buckets, at most 9% too high.
type Latency struct {
	Op    string        `json:"op"`    // READ, WRITE, FLUSH, ...
	Stage string        `json:"stage"` // queue, send, peer, finish, device, total
	Count uint64        `json:"count"`
	Mean  time.Duration `json:"mean_ns"`
	P50   time.Duration `json:"p50_ns"`
	P99   time.Duration `json:"p99_ns"`
	Max   time.Duration `json:"max_ns"`
}

// OpsPerSecond returns the rate in both directions.
func (s Session) OpsPerSecond() float64 { return s.Read.OpsPerSecond + s.Write.OpsPerSecond }

// BytesPerSecond returns the rate in both directions.
func (s Session) BytesPerSecond() float64 { return s.Read.BytesPerSecond + s.Write.BytesPerSecond }
