// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// lossy are the verbs on queue pairs that lose messages.
var lossy = []struct {
	verb wire.Verb
	qp   wire.QPType
}{{wire.VerbSend, wire.UC}, {wire.VerbWrite, wire.UC}, {wire.VerbWriteImmediate, wire.UC}, {wire.VerbSend, wire.UD}}

// On UC and UD, lost, repeated and reordered messages are counted and are no failure.
func TestLossIsCounted(t *testing.T) {
	for _, tc := range lossy {
		for _, duplex := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%s/duplex %v", tc.qp, tc.verb, duplex), func(t *testing.T) {
				t.Parallel()
				h := bandwidthHello(tc.verb, tc.qp)
				h.Validate, h.Duplex, h.Count = true, duplex, 100
				h.RxDepth = min(h.RxDepth*64, 16384)
				n := newNet(t)
				lost := map[*fakeQueues]uint64{}
				n.fault = func(m *fakeMessage) int {
					if m.number%10 != 3 {
						return 1
					}
					if m.work.Flags&transport.Signalled == 0 || m.work.Length == h.Size { // not a CHECK
						lost[m.from.q]++
					}
					return 0
				}
				client, server := n.run(t.Context(), h)
				if client.err != nil || server.err != nil {
					t.Fatalf("client: %v, server: %v", client.err, server.err)
				}
				var all uint64
				for _, n := range lost {
					all += n
				}
				got := client.result.Arrived.Lost
				if duplex {
					got += server.result.Arrived.Lost
				}
				if got != all || all == 0 {
					t.Errorf("%d are lost, reported %d: %+v", all, got, client.result.Arrived)
				}
			})
		}
	}
}

func TestRepetitionAndDisorderAreCounted(t *testing.T) {
	h := bandwidthHello(wire.VerbSend, wire.UD)
	h.Validate, h.QPs, h.RxDepth = true, 1, 16384
	n := newNet(t)
	var held *fakeMessage
	n.fault = func(m *fakeMessage) int {
		switch m.number {
		case 10:
			return 3
		case 20:
			copied := *m
			held = &copied
			return 0
		case 25:
			held.from.deliver(*held)
		}
		return 1
	}
	client, server := n.run(t.Context(), h)
	want := Arrived{Received: 500, Repeated: 2, Reordered: 1}
	if client.err != nil || server.err != nil || *client.result.Arrived != want {
		t.Errorf("client: %v, server: %v, %+v, want %+v", client.err, server.err, client.result.Arrived, want)
	}
}

// A message in which the network, the device or memory changes something is found in every validated test, on
// every type of queue pairs, and shown.
func TestDamageIsFound(t *testing.T) {
	for _, qp := range []wire.QPType{wire.RC, wire.UC, wire.UD} {
		for _, verb := range verbs {
			if !qp.Carries(verb) || verb.IsAtomic() {
				continue
			}
			for name, h := range map[string]wire.VerbsHello{"bw": bandwidthHello(verb, qp), "lat": latencyHello(verb, qp)} {
				for what, tc := range map[string]struct {
					spoil func(data []byte, tag uint16, number uint32)
					kind  wire.Damage
				}{
					"a flipped bit":    {func(d []byte, _ uint16, _ uint32) { d[41] ^= 8 }, wire.Damaged},
					"another queue's":  {func(d []byte, tag uint16, n uint32) { fill(d, tag^1, n) }, wire.Foreign},
					"partly shifted":   {func(d []byte, _ uint16, _ uint32) { copy(d[44:80], d[52:88]) }, wire.Shifted},
					"partly of before": {func(d []byte, tag uint16, n uint32) { copy(d[52:], message(len(d), tag, n-1)[52:92]) }, wire.Torn},
				} {
					if what == "partly of before" && qp == wire.UC && verb == wire.VerbWrite && name == "bw" {
						continue // that is loss
					}
					t.Run(fmt.Sprintf("%s/%s/%s/%s", qp, verb, name, what), func(t *testing.T) {
						t.Parallel()
						h := h
						h.Validate, h.Count = true, 50
						h.RxDepth = min(h.RxDepth*16, 16384)
						n := newNet(t)
						var first *fakeQueues // the client's
						n.fault = func(m *fakeMessage) int {
							if first == nil {
								first = m.from.q
							}
							if m.number == 7 && m.work.Queue == 0 && m.work.Length == h.Size {
								fromServer := verb == wire.VerbRead || m.from.q != first
								number := uint32(7)
								if verb == wire.VerbRead && h.Measure == wire.Latency {
									number = 0
								}
								tc.spoil(m.data, tagOf(h.Group, 0, fromServer), number)
							}
							return 1
						}
						client, server := n.run(t.Context(), h)
						if !errors.Is(client.err, ErrDamaged) || verb != wire.VerbRead && !errors.Is(server.err, ErrDamaged) {
							t.Fatalf("client: %v, server: %v", client.err, server.err)
						}
						if d := client.result.Damage; d.Kind != tc.kind || d.Queue != 0 || d.Number != 7 {
							t.Errorf("damage: %v, want %v", d, tc.kind)
						}
						if verb != wire.VerbRead && !strings.Contains(server.result.Damage.String(), " instead of ") {
							t.Errorf("the server says: %v", server.result.Damage)
						}
					})
				}
			}
		}
	}
}

