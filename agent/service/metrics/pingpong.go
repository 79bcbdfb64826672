// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"sync"

	"krping/proc"
)

var (
	pingThreads  = desc("pingpong_threads", "Running ping/pong threads.", "device")
	pingBytes    = desc("pingpong_bytes_total", "Bytes transferred by ping/pong threads, by RDMA operation, since the agent started.", "device", "op")
	pingMessages = desc("pingpong_operations_total", "RDMA operations of ping/pong threads, since the agent started.", "device", "op")
)

// flow counts what threads have transferred.
type flow struct{ bytes, messages uint64 }

type flowKey struct{ device, op string }

// pingpong sums up what threads transfer: each has its own counts, which are gone with it, and its number
// would be a label with ever new values. The zero value has seen no thread.
type pingpong struct {
	mu    sync.Mutex // scrapes may overlap
	last  map[int]map[flowKey]flow
	total map[flowKey]flow
}

// add adds what the threads have transferred since the last call.
func (p *pingpong) add(threads []proc.Thread) {
	now := map[int]map[flowKey]flow{}
	if p.total == nil {
		p.total = map[flowKey]flow{}
	}
	for _, t := range threads {
		if t.Device == "" {
			continue // a listening server
		}
		now[t.Number] = map[flowKey]flow{
			{t.Device, "send"}:  {t.SendBytes, t.SendMsgs},
			{t.Device, "recv"}:  {t.RecvBytes, t.RecvMsgs},
			{t.Device, "write"}: {t.WriteBytes, t.WriteMsgs},
			{t.Device, "read"}:  {t.ReadBytes, t.ReadMsgs},
		}
		for key, is := range now[t.Number] {
			was := p.last[t.Number][key]
			if is.bytes < was.bytes || is.messages < was.messages { // another thread: the module was loaded again
				was = flow{}
			}
			sum := p.total[key]
			p.total[key] = flow{sum.bytes + is.bytes - was.bytes, sum.messages + is.messages - was.messages}
		}
	}
	p.last = now
}

func (c *collector) threads(e emitter) error {
	threads, err := c.Proc.Threads()
	p := &c.pingpong
	p.mu.Lock()
	defer p.mu.Unlock()
	if err == nil {
		p.add(threads)
	}
	running := map[string]int{}
	for key, sum := range p.total {
		e.counter(pingBytes, float64(sum.bytes), key.device, key.op)
		e.counter(pingMessages, float64(sum.messages), key.device, key.op)
		running[key.device] = 0
	}
	for _, t := range threads {
		if t.Device != "" {
			running[t.Device]++
		}
	}
	for device, n := range running {
		e.gauge(pingThreads, float64(n), device)
	}
	return err
}
