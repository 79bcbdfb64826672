// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// Kinds of work requests, in the upper 8 bits of an ID. The next 16 bits are the index of the queue pair, the
// lower 40 bits a number.
const (
	kindMessage = iota + 1 // number: of messages sent with this one
	kindCheck              // number: of messages sent before
	kindReceive            // number: of the buffer
)

const numberBits = 40

func workID(kind, queue int, number uint64) uint64 {
	return uint64(kind)<<56 | uint64(queue)<<numberBits | number&(1<<numberBits-1)
}

func splitID(id uint64) (kind, queue int, number uint64) {
	return int(id >> 56), int(id >> numberBits & 0xffff), id & (1<<numberBits - 1)
}

// Damage is the first message whose data was wrong.
type Damage struct {
	Queue  int
	Number uint64 // of the message
	Kind   wire.Damage
	Offset int        // of its first wrong byte
	word   *[2]uint64 // that word as it would be right, and as it is; nil if the peer has found the damage
}

func (d *Damage) String() string {
	text := fmt.Sprintf("queue pair %d, message %d, offset %d: %s", d.Queue, d.Number, d.Offset, d.Kind)
	if d.word == nil {
		return text
	}
	return text + fmt.Sprintf(", word %016x instead of %016x", d.word[1], d.word[0])
}

// damages counts messages whose data was wrong.
type damages struct {
	count uint64
	first *Damage
}

// check checks the data of a message.
func (d *damages) check(data []byte, queue int, tag uint16, number uint64) bool {
	if isIntact(data, tag, uint32(number)) {
		return true
	}
	f := examine(data, tag, uint32(number))
	if f.kind == wire.Intact {
		return true // by now
	}
	d.add(queue, number, f)
	return false
}

func (d *damages) add(queue int, number uint64, f finding) {
	d.count++
	if d.first == nil {
		d.first = &Damage{Queue: queue, Number: number, Kind: f.kind, Offset: f.offset, word: &[2]uint64{f.want, f.got}}
	}
}

// grant is a CREDIT that is due.
type grant struct {
	queue  int
	number uint64
}

// inbound is what one queue pair of a target has received.
type inbound struct {
	account
	credited uint64 // number of the last CREDIT
	peerQPN  uint32 // UC, UD
}

// target receives the messages of the peer and checks them.
type target struct {
	plan
	queues  []inbound
	byQPN   map[uint32]int // with a shared receive queue
	memory  transport.Memory
	scratch transport.Memory // CHECKs, and receives that need no memory
	credits bool             // the peer needs credit
	damages
	began  time.Time     // of the test
	waited time.Duration // for slots that are being written
	pause  func()        // between two looks at such a slot

	pending []transport.Receive // to be posted
	grants  []grant             // to be sent once these are posted
	asked   []grant             // CHECKs on the control connection, not answered yet
	last    time.Time           // when the last message came
}

func newTarget(p plan, iwarp bool) *target {
	return &target{plan: p, queues: make([]inbound, p.QPs), credits: p.needsCredit(iwarp), began: time.Now(), pause: runtime.Gosched}
}

// allocate registers the memory.
func (t *target) allocate(q transport.Queues) error {
	var use transport.Access
	size := t.buffers() * t.stride()
	switch t.Verb {
	case wire.VerbWrite, wire.VerbWriteImmediate:
		use = transport.PeerWrites
	case wire.VerbRead:
		use = transport.PeerReads
	case wire.VerbFetchAdd, wire.VerbCompareSwap:
		use = transport.PeerAtomics
	}
	var err error
	if t.memory, err = q.Register(size, use); err != nil {
		return err
	}
	switch {
	case use == transport.PeerWrites:
		wipe(t.memory.Data)
	case t.Verb == wire.VerbRead && t.Validate:
		for queue := range t.queues {
			for i := range t.slots() {
				fill(t.slot(queue, i), t.sendTag(queue), uint32(i))
			}
		}
	}
	if t.Verb != wire.VerbSend && t.receiveDepth() > 0 {
		t.scratch, err = q.Register(len(t.queues)*wire.VerbsCheckDepth*wire.VerbsMessageSize, 0)
	}
	return err
}

// wipe fills data with what memory holds before anything is written to it.
func wipe(data []byte) {
	if len(data) == 0 {
		return
	}
	data[0] = wiped
	for n := 1; n < len(data); n *= 2 {
		copy(data[n:], data[:n])
	}
}

// slot returns a slot of a queue pair, without the bytes between slots.
func (t *target) slot(queue, i int) []byte {
	at := (queue*t.slots() + i) * t.stride()
	return t.memory.Data[at : at+int(t.Size)]
}

