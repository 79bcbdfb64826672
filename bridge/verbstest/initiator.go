// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"encoding/binary"
	"fmt"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// outbound is what one queue pair of an initiator has sent.
type outbound struct {
	peer     wire.VerbsInfo
	sent     uint64 // messages posted
	quiet    uint64 // messages since the last signalled work request
	done     uint64 // messages that have completed
	credit   uint64 // number of the last CREDIT
	checked  uint64 // number of the last CHECK on the queue pair
	checks   int    // CHECKs that have not completed
	check    int    // CHECKs posted so far
	queued   bool   // it is in ready
	asked    uint64 // number of the CHECK on the control connection that is unanswered; 0: none
	lacks    bool   // it lacks credit
	lackedAt time.Time
}

// initiator sends messages.
type initiator struct {
	plan
	queues  []outbound
	memory  transport.Memory
	checks  transport.Memory // CHECKs
	credits bool             // it needs credit
	damages

	ready   []int // queue pairs that may have something to post
	total   uint64
	done    uint64
	posts   uint64    // work requests posted
	start   time.Time // of the test
	end     time.Time // deadline; zero: none
	stopped bool      // nothing new is sent
	allowed uint64    // messages that the rate allows by now
}

// burst is how many messages of a queue pair are posted before those of the next one.
const burst = 16

func newInitiator(p plan, iwarp bool) *initiator {
	if iwarp && p.Validate && !p.isLatency() && !p.Verb.Fetches() {
		p.signal = 1 // siw may send unsignalled data after it was filled again
	}
	return &initiator{plan: p, queues: make([]outbound, p.QPs), credits: p.needsCredit(iwarp)}
}

// allocate registers the memory.
func (o *initiator) allocate(q transport.Queues) error {
	var use transport.Access
	if o.Verb.Fetches() {
		use = transport.ReadSink
	}
	var err error
	if o.memory, err = q.Register(len(o.queues)*o.sources()*o.sourceStride(), use); err != nil {
		return err
	}
	if o.isChecked() {
		o.checks, err = q.Register(len(o.queues)*wire.VerbsCheckDepth*wire.VerbsMessageSize, 0)
	}
	return err
}

func (o *initiator) sourceStride() int { return wire.VerbsSlot(int(o.Size)) }

// source returns the buffer of a message, and its address.
func (o *initiator) source(queue int, number uint64) ([]byte, uint64) {
	at := (queue*o.sources() + int(number%uint64(o.sources()))) * o.sourceStride()
	return o.memory.Data[at : at+int(o.Size)], o.memory.Addr + uint64(at)
}

// setPeer takes the peer's description of a queue pair.
func (o *initiator) setPeer(queue int, info wire.VerbsInfo) error {
	most := uint32(wire.VerbsSlotsMax)
	if o.Verb.IsAtomic() || o.isLatency() && (o.Verb == wire.VerbWrite || o.Verb == wire.VerbWriteImmediate) {
		most = 1
	}
	if info.Slots == 0 || info.Slots > most {
		return violation("QUEUE %d with %d slots: must be 1 to %d", queue, info.Slots, most)
	}
	if o.Verb != wire.VerbSend && info.Rkey == 0 {
		return violation("QUEUE %d without a key to its memory", queue)
	}
	if o.Verb == wire.VerbSend && (info.Rkey != 0 || info.Addr != 0) {
		return violation("QUEUE %d with memory, which nothing will use", queue)
	}
	if o.Verb.IsAtomic() && info.Addr%8 != 0 {
		return violation("QUEUE %d with a counter at %#x, which is not aligned", queue, info.Addr)
	}
	o.queues[queue].peer = info
	return nil
}

// begin starts the time.
func (o *initiator) begin(now time.Time) {
	o.start = now
	if o.Duration > 0 {
		o.end = now.Add(time.Duration(o.Duration) * time.Second)
	}
	for i := range o.queues {
		o.enqueue(i)
	}
}

// tick stops the test at its end, and allows messages at its rate.
func (o *initiator) tick(now time.Time) {
	if !o.end.IsZero() && !now.Before(o.end) {
		o.stop()
	}
	if o.Rate > 0 {
		o.allowed = uint64(now.Sub(o.start).Seconds()*float64(o.Rate)) + 1
	}
}

// stop sends nothing new, except what ends the test in good order.
func (o *initiator) stop() {
	if o.stopped {
		return
	}
	o.stopped = true
	for i := range o.queues {
		o.enqueue(i)
	}
}

// enqueue notes that a queue pair may have something to post.
func (o *initiator) enqueue(queue int) {
	if q := &o.queues[queue]; !q.queued {
		q.queued = true
		o.ready = append(o.ready, queue)
	}
}

// wants reports whether a queue pair has more messages to send. Once stopped, it sends one more if the last
// one was not signalled, unless a CHECK is.
func (o *initiator) wants(q *outbound) bool {
	switch {
	case o.Count > 0 && q.sent >= uint64(o.Count):
		return false
	case o.stopped:
		return q.quiet > 0 && !o.isChecked()
	}
	return true
}

