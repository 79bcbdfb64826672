// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"krping/proc"
)

// sessionDesc describes a metric of a session. Its role is client, or target for a volume that this
// host serves.
func sessionDesc(name, help string, more ...string) *prometheus.Desc {
	return desc("session_"+name, help, append([]string{"session", "role"}, more...)...)
}

func tapDesc(name, help string, more ...string) *prometheus.Desc {
	return desc("tap_"+name, help, append([]string{"session"}, more...)...)
}

var (
	sessionInfo  = sessionDesc("info", "A block session or a served volume; always 1.", "mode", "device", "peer", "rdma_device", "backing", "uuid", "writer")
	sessionState = sessionDesc("state", "State of a session: 1 for its current state, 0 for the others.", "state")
	sessionOps   = sessionDesc("ops_total", "Completed commands by operation.", "op")
	sessionBytes = sessionDesc("bytes_total", "Bytes read and written.", "op")

	tapDrops = tapDesc("drops_total", "Requests that a tap did not forward, by reason.", "reason")
)

// figures are the metrics of a session without further labels.
var figures = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	roles string // the role that has the metric; "" for both
	value func(proc.Session) uint64
}{
	{sessionDesc("read_only", "Whether the session does not write, or the volume cannot be written to."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return number(s.ReadOnly) }},
	{sessionDesc("shared", "Whether any number of clients may write to the volume."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return number(s.Shared) }},
	{sessionDesc("volatile", "Whether the target keeps the volume in memory only."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return number(s.Volatile) }},
	{sessionDesc("size_bytes", "Size of the volume."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return s.Size }},
	{sessionDesc("queues", "Queues (connections) of the session."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return s.Queues }},
	{sessionDesc("poll_queues", "Queues for polled I/O beside these."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return s.PollQueues }},
	{sessionDesc("queue_depth", "Limit of requests in flight on a queue."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return s.Depth }},
	{sessionDesc("inflight", "Requests in flight."), prometheus.GaugeValue, "", func(s proc.Session) uint64 { return s.Inflight }},
	{sessionDesc("messages_total", "Messages sent."), prometheus.CounterValue, "", func(s proc.Session) uint64 { return s.Messages }},
	{sessionDesc("errors_total", "Requests that failed."), prometheus.CounterValue, "", func(s proc.Session) uint64 { return s.Errors }},
	{sessionDesc("crc_errors_total", "Requests whose data did not match their checksum."), prometheus.CounterValue, "", func(s proc.Session) uint64 { return s.CRCErrors }},
	{sessionDesc("retries_total", "Requests that were sent again."), prometheus.CounterValue, client, func(s proc.Session) uint64 { return s.Retries }},
	{sessionDesc("reconnects_total", "Times that the client reconnected to a lost target."), prometheus.CounterValue, client, func(s proc.Session) uint64 { return s.Reconnects }},
	{sessionDesc("stalls_total", "Times that a request waited for a free message or receive."), prometheus.CounterValue, client, func(s proc.Session) uint64 { return s.Stalls }},
	{sessionDesc("connections_total", "Connections that were accepted."), prometheus.CounterValue, target, func(s proc.Session) uint64 { return s.Connections }},
	{sessionDesc("rejected_total", "Clients refused: no key, wrong key, address not allowed, or too many clients. One that asks for no volume counts for all at its address."), prometheus.CounterValue, target, func(s proc.Session) uint64 { return s.Rejected }},
	{sessionDesc("violations_total", "Connections ended for a protocol violation."), prometheus.CounterValue, target, func(s proc.Session) uint64 { return s.Violations }},
}

var sessionDirty = sessionDesc("dirty_bytes", "Size of the chunks that the target lacks; for sessions with a backing.")

// tapFigures are the metrics of a tap.
var tapFigures = []struct {
	desc  *prometheus.Desc
	kind  prometheus.ValueType
	value func(proc.Tap) uint64
}{
	{tapDesc("forwarded_total", "Requests forwarded to the target."), prometheus.CounterValue, func(t proc.Tap) uint64 { return t.Forwarded }},
	{tapDesc("forwarded_bytes_total", "Bytes forwarded to the target."), prometheus.CounterValue, func(t proc.Tap) uint64 { return t.ForwardedBytes }},
	{tapDesc("skipped_total", "Requests that did not match the filter."), prometheus.CounterValue, func(t proc.Tap) uint64 { return t.Skipped }},
	{tapDesc("dropped_bytes_total", "Bytes that matched the filter but were not forwarded."), prometheus.CounterValue, func(t proc.Tap) uint64 { return t.DroppedBytes }},
	{tapDesc("mismatches_total", "Reads whose data differs at the target."), prometheus.CounterValue, func(t proc.Tap) uint64 { return t.Mismatches }},
	{tapDesc("unchecked_total", "Reads that could not be compared with the target."), prometheus.CounterValue, func(t proc.Tap) uint64 { return t.Unchecked }},
	{tapDesc("queued", "Forwarded requests without a response."), prometheus.GaugeValue, func(t proc.Tap) uint64 { return t.Queued }},
}

func number(b bool) uint64 { return uint64(truth(b)) }

const (
	client = "client"
	target = "target"
)

var (
	clientStates = []string{"connecting", "live", "reconnecting", "failed", "stopping"}
	targetStates = []string{"connecting", "live", "no_device", "stopping"}
)

func (c *collector) sessions(e emitter) error {
	sessions, err := c.Proc.Sessions()
	if err != nil {
		return err
	}
	for _, s := range sessions {
		e.session(s)
		if s.Tap != nil {
			e.tap(s.Name, *s.Tap)
		}
	}
	return nil
}

func (e emitter) session(s proc.Session) {
	e.gauge(sessionInfo, 1, s.Name, s.Role, s.Mode, s.Dev, s.Peer, s.IBDev, s.Backing, s.UUID, s.Writer)
	states := clientStates
	if s.Role == target {
		states = targetStates
	}
	for _, state := range states {
		e.gauge(sessionState, truth(s.State == state), s.Name, s.Role, state)
	}
	for op, n := range map[string]uint64{
		"read": s.Reads, "write": s.Writes, "flush": s.Flushes, "digest": s.Digests, "discard": s.Discards, "write_zeroes": s.Zeroes,
	} {
		e.counter(sessionOps, float64(n), s.Name, s.Role, op)
	}
	e.counter(sessionBytes, float64(s.ReadBytes), s.Name, s.Role, "read")
	e.counter(sessionBytes, float64(s.WriteBytes), s.Name, s.Role, "write")
	for _, f := range figures {
		if f.roles == "" || f.roles == s.Role {
			e.ch <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(f.value(s)), s.Name, s.Role)
		}
	}
	if s.Backing != "" {
		e.gauge(sessionDirty, float64(s.DirtyBytes), s.Name, s.Role)
	}
}

func (e emitter) tap(session string, t proc.Tap) {
	for _, f := range tapFigures {
		e.ch <- prometheus.MustNewConstMetric(f.desc, f.kind, float64(f.value(t)), session)
	}
	for reason, n := range map[string]uint64{"lost": t.DropsLost, "full": t.DropsFull, "memory": t.DropsMemory, "error": t.DropsError} {
		e.counter(tapDrops, float64(n), session, reason)
	}
}