// counter returns the counter of a queue pair, which atomic operations of the peer change.
func (t *target) counter(queue int) *uint64 {
	return (*uint64)(unsafe.Pointer(&t.memory.Data[queue*t.stride()]))
}

// info returns what the peer has to know of a queue pair's memory.
func (t *target) info(queue int) wire.VerbsInfo {
	info := wire.VerbsInfo{Slots: uint32(t.slots())}
	if t.Verb != wire.VerbSend {
		info.Addr, info.Rkey = t.memory.Addr+uint64(queue*t.slots()*t.stride()), t.memory.Rkey
	}
	return info
}

// prepare makes all receives pending.
func (t *target) prepare(q transport.Queues) {
	if t.SRQ {
		t.byQPN = make(map[uint32]int, len(t.queues))
		for i := range t.queues {
			t.byQPN[q.Address(i).QPN] = i
		}
		for i := range t.receiveDepth() {
			t.repost(0, uint64(i))
		}
		return
	}
	for i := range t.receiveDepth() {
		for queue := range t.queues {
			t.repost(queue, uint64(i))
		}
	}
}

// repost makes the receive of a buffer pending.
func (t *target) repost(queue int, buffer uint64) {
	t.pending = append(t.pending, t.receive(queue, buffer))
}

// receive makes the receive of a buffer.
func (t *target) receive(queue int, buffer uint64) transport.Receive {
	r := transport.Receive{ID: workID(kindReceive, queue, buffer), Queue: uint32(queue)}
	if t.Verb == wire.VerbSend {
		r.Addr, r.Lkey = t.memory.Addr+uint64(t.offset(queue, buffer)), t.memory.Lkey
		r.Length = uint32(t.headroom()) + t.Size
	} else {
		r.Addr, r.Lkey = t.scratch.Addr+uint64(t.checkOffset(queue, buffer)), t.scratch.Lkey
		r.Length = wire.VerbsMessageSize
	}
	return r
}

// offset returns where the memory of a SEND's receive begins.
func (t *target) offset(queue int, buffer uint64) int {
	switch {
	case !t.Validate && t.SRQ:
		buffer = 0
	case !t.Validate:
		buffer = uint64(queue)
	case !t.SRQ:
		buffer += uint64(queue) * uint64(t.RxDepth)
	}
	return int(buffer) * t.stride()
}

func (t *target) checkOffset(queue int, buffer uint64) int {
	return (queue*wire.VerbsCheckDepth + int(buffer%wire.VerbsCheckDepth)) * wire.VerbsMessageSize
}

// received handles the completion of a receive.
func (t *target) received(c *transport.Completion) error {
	_, queue, buffer := splitID(c.ID)
	owner := queue // of the receive; with a shared receive queue not the one that used it
	if t.SRQ {
		var known bool
		if queue, known = t.byQPN[c.QPN]; !known {
			return fmt.Errorf("a completion of unknown queue pair %#x", c.QPN)
		}
	}
	var err error
	switch {
	case t.Verb == wire.VerbSend:
		err = t.send(queue, buffer, c)
	case t.Verb == wire.VerbWriteImmediate:
		err = t.immediate(queue, c)
	default:
		err = t.checkMessage(queue, buffer, c)
	}
	t.repost(owner, buffer)
	return err
}

// send takes a SEND.
func (t *target) send(queue int, buffer uint64, c *transport.Completion) error {
	q := &t.queues[queue]
	if t.QPType == wire.UD && c.SourceQPN != q.peerQPN {
		return nil // anyone may send to this queue pair
	}
	if c.Op != transport.DoneReceive {
		return violation("an RDMA WRITE with immediate data on queue pair %d instead of a SEND", queue)
	}
	if int(c.Length) != t.headroom()+int(t.Size) {
		return violation("a message of %d bytes on queue pair %d, instead of %d", int(c.Length)-t.headroom(), queue, t.Size)
	}
	data := t.memory.Data[t.offset(queue, buffer)+t.headroom():][:t.Size]
	number := t.numberIn(q, data)
	if t.Validate && !t.check(data, queue, t.receiveTag(queue), number) {
		number = q.next // what it says of its number may be wrong, too
	}
	return t.count(queue, number)
}

// numberIn returns the number of a SEND, as far as it is known: UC and UD lose messages.
func (t *target) numberIn(q *inbound, data []byte) uint64 {
	number := q.next
	switch {
	case t.isReliable():
	case t.Validate:
		number = q.extend(numberOf(data), 32)
	case t.isLatency():
		number = q.extend(numberOf(data), 8) // the last byte is right
	}
	if number+near <= q.next || number >= q.next+near || t.isAfterLast(number) { // damaged
		return q.next
	}
	return number
}