// may reports whether a queue pair may send a message now.
func (o *initiator) may(q *outbound) bool {
	if q.sent-q.done >= uint64(o.TxDepth) || o.credits && q.sent >= q.credit+uint64(q.peer.Slots) {
		return false
	}
	return o.Rate == 0 || o.stopped || o.total < o.allowed
}

// needsCheck reports whether a CHECK is due behind the messages sent.
func (o *initiator) needsCheck(q *outbound) bool {
	if !o.isChecked() || q.checked == q.sent {
		return false
	}
	return q.sent-q.checked >= uint64(wire.VerbsBatch(int(q.peer.Slots))) || !o.wants(q)
}

// post fills works and returns how many there are.
func (o *initiator) post(works []transport.Work) int {
	n := 0
	for n < len(works) && len(o.ready) > 0 {
		queue := o.ready[0]
		o.ready = o.ready[1:]
		o.queues[queue].queued = false
		added, more := o.postQueue(queue, works[n:])
		n += added
		if more {
			o.enqueue(queue)
		}
		if more && added == 0 {
			break // the rate allows nothing
		}
	}
	return n
}

// postQueue fills works for one queue pair. It returns whether there is more to post later on.
func (o *initiator) postQueue(queue int, works []transport.Work) (n int, more bool) {
	q := &o.queues[queue]
	limit := len(works)
	if len(o.ready) > 0 {
		limit = min(limit, burst)
	}
	for n < limit {
		switch {
		case o.needsCheck(q):
			if q.checks == wire.VerbsCheckDepth {
				return n, false // until one has completed
			}
			o.check(queue, &works[n])
		case o.wants(q) && o.may(q):
			o.message(queue, &works[n])
		default:
			return n, o.wants(q) && o.Rate > 0 && o.total >= o.allowed
		}
		n++
	}
	return n, true
}

// work returns the work request of a message of queue pair 0.
func (o *initiator) work(number uint64) transport.Work {
	o.queues[0].sent = number
	var w transport.Work
	o.fill(0, &w)
	return w
}

// ran takes messages of queue pair 0 from number on as posted, and those of them that are done.
func (o *initiator) ran(number, done, posted, quiet uint64) {
	q := &o.queues[0]
	q.sent, q.done, q.quiet = number+posted, number+done, quiet
	o.total += posted
	o.posts += posted
	if done > 0 {
		o.done = q.done
	}
}

// fill makes the work request of the next message.
func (o *initiator) fill(queue int, w *transport.Work) {
	q := &o.queues[queue]
	data, addr := o.source(queue, q.sent)
	*w = transport.Work{ID: workID(kindMessage, queue, q.sent+1), Queue: uint32(queue), Addr: addr, Length: o.Size, Lkey: o.memory.Lkey}
	o.fillWork(queue, q, data, w)
}

// message makes the work request of the next message, which is posted then.
func (o *initiator) message(queue int, w *transport.Work) {
	q := &o.queues[queue]
	o.fill(queue, w)
	q.sent++
	o.total++
	if q.quiet++; q.quiet >= o.signal || q.sent == uint64(o.Count) || o.stopped {
		w.Flags |= transport.Signalled
		q.quiet = 0
	}
	o.posts++
}

func (o *initiator) fillWork(queue int, q *outbound, data []byte, w *transport.Work) {
	slot := q.sent % uint64(q.peer.Slots)
	w.RemoteAddr, w.Rkey = q.peer.Addr+slot*uint64(wire.VerbsSlot(int(o.Size))), q.peer.Rkey
	switch o.Verb {
	case wire.VerbSend:
		w.Op = transport.OpSend
	case wire.VerbWrite:
		w.Op = transport.OpWrite
	case wire.VerbWriteImmediate:
		w.Op, w.Immediate = transport.OpWriteImmediate, uint32(q.sent)
	case wire.VerbRead:
		w.Op = transport.OpRead
		if o.Validate {
			wipe(data)
		}
	case wire.VerbFetchAdd:
		w.Op, w.CompareAdd, w.RemoteAddr = transport.OpFetchAdd, 1, q.peer.Addr
	case wire.VerbCompareSwap:
		w.Op, w.CompareAdd, w.Swap, w.RemoteAddr = transport.OpCompareSwap, q.sent, q.sent+1, q.peer.Addr
	}
	if o.Verb.Fetches() {
		return
	}
	switch {
	case o.Validate:
		fill(data, o.sendTag(queue), uint32(q.sent))
	case o.isLatency():
		data[len(data)-1] = byte(q.sent)
	}
	if o.Inline {
		w.Flags |= transport.Inline
	}
}

// setNumber makes a number that of the next message, in an answer to it.
func (o *initiator) setNumber(number uint64) { o.queues[0].sent = number }

