// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"time"

	"krping/bridge/transport"
	"krping/bridge/verbstest"
	"krping/bridge/wire"
)

// faultyControl is the control connection of a verbs test whose queue pairs have faults.
type faultyControl struct {
	verbstest.Conn
	faults *Faults
	size   int // bytes of a message
}

// VerbsConn returns the control connection of a server of a verbs test with faults injected.
func (f *Faults) VerbsConn(conn verbstest.Conn, size int) verbstest.Conn {
	return &faultyControl{conn, f, size}
}

func (c *faultyControl) NewQueues(config transport.QueueConfig) (transport.Queues, error) {
	q, err := c.Conn.NewQueues(config)
	if err != nil {
		return nil, err
	}
	return &faultyQueues{Queues: q, faults: c.faults, size: c.size, posted: map[uint64]transport.Receive{}}, nil
}

// faultyQueues flips bits of messages.
type faultyQueues struct {
	transport.Queues
	faults *Faults
	size   int
	slots  []byte // memory that the peer accesses
	all    []transport.Memory
	posted map[uint64]transport.Receive // by ID
}

// Unwrap returns the queue pairs without faults.
func (q *faultyQueues) Unwrap() transport.Queues { return q.Queues }

func (q *faultyQueues) Register(n int, use transport.Access) (transport.Memory, error) {
	m, err := q.Queues.Register(n, use)
	q.all = append(q.all, m)
	if use&(transport.PeerWrites|transport.PeerReads|transport.PeerAtomics) != 0 {
		q.slots = m.Data
	}
	return m, err
}

// Turn flips a bit of each slot, or, without slots, of each message that has arrived.
func (q *faultyQueues) Turn(works, receives int, wait time.Duration, busy bool) ([]transport.Completion, error) {
	_, batch := q.Batch()
	for _, r := range batch[:receives] {
		q.posted[r.ID] = r
	}
	completions, err := q.Queues.Turn(works, receives, wait, busy)
	switch {
	case err != nil:
	case q.slots != nil:
		q.corruptSlots()
	default:
		for _, c := range completions {
			q.corrupt(c)
		}
	}
	return completions, err
}

// Watch flips a bit of the slot before what was written there is seen.
func (q *faultyQueues) Watch(b *byte, old byte, wait time.Duration) (now byte, changed bool) {
	now, changed = q.Queues.Watch(b, old, wait)
	if changed {
		q.corruptSlots()
	}
	return now, changed
}

// corruptSlots flips a bit of each slot.
func (q *faultyQueues) corruptSlots() {
	if !q.faults.happens(VerbsCorrupt, "") {
		return
	}
	for at := 0; at+q.size <= len(q.slots); at += wire.VerbsSlot(q.size) {
		q.slots[at] ^= 1
	}
}

// corrupt flips a bit of the last byte of a message that has arrived.
func (q *faultyQueues) corrupt(c transport.Completion) {
	r, received := q.posted[c.ID]
	if !received || c.Status != 0 || c.Op != transport.DoneReceive || !q.faults.happens(VerbsCorrupt, "") {
		return
	}
	for _, m := range q.all {
		if m.Lkey == r.Lkey {
			m.Data[r.Addr-m.Addr+uint64(c.Length)-1] ^= 1
		}
	}
}
