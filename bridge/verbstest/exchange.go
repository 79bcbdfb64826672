// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"math"
	"time"
	"unsafe"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// exchangeLimit is how long messages are exchanged before other things are looked at, unless there is something.
const exchangeLimit = time.Second

// exchanges runs messages of a latency test that are as they should be in one call. Checking data and what is
// not expected is left to exchange and answer. number is that of the next message. It returns how many there
// were, and when the next one was sent: zero if it was not.
func (s *side) exchanges(number uint64) (n int, sent time.Time, err error) {
	if s.Validate || s.out.stopped || s.Verb != wire.VerbSend && s.out.queues[0].peer.Slots > 1 {
		return 0, time.Time{}, nil
	}
	e := &s.batch
	s.describeExchange(e, number)
	completions, err := s.q.Exchange(e)
	if err != nil {
		return 0, time.Time{}, fmt.Errorf("%w: %w", ErrDevice, err)
	}
	now := time.Now()
	s.lastAction = now
	s.polled += uint64(e.Polled) + uint64(len(completions))
	s.exchanged(e, number, now)
	if e.IsPending == 1 {
		sent = now.Add(-e.PendingFor)
	}
	for i := range completions {
		if err := s.complete(&completions[i]); err != nil {
			return int(e.Exchanged), sent, err
		}
	}
	return int(e.Exchanged), sent, nil
}

func (s *side) describeExchange(e *transport.Exchange, number uint64) {
	data, _ := s.out.source(0, number)
	*e = transport.Exchange{
		Work: s.out.work(number), Number: number, End: math.MaxUint64, Limit: exchangeLimit, Arrival: transport.Fetched,
		Signal: uint32(s.signal), Quiet: uint32(s.out.queues[0].quiet),
	}
	if s.Count > 0 {
		e.End = uint64(s.Count)
	}
	if !s.out.end.IsZero() {
		e.Limit = min(e.Limit, time.Until(s.out.end))
	}
	if s.isServer {
		e.Server = 1
	}
	if s.poll {
		e.Busy = 1
	}
	if s.in == nil {
		return
	}
	e.TxLast = address(data)
	s.in.describeExchange(e)
}

// describeExchange says how a message arrives.
func (t *target) describeExchange(e *transport.Exchange) {
	switch t.Verb {
	case wire.VerbWrite:
		e.Arrival, e.RxLast = transport.Written, address(t.slot(0, 0))
		return
	case wire.VerbWriteImmediate:
		e.Op, e.Length = transport.DoneReceiveImmediate, t.Size
	case wire.VerbSend:
		e.Op, e.Length = transport.DoneReceive, uint32(t.headroom())+t.Size
		e.RxLast = address(t.memory.Data[t.offset(0, 0)+t.headroom():][:t.Size])
	}
	e.Arrival, e.Receive = transport.Received, t.receive(0, 0)
	if t.QPType == wire.UD {
		e.SourceQPN = t.queues[0].peerQPN
	}
}

// address returns that of the last byte of registered memory, which is not Go's.
func address(data []byte) uint64 { return uint64(uintptr(unsafe.Pointer(&data[len(data)-1]))) }

// exchanged takes the messages from number on as sent and arrived, and the next one as sent if it is pending.
func (s *side) exchanged(e *transport.Exchange, number uint64, now time.Time) {
	n := uint64(e.Exchanged)
	s.out.ran(number, n, n+uint64(e.IsPending), uint64(e.Quiet))
	if n == 0 {
		return
	}
	s.moved = now
	if s.in != nil {
		for i := range n {
			s.in.queues[0].add(number + i)
		}
		s.in.last, s.seen = now, byte(number+n-1)
	}
	if !s.isServer {
		for _, took := range e.Took[:n] {
			s.latency.add(took)
		}
	}
}
