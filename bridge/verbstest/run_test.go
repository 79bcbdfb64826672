// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"testing"

	"krping/bridge/wire"
)

var verbs = []wire.Verb{wire.VerbSend, wire.VerbWrite, wire.VerbWriteImmediate, wire.VerbRead, wire.VerbFetchAdd, wire.VerbCompareSwap}

// Each verb over each type of queue pairs, in all its ways, without a fault: all messages are sent, seen and
// right.
func TestEveryVerb(t *testing.T) {
	for _, qp := range []wire.QPType{wire.RC, wire.UC, wire.UD} {
		for _, verb := range verbs {
			if !qp.Carries(verb) {
				continue
			}
			for way, hello := range waysOf(verb, qp) {
				t.Run(fmt.Sprintf("%s/%s/%s", qp, verb, way), func(t *testing.T) {
					t.Parallel()
					wantAll(t, hello)
				})
			}
		}
	}
}

func waysOf(verb wire.Verb, qp wire.QPType) map[string]wire.VerbsHello {
	ways := map[string]wire.VerbsHello{}
	add := func(name string, h wire.VerbsHello, changes ...func(*wire.VerbsHello)) {
		for _, change := range changes {
			change(&h)
		}
		ways[name] = h
		h.Validate = true
		ways[name+" validated"] = h
	}
	bw, lat := bandwidthHello(verb, qp), latencyHello(verb, qp)
	add("bw", bw)
	add("one queue pair", bw, func(h *wire.VerbsHello) { h.QPs = 1 })
	add("duplex", bw, func(h *wire.VerbsHello) { h.Duplex = true })
	add("signal all", bw, func(h *wire.VerbsHello) { h.Signal = 1 })
	add("signal few", bw, func(h *wire.VerbsHello) { h.Signal = 16 })
	add("one in flight", bw, func(h *wire.VerbsHello) { h.TxDepth, h.Signal, h.Count = 1, 1, 50 })
	add("lat", lat)
	if !verb.IsAtomic() {
		add("size 4", bw, func(h *wire.VerbsHello) { h.Size = 4 })
		add("size 1000", bw, func(h *wire.VerbsHello) { h.Size = 1000 })
		add("lat size 5", lat, func(h *wire.VerbsHello) { h.Size = 5 })
	}
	if verb.Receives() {
		add("srq", bw, func(h *wire.VerbsHello) { h.SRQ = true })
		add("srq duplex", bw, func(h *wire.VerbsHello) { h.SRQ, h.Duplex = true, true })
	}
	return ways
}

// wantAll runs a test in which every message must arrive.
func wantAll(t *testing.T, h wire.VerbsHello) {
	n := newNet(t)
	if h.QPType != wire.RC {
		h.RxDepth = min(h.RxDepth*64, 16384) // a receive for each message: nothing is lost
		if h.SRQ {
			h.RxDepth = 16384
		}
	}
	client, server := n.run(t.Context(), h)
	if client.err != nil || server.err != nil {
		t.Fatalf("client: %v, server: %v", client.err, server.err)
	}
	want := uint64(h.Count) * uint64(h.QPs)
	check := func(side string, sent, received Result) {
		t.Helper()
		p := planOf(h, false)
		if sent.Sent != want || sent.Arrived == nil {
			t.Errorf("%s: sent %d of %d, arrived: %+v", side, sent.Sent, want, sent.Arrived)
			return
		}
		counted := Arrived{}
		if p.counts() {
			counted.Received = want
		}
		if *sent.Arrived != counted || *received.Received != counted {
			t.Errorf("%s: arrived %+v, received %+v, want %+v", side, *sent.Arrived, *received.Received, counted)
		}
	}
	check("client", client.result, server.result)
	if h.Duplex {
		check("server", server.result, client.result)
	}
	if h.Measure == wire.Latency {
		if l := client.result.latencies; l.count != want || l.min <= 0 || l.max < l.min || l.quantile(0.5) > l.max {
			t.Errorf("%d latencies from %v to %v", l.count, l.min, l.max)
		}
	}
}
