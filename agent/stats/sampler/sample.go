// SPDX-License-Identifier: Apache-2.0

package sampler

import (
	"time"

	"krping/agent/host/rdmalink"
)

// Sample is what happened in one interval. Its JSON is what `krpingctl top --json` prints and the
// agent's page reads: times are RFC 3339, durations nanoseconds, sizes bytes.
type Sample struct {
	Time     time.Time       `json:"time"`        // end of the interval
	Interval time.Duration   `json:"interval_ns"` // its length; 0 if there was none: then nothing is a rate
	Loaded   bool            `json:"module_loaded"`
	Sessions []Session       `json:"sessions"` // clients' first, then the volumes that are served
	Links    []rdmalink.Link `json:"rdma_devices"`
	// Problems are what a person should look at, and what could not be read: whole sentences without
	// a full stop.
	Problems []string `json:"problems"`
	// NoLatencies says why no session has latencies; "" if they are measured.
	NoLatencies string `json:"no_latencies,omitempty"`
}

// Session is a block session, or a volume that this host serves.
type Session struct {
	Name   string `json:"name"`
	Role   string `json:"role"`             // client, or target
	Mode   string `json:"mode"`             // remote, tap
	Device string `json:"device,omitempty"` // krping0; a target has none
	State  string `json:"state"`            // live, or why not
	Peer   string `json:"peer"`             // of a target: the address that it listens on
	IBDev  string `json:"ibdev"`            // RDMA device
	Size   uint64 `json:"size"`
	// Read and Write are what the peer answered; of a tap, not what its local disk did.
	Read  Flow `json:"read"`
	Write Flow `json:"write"`

	Inflight uint64 `json:"inflight"` // commands without an answer, at the end of the interval
	Depth    uint64 `json:"depth"`    // most commands that may be in flight

	Errors     Count `json:"errors"`
	CRCErrors  Count `json:"crc_errors"`
	Retries    Count `json:"retries"`
	Reconnects Count `json:"reconnects"`
	Stalls     Count `json:"stalls"` // times that a request found no room to be sent

	// Latencies are of the bios of Device that ended in the interval: READ, WRITE, others by name; of
	// each the stages in the order in which a bio passes them.
	Latencies []Latency `json:"latencies,omitempty"`
	// Heat counts those bios by their total latency: bucket i has those of 2^((i-1)/8) to 2^(i/8) seconds,
	// as Prometheus' native histograms of schema 3 have it.
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

// Latency is how long bios of an operation took in one stage. A percentile is the upper end of the
// bucket that it is in: at most 9% too much.
type Latency struct {
	Op    string        `json:"op"`    // READ, WRITE, FLUSH...
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