// A WRITE that never arrives in the memory of the target, although it was acknowledged, is found.
func TestStaleWriteIsFound(t *testing.T) {
	h := bandwidthHello(wire.VerbWrite, wire.RC)
	h.Validate, h.QPs = true, 1
	n := newNet(t)
	n.fault = func(m *fakeMessage) int {
		if m.work.Op == transport.OpWrite && m.number == 60 {
			return 0
		}
		return 1
	}
	client, server := n.run(t.Context(), h)
	if !errors.Is(client.err, ErrDamaged) || !errors.Is(server.err, ErrDamaged) || server.result.Damage.Kind != wire.Stale {
		t.Errorf("client: %v, server: %v", client.err, server.err)
	}
}

// A message that UC delivers so late that its slot has been written again, may overwrite what is there. Only if it has
// arrived before, the slot is stale.
func TestLateWriteOfEarlierLap(t *testing.T) {
	for name, tc := range map[string]struct {
		early   bool
		damaged uint64
	}{"late": {false, 0}, "repeated": {true, 1}} {
		n := newNet(t)
		l := n.connectLiar(t, validated(wire.VerbWriteImmediate, wire.UC))
		l.begin()
		slots := l.peer[0].Slots
		for i := range slots {
			if i != 2 || tc.early {
				l.write(uint64(i), i)
			}
		}
		for l.recv(wire.VerbsCredit).Number < uint64(slots) {
		}
		l.writeTo(transport.Work{Op: transport.OpWrite}, 2)
		l.postWriteImm(slots + 2) // in its slot is message 2
		l.write(2, 2)
		l.send(done(uint64(slots + 3)))
		if m := l.recv(wire.VerbsReport); m.Report.Damaged != tc.damaged || m.Report.Received != uint64(slots)+1 {
			t.Errorf("%s: report %+v, want %d damaged", name, m.Report, tc.damaged)
		}
		l.conn.Close()
	}
}

// spoilCounters changes the counters that atomic operations go to.
func (n *fakeNet) spoilCounters() {
	n.mu.Lock()
	defer n.mu.Unlock()
	for _, p := range n.pairs {
		for _, m := range p.q.memory {
			if m.use&transport.PeerAtomics != 0 {
				m.Data[1] = 7
			}
		}
	}
}

// A counter that is changed by something else is found, by the value that returns and by the sum.
func TestWrongCounterIsFound(t *testing.T) {
	for _, verb := range []wire.Verb{wire.VerbFetchAdd, wire.VerbCompareSwap} {
		h := bandwidthHello(verb, wire.RC)
		h.Validate, h.QPs, h.Count, h.Rate = true, 1, 50, 200
		n := newNet(t)
		ended := make(chan struct{})
		go func() {
			for {
				n.spoilCounters()
				select {
				case <-ended:
					return
				case <-time.After(time.Millisecond):
				}
			}
		}()
		client, server := n.run(t.Context(), h)
		close(ended)
		if client.err == nil || server.err == nil {
			t.Errorf("%s: client: %v, server: %v", verb, client.err, server.err)
		}
	}
}