// answered takes a message as completed that was answered, or to which no answer comes.
func (o *initiator) answered(number uint64) { o.queues[0].done, o.done = number+1, number+1 }

// check makes the work request of a CHECK behind the messages sent.
func (o *initiator) check(queue int, w *transport.Work) {
	q := &o.queues[queue]
	at := (queue*wire.VerbsCheckDepth + q.check%wire.VerbsCheckDepth) * wire.VerbsMessageSize
	wire.VerbsMessage{Type: wire.VerbsCheck, Queue: uint16(queue), Number: q.sent}.Append(o.checks.Data[at:at])
	*w = transport.Work{
		ID: workID(kindCheck, queue, q.sent), Queue: uint32(queue), Op: transport.OpSend, Flags: transport.Signalled,
		Addr: o.checks.Addr + uint64(at), Length: wire.VerbsMessageSize, Lkey: o.checks.Lkey,
	}
	q.checks++
	q.check++
	q.checked, q.quiet = q.sent, 0
	o.posts++
}

// completed handles a completion.
func (o *initiator) completed(kind, queue int, number uint64) error {
	q := &o.queues[queue]
	if kind == kindCheck {
		q.checks--
	}
	if o.isLatency() && o.signal > 1 {
		return nil // answers tell what is done
	}
	number = q.done + (number-q.done)&(1<<numberBits-1)
	if number > q.sent {
		return fmt.Errorf("completion of message %d of queue pair %d: expected %d to %d", number, queue, q.done, q.sent)
	}
	if o.Validate && o.Verb.Fetches() {
		for n := q.done; n < number; n++ {
			o.checkFetched(queue, q, n)
		}
	}
	o.done += number - q.done
	q.done = number
	o.enqueue(queue)
	return nil
}

// checkFetched checks what a READ or an atomic operation has returned.
func (o *initiator) checkFetched(queue int, q *outbound, number uint64) {
	data, _ := o.source(queue, number)
	if o.Verb == wire.VerbRead {
		slot := number % uint64(q.peer.Slots)
		if !isIntact(data, o.receiveTag(queue), uint32(slot)) {
			o.damages.add(queue, number, examine(data, o.receiveTag(queue), uint32(slot)))
		}
		return
	}
	if got := binary.NativeEndian.Uint64(data); got != number {
		f := finding{kind: wire.Damaged, want: number, got: got}
		if got < number {
			f.kind = wire.Stale
		}
		o.damages.add(queue, number, f)
	}
}

// credited takes a CREDIT, and reports whether it grants anything.
func (o *initiator) credited(queue int, number uint64) (bool, error) {
	if !o.credits || queue >= len(o.queues) {
		return false, violation("CREDIT for queue pair %d", queue)
	}
	q := &o.queues[queue]
	if number < q.credit || number > q.sent {
		return false, violation("CREDIT of %d for queue pair %d: must be %d to %d", number, queue, q.credit, q.sent)
	}
	grants := number > q.credit
	q.credit = number
	q.lacks = false
	if number >= q.asked {
		q.asked = 0
	}
	o.enqueue(queue)
	return grants, nil
}

// stalled calls ask for each queue pair that has lacked credit for a while, of which a message or a CHECK may
// be lost.
func (o *initiator) stalled(now time.Time, ask func(queue int, number uint64) error) error {
	if !o.credits || o.QPType != wire.UC {
		return nil
	}
	for i := range o.queues {
		q := &o.queues[i]
		lacks := o.lacksCredit(q)
		if !lacks || !q.lacks {
			q.lacks, q.lackedAt = lacks, now
			continue
		}
		if q.asked > 0 || now.Sub(q.lackedAt) < wire.VerbsStallMS*time.Millisecond {
			continue
		}
		q.asked, q.checked = q.sent, q.sent
		if err := ask(i, q.sent); err != nil {
			return err
		}
	}
	return nil
}

// waits reports whether something is due from the peer or the device, and not only from the rate.
func (o *initiator) waits() bool {
	if o.Rate == 0 || o.done < o.total {
		return true
	}
	for i := range o.queues {
		if o.lacksCredit(&o.queues[i]) {
			return true
		}
	}
	return false
}

// lacksCredit reports whether the next message of a queue pair waits for credit, or the end of WRITEs that are
// checked.
func (o *initiator) lacksCredit(q *outbound) bool {
	return o.credits && q.credit < q.sent &&
		(q.sent == q.credit+uint64(q.peer.Slots) && o.wants(q) || !o.wants(q) && o.isChecked())
}

// isDone reports whether everything was sent, has completed, and is covered by credit where WRITEs are
// checked.
func (o *initiator) isDone() bool {
	if o.done < o.total || !o.stopped && o.Count == 0 {
		return false
	}
	for i := range o.queues {
		q := &o.queues[i]
		if o.wants(q) || q.done < q.sent || o.isChecked() && q.credit < q.sent {
			return false
		}
	}
	return true
}