// immediate takes a WRITE_IMM.
func (t *target) immediate(queue int, c *transport.Completion) error {
	q := &t.queues[queue]
	if c.Op != transport.DoneReceiveImmediate {
		return violation("a SEND on queue pair %d instead of an RDMA WRITE with immediate data", queue)
	}
	if c.Length != t.Size {
		return violation("a message of %d bytes on queue pair %d, instead of %d", c.Length, queue, t.Size)
	}
	number := q.next
	if t.mayLose() {
		number = q.extend(c.Immediate, 32)
		if number > q.next+near {
			return violation("a message of queue pair %d after message %d has immediate data %d", queue, q.next, c.Immediate)
		}
	} else if c.Immediate != uint32(number) {
		return violation("message %d of queue pair %d has immediate data %d", number, queue, c.Immediate)
	}
	if t.isLate(q, number) {
		return nil
	}
	slots := uint64(t.slots())
	// Of a late message the slot may have been written again; one without credit is refused below.
	isThere := number+slots >= q.next
	if t.credits {
		isThere = number >= q.credited && number < q.credited+slots
	}
	if t.Validate && isThere {
		f := t.settle(queue, t.slot(queue, int(number%slots)), number)
		if f.kind != wire.Intact && !t.isOvertaken(q, number, f) {
			t.damages.add(queue, number, f)
		}
	}
	return t.count(queue, number)
}

// isOvertaken reports whether a message that comes only now has written to the slot of a message, too: one of an earlier
// lap, whose immediate has not been seen yet, or in a latency test the one after an answer that was given up.
func (t *target) isOvertaken(q *inbound, number uint64, f finding) bool {
	return t.isMissing(f) && (t.isLatency() || q.lacks(number-uint64(uint32(number)-f.number)))
}

// isMissing reports whether loss explains a slot that is wrong. In a latency test, a client that has given up an answer
// writes the next message to the same slot.
func (t *target) isMissing(f finding) bool {
	slots := t.slots()
	if t.isLatency() {
		slots = 0
	}
	return f.kind != wire.Intact && t.mayLose() && f.isMissing(slots)
}

// For how long a slot may be written to after its last byte was seen, or its message was taken as lost: software RDMA
// copies by the CPU, in any order. A slot that has a part of a message may be for longer: that CPU may be one of a VM, and
// wait.
const (
	writing       = time.Millisecond
	partlyWritten = 100 * time.Millisecond
	allWriting    = time.Second // in all, and a tenth of the time since the test began
)

// settle examines a slot, and again if it is not right and may be written to now; in a latency test also if it seems to
// be of a message that was lost, as its last byte has arrived. The time for this is limited in all, as a peer can spoil
// thousands of slots at once.
func (t *target) settle(queue int, data []byte, number uint64) finding {
	tag := t.receiveTag(queue)
	if isIntact(data, tag, uint32(number)) {
		return finding{}
	}
	start := time.Now()
	most := max(allWriting+start.Sub(t.began)/10-t.waited, 0)
	for ; ; t.pause() {
		f := examine(data, tag, uint32(number))
		missing, limit := t.isMissing(f), writing
		switch {
		case f.kind == wire.Intact, !t.isLatency() && (missing || !t.mayLose()):
			limit = 0
		case !missing && f.mayBeWritten():
			limit = partlyWritten
		}
		if passed := time.Since(start); passed >= min(limit, most) {
			t.waited += min(passed, most)
			return f
		}
	}
}

// isLate reports whether a message is the answer to one that a client of a latency test has given up.
func (t *target) isLate(q *inbound, number uint64) bool {
	return t.isLatency() && !t.isServer && t.mayLose() && number != q.next
}

// isAfterLast reports whether a message of a latency test has a number beyond the last one.
func (t *target) isAfterLast(number uint64) bool {
	return t.isLatency() && t.Count > 0 && number >= uint64(t.Count)
}

// count counts a message, and gives credit if enough have come.
func (t *target) count(queue int, number uint64) error {
	q, slots := &t.queues[queue], uint64(t.slots())
	if t.isLate(q, number) {
		return nil
	}
	if t.isAfterLast(number) {
		return violation("message %d, after the last one", number)
	}
	if t.credits && number >= q.credited+slots {
		return violation("message %d of queue pair %d, with credit up to %d", number, queue, q.credited+slots)
	}
	q.add(number)
	if t.credits && q.next-q.credited >= uint64(wire.VerbsBatch(int(slots))) {
		t.grant(queue, q.next)
	}
	return nil
}

func (t *target) grant(queue int, number uint64) {
	t.queues[queue].credited = number
	t.grants = append(t.grants, grant{queue, number})
}