// In a latency test over UC and UD a lost message or answer costs its time-out only.
func TestLatencyGoesOnAfterLoss(t *testing.T) {
	for _, tc := range lossy {
		for _, validate := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%s/validate %v", tc.qp, tc.verb, validate), func(t *testing.T) {
				t.Parallel()
				h := latencyHello(tc.verb, tc.qp)
				h.Validate = validate
				n := newNet(t)
				n.fault = func(m *fakeMessage) int {
					if m.number == 20 || m.number == 40 {
						return 0
					}
					return 1
				}
				client, server := n.run(t.Context(), h)
				if client.err != nil || server.err != nil {
					t.Fatalf("client: %v, server: %v", client.err, server.err)
				}
				if r := client.result; r.Arrived.Lost == 0 || r.latencies.count >= 200 || r.latencies.count < 190 {
					t.Errorf("%+v, %d latencies", r.Arrived, r.latencies.count)
				}
			})
		}
	}
}

// In a latency test an answer that comes late is lost, once: it is no answer to the next message, and not reordered.
func TestLateAnswersAreLost(t *testing.T) {
	for _, tc := range lossy {
		for _, validate := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/%s/validate %v", tc.qp, tc.verb, validate), func(t *testing.T) {
				t.Parallel()
				h := latencyHello(tc.verb, tc.qp)
				h.Validate = validate
				n := newNet(t)
				var client *fakeQueues
				var answer *fakeMessage
				n.fault = func(m *fakeMessage) int {
					if client == nil {
						client = m.from.q
					}
					switch {
					case m.from.q != client && m.number == 20:
						copied := *m
						answer = &copied
						return 0
					case m.from.q == client && m.number == 22:
						answer.from.deliver(*answer)
					}
					return 1
				}
				got, server := n.run(t.Context(), h)
				if got.err != nil || server.err != nil {
					t.Fatalf("client: %v, server: %v", got.err, server.err)
				}
				if want := (Arrived{Received: 199, Lost: 1}); *got.result.Received != want || got.result.latencies.count != 199 {
					t.Errorf("the client has received %+v and timed %d, want %+v", *got.result.Received, got.result.latencies.count, want)
				}
				if want := (Arrived{Received: 200}); *got.result.Arrived != want {
					t.Errorf("the server has received %+v, want %+v", *got.result.Arrived, want)
				}
			})
		}
	}
}

// Datagrams without numbers that the network repeats are repeated, and no more than were sent.
func TestRepetitionWithoutNumbersIsCounted(t *testing.T) {
	h := bandwidthHello(wire.VerbSend, wire.UD)
	h.QPs, h.RxDepth = 1, 16384
	n := newNet(t)
	n.fault = func(m *fakeMessage) int {
		if m.number == 10 {
			return 3
		}
		return 1
	}
	client, server := n.run(t.Context(), h)
	want := Arrived{Received: 500, Repeated: 2}
	if client.err != nil || server.err != nil || *client.result.Arrived != want || *server.result.Received != want {
		t.Errorf("client: %v, server: %v, %+v, want %+v", client.err, server.err, client.result.Arrived, want)
	}
}

// In a latency test of WRITEs, damage to the last byte, by which a message is seen, is damage. (Unless it makes that the
// byte of the message before: then nothing is seen, which is loss, or a time-out.)
func TestDamagedLastByteIsDamage(t *testing.T) {
	for _, qp := range []wire.QPType{wire.RC, wire.UC} {
		for bit := range 8 {
			t.Run(fmt.Sprintf("%s/%d", qp, bit), func(t *testing.T) {
				t.Parallel()
				h := latencyHello(wire.VerbWrite, qp)
				h.Validate = true
				n := newNet(t)
				n.fault = func(m *fakeMessage) int {
					if m.number == 44 {
						m.data[len(m.data)-1] ^= 1 << bit
					}
					return 1
				}
				client, server := n.run(t.Context(), h)
				if !errors.Is(client.err, ErrDamaged) || !errors.Is(server.err, ErrDamaged) {
					t.Errorf("client: %v, server: %v", client.err, server.err)
				}
				if got := client.result; got.Arrived.Damaged != 1 || got.Received.Damaged != 1 || got.Arrived.Lost+got.Received.Lost > 0 {
					t.Errorf("the server has received %+v, the client %+v", got.Arrived, got.Received)
				}
			})
		}
	}
}

// Damage to the number of a message on UC and UD is damage, and neither loss nor a wrong account of the others.
func TestDamagedNumberIsDamage(t *testing.T) {
	for _, qp := range []wire.QPType{wire.UC, wire.UD} {
		for bit := range 32 {
			t.Run(fmt.Sprintf("%s/%d", qp, bit), func(t *testing.T) {
				t.Parallel()
				h := bandwidthHello(wire.VerbSend, qp)
				h.Validate, h.QPs, h.Count, h.RxDepth = true, 1, 50, 16384
				n := newNet(t)
				n.fault = func(m *fakeMessage) int {
					if m.number == 45 {
						m.data[len(m.data)-1-bit/8] ^= 1 << (bit % 8)
					}
					return 1
				}
				client, server := n.run(t.Context(), h)
				if !errors.Is(client.err, ErrDamaged) || !errors.Is(server.err, ErrDamaged) {
					t.Fatalf("client: %v, server: %v", client.err, server.err)
				}
				if want := (Arrived{Received: 50, Damaged: 1}); *client.result.Arrived != want {
					t.Errorf("arrived: %+v, want %+v", *client.result.Arrived, want)
				}
			})
		}
	}
}

// A duration ends the sending, with a peak if it was long enough, and so does the end of the context.
func TestEnds(t *testing.T) {
	for _, h := range []wire.VerbsHello{bandwidthHello(wire.VerbSend, wire.RC), bandwidthHello(wire.VerbWrite, wire.RC), bandwidthHello(wire.VerbRead, wire.RC), latencyHello(wire.VerbSend, wire.RC), latencyHello(wire.VerbRead, wire.RC)} {
		for _, way := range []string{"duration", "interrupt"} {
			t.Run(fmt.Sprintf("%s/%s/%s", h.Verb, h.Measure, way), func(t *testing.T) {
				t.Parallel()
				h := h
				h.Count, h.Validate = 0, h.Verb == wire.VerbWrite
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				n := newNet(t)
				if way == "duration" {
					h.Duration = 1
				} else {
					n.fault = func(m *fakeMessage) int { // messages flow
						if m.number == 50 {
							cancel()
						}
						return 1
					}
				}
				client, server := n.run(ctx, h)
				if client.err != nil || server.err != nil {
					t.Fatalf("client: %v, server: %v", client.err, server.err)
				}
				r := client.result
				if r.Sent == 0 || r.Took < time.Duration(h.Duration)*time.Second || r.Peak > 0 && r.Peak < 0.9*r.Rate() {
					t.Errorf("sent %d in %v, %.0f a second, at best %.0f", r.Sent, r.Took, r.Rate(), r.Peak)
				}
			})
		}
	}
}

func TestPeak(t *testing.T) {
	start := time.Now()
	var p peak
	p.begin(start)
	for _, step := range []struct {
		ms, done uint64
		want     float64
	}{{50, 100, 0}, {100, 300, 0}, {150, 1000, 0}, {200, 1300, 10000}, {450, 1800, 10000}, {550, 4000, 22000}} {
		p.add(start.Add(time.Duration(step.ms)*time.Millisecond), step.done)
		if got := p.rate(); got != step.want {
			t.Errorf("after %d ms: %.0f messages a second, want %.0f", step.ms, got, step.want)
		}
	}
}