// checkMessage takes a CHECK on a data queue pair.
func (t *target) checkMessage(queue int, buffer uint64, c *transport.Completion) error {
	if c.Op != transport.DoneReceive || c.Length != wire.VerbsMessageSize {
		return violation("a message of %d bytes on queue pair %d instead of a CHECK", c.Length, queue)
	}
	m, err := wire.DecodeVerbsMessage(t.scratch.Data[t.checkOffset(queue, buffer):][:wire.VerbsMessageSize])
	if err != nil {
		return violation("on queue pair %d: %v", queue, err)
	}
	if m.Type != wire.VerbsCheck || int(m.Queue) != queue {
		return violation("%s of queue pair %d on queue pair %d instead of a CHECK", m.Type, m.Queue, queue)
	}
	if t.mayLose() && m.Number < t.queues[queue].credited {
		return nil // a CHECK on the control connection has overtaken it
	}
	return t.checked(queue, m.Number)
}

// controlCheck takes a CHECK on the control connection: what did not arrive before it is lost. It is answered when all
// completions have been polled. Of the CHECKs of a queue pair the highest counts, so a peer cannot make the list grow.
func (t *target) controlCheck(queue int, number uint64) error {
	if t.QPType != wire.UC || !t.credits {
		return violation("CHECK on the control connection")
	}
	for i := range t.asked {
		if c := &t.asked[i]; c.queue == queue {
			c.number = max(c.number, number)
			return nil
		}
	}
	t.asked = append(t.asked, grant{queue, number})
	return nil
}

// answerChecks answers what controlCheck has taken.
func (t *target) answerChecks() error {
	for _, c := range t.asked {
		if c.number < t.queues[c.queue].credited {
			continue // a later one on the queue pair has overtaken it
		}
		if err := t.checked(c.queue, c.number); err != nil {
			return err
		}
	}
	t.asked = t.asked[:0]
	return nil
}

// checked checks the messages of a queue pair below a number that are not checked yet, and gives credit.
func (t *target) checked(queue int, number uint64) error {
	q, slots := &t.queues[queue], uint64(t.slots())
	if number < q.credited || number > q.credited+slots {
		return violation("CHECK up to message %d of queue pair %d: must be %d to %d", number, queue, q.credited, q.credited+slots)
	}
	if t.Verb == wire.VerbWrite {
		for n := q.credited; n < number; n++ {
			t.checkSlot(queue, n)
		}
	} else {
		q.skip(number)
	}
	t.grant(queue, number)
	return nil
}

// checkSlot checks the slot of a WRITE.
func (t *target) checkSlot(queue int, number uint64) {
	q, f := &t.queues[queue], t.settle(queue, t.slot(queue, int(number%uint64(t.slots()))), number)
	switch {
	case t.isMissing(f):
		q.skip(number + 1)
		return
	case f.kind != wire.Intact:
		t.damages.add(queue, number, f)
	}
	q.add(number)
}

// sum returns how many different messages have arrived.
func (t *target) sum() uint64 {
	var n uint64
	for i := range t.queues {
		if t.Verb.IsAtomic() {
			n += *t.counter(i)
		} else {
			n += t.queues[i].received
		}
	}
	return n
}

// highest returns of how many messages the numbers were used.
func (t *target) highest() uint64 {
	var n uint64
	for i := range t.queues {
		n += t.queues[i].next
	}
	return n
}

// hasAll reports whether no more will come of so many messages.
func (t *target) hasAll(sent uint64) bool {
	return !t.counts() || t.Verb.IsAtomic() || t.isChecked() || t.sum() >= sent
}

// report returns the REPORT for so many messages that the peer says to have sent.
func (t *target) report(sent uint64) (wire.VerbsMessage, error) {
	m := wire.VerbsMessage{Type: wire.VerbsReport}
	r := &m.Report
	if t.counts() {
		highest := t.highest()
		for i := range t.queues {
			r.Repeated += t.queues[i].repeated
			r.Reordered += t.queues[i].reordered
		}
		r.Received = t.sum()
		if t.mayLose() && r.Received > sent { // they had no numbers
			r.Repeated += r.Received - sent
			r.Received = sent
		}
		if r.Received > sent || t.isReliable() && highest > sent {
			return m, violation("DONE of %d messages, but %d arrived and the numbers of %d were used", sent, r.Received, highest)
		}
		r.Lost = sent - r.Received
	}
	r.Damaged = t.damages.count
	if d := t.first; d != nil {
		m.Queue, r.Number, r.Offset, r.Damage = uint16(d.Queue), d.Number, uint32(d.Offset), d.Kind
	}
	return m, nil
}