func TestRate(t *testing.T) {
	h := bandwidthHello(wire.VerbSend, wire.RC)
	h.Rate, h.Count = 1000, 100
	n := newNet(t)
	client, server := n.run(t.Context(), h)
	if client.err != nil || server.err != nil || client.result.Took < 290*time.Millisecond {
		t.Errorf("client: %v, server: %v, 300 messages at 1000 a second in %v", client.err, server.err, client.result.Took)
	}
}

func TestLatencies(t *testing.T) {
	var l latencies
	for _, tc := range []struct {
		ns     uint64
		bucket time.Duration
	}{{0, 0}, {127, 127}, {128, 129}, {129, 129}, {130, 131}, {255, 255}, {256, 259}, {1000, 1007}, {1 << 35, 1<<35 + 1<<29 - 1}} {
		if got := upper(bucketOf(tc.ns)); got != tc.bucket {
			t.Errorf("%d ns are in the bucket up to %d, want %d", tc.ns, got, tc.bucket)
		}
	}
	if bucketOf(1<<36) != lastBucket || bucketOf(1<<62) != lastBucket || bucketOf(1<<36-1) != lastBucket-1 {
		t.Errorf("buckets %d %d %d, want %d and one less", bucketOf(1<<36), bucketOf(1<<62), bucketOf(1<<36-1), lastBucket)
	}
	for i := range 100 {
		l.add(time.Duration(i+1) * time.Microsecond)
	}
	if l.quantile(0.5) < 50*time.Microsecond || l.quantile(0.5) > 52*time.Microsecond || l.quantile(1) != 100*time.Microsecond || l.min != time.Microsecond {
		t.Errorf("%v %v %v", l.quantile(0.5), l.quantile(1), l.min)
	}
}

// A peer that spoils all slots of a deep queue gets its answer before it takes the test for hung.
func TestThousandsOfDamagedSlots(t *testing.T) {
	p := plan{VerbsHello: wire.VerbsHello{Verb: wire.VerbWrite, QPType: wire.UC, Validate: true, Size: 64, QPs: 1, TxDepth: 16}}
	in := newTarget(p, false)
	data := bytes.Repeat([]byte{0x5a}, 64)
	for number := range uint64(16384) {
		if f := in.settle(0, data, number); f.kind == wire.Intact {
			t.Fatalf("slot %d is intact", number)
		}
	}
	if most := allWriting + time.Since(in.began)/10; in.waited > most {
		t.Errorf("waited for %v, want at most %v", in.waited, most)
	}
}

// A packet that was delayed is written to a slot of UC while that is checked, by a CPU that waits in between.
func TestSlotThatIsWritten(t *testing.T) {
	const size, number = 1000, 20
	for name, tc := range map[string]struct {
		before, after int // numbers that the rest of the slot has
		missing       bool
	}{
		"its own message":        {number - 16, number, false},
		"one of an earlier lap":  {number - 16, number - 16, true},
		"the first in that slot": {-1, number, false},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				p := plan{VerbsHello: wire.VerbsHello{Verb: wire.VerbWrite, QPType: wire.UC, Validate: true, Size: size, QPs: 1, TxDepth: 16}}
				in := newTarget(p, false)
				data, tag := make([]byte, size), in.receiveTag(0)
				fill(data, tag, number)
				if tc.before >= 0 {
					copy(data[286:], message(size, tag, uint32(tc.before))[286:])
				} else {
					wipe(data[286:])
				}
				in.pause = func() {
					time.Sleep(2 * writing)
					copy(data, message(size, tag, uint32(tc.after)))
				}
				f := in.settle(0, data, number)
				if !tc.missing && f.kind != wire.Intact || tc.missing && !in.isMissing(f) {
					t.Errorf("after %v: %+v", in.waited, f)
				}
				if in.waited < 2*writing { // a peer could make it wait for ever
					t.Errorf("the time is not counted: %v", in.waited)
				}
			})
		})
	}
}
