// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// side is one side of a running test.
type side struct {
	plan
	ctx     context.Context // its end stops the sending in good order
	control *control
	q       transport.Queues
	ability transport.Ability
	timeout time.Duration
	poll    bool // for completions, instead of sleeping

	out *initiator // nil if it sends nothing
	in  *target    // nil if it receives nothing

	peerSent   uint64 // of the peer's DONE
	peerDone   time.Time
	reported   bool // this side has sent its REPORT
	doneAt     time.Time
	report     *wire.VerbsMessage // the peer's
	workDone   time.Time          // when the last message had completed
	polled     uint64             // completions
	idle       bool               // there was none the last time
	peak       peak
	lastAction time.Time
	moved      time.Time // when there was progress
	latency    latencies
	seen       byte // the last byte of the slot of a latency test's WRITEs
	batch      transport.Exchange
}

// newSide checks that the device can do the test, and makes the queue pairs, memory for what comes in, and
// receives. The caller calls close.
func newSide(ctx context.Context, p plan, conn Conn, timeout time.Duration) (*side, error) {
	s := &side{plan: p, ctx: ctx, timeout: timeout, seen: wiped, control: newControl(conn, timeout, int(p.QPs))}
	if err := s.allocate(conn); err != nil {
		s.fail(err)
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *side) allocate(conn Conn) error {
	var err error
	if s.ability, err = conn.Ability(); err != nil {
		return err
	}
	if r := s.lacks(s.ability); r != nil {
		return r
	}
	mtu, err := conn.PathMTU()
	if err != nil {
		return err
	}
	if r := s.datagramLimit(mtu); r != nil {
		return r
	}
	if s.q, err = conn.NewQueues(s.queueConfig(rand.Uint32() >> 1)); err != nil {
		return fmt.Errorf("%w: %w", errResources, err)
	}
	s.control.wakes(s.q.Wake)
	if s.receives {
		s.in = newTarget(s.plan, s.ability.IWARP)
		if err := s.in.allocate(s.q); err != nil {
			return fmt.Errorf("%w: %w", errResources, err)
		}
	}
	if s.sends {
		s.out = newInitiator(s.plan, s.ability.IWARP)
		if err := s.out.allocate(s.q); err != nil {
			return fmt.Errorf("%w: %w", errResources, err)
		}
	}
	return nil
}

// fail tells the peer why the test ends.
func (s *side) fail(err error) { s.control.fail(err) }

// close ends the test. It closes the control connection and frees the queue pairs.
func (s *side) close() {
	s.control.close()
	if s.q != nil {
		s.q.Close()
	}
}

// ---- set-up ----

// describe sends the QUEUE of each queue pair.
func (s *side) describe() error {
	for i := range int(s.QPs) {
		var info wire.VerbsInfo
		if s.in != nil {
			info = s.in.info(i)
		}
		if s.QPType != wire.RC {
			a := s.q.Address(i)
			info.QPN, info.PSN = a.QPN, a.PSN
			if s.QPType == wire.UD {
				info.QKey = a.QKey
			}
		}
		if err := s.control.send(wire.VerbsMessage{Type: wire.VerbsQueue, Queue: uint16(i), Info: info}); err != nil {
			return err
		}
	}
	return nil
}

// meet takes the peer's QUEUEs and connects UC and UD queue pairs.
func (s *side) meet() error {
	for i := range int(s.QPs) {
		m, err := s.control.await(s.ctx, wire.VerbsQueue, s.setupTimeout(s.timeout))
		if err != nil {
			return err
		}
		if err := s.meetQueue(i, m); err != nil {
			return err
		}
	}
	return nil
}

func (s *side) meetQueue(i int, m wire.VerbsMessage) error {
	info := m.Info
	if int(m.Queue) != i {
		return violation("QUEUE %d instead of %d", m.Queue, i)
	}
	if s.out != nil {
		if err := s.out.setPeer(i, info); err != nil {
			return err
		}
	} else if info.Slots != 0 || info.Addr != 0 || info.Rkey != 0 {
		return violation("QUEUE %d with memory, which nothing will use", i)
	}
	if s.QPType == wire.RC {
		if info.QPN != 0 || info.PSN != 0 || info.QKey != 0 {
			return violation("QUEUE %d with a queue pair number, PSN or queue key, over rc", i)
		}
		return nil
	}
	if info.QPN == 0 || s.QPType == wire.UC && info.QKey != 0 {
		return violation("QUEUE %d with queue pair number %d and queue key %#x", i, info.QPN, info.QKey)
	}
	if s.in != nil {
		s.in.queues[i].peerQPN = info.QPN
	}
	return s.q.Connect(i, transport.QueueAddress{QPN: info.QPN, PSN: info.PSN, QKey: info.QKey}, int(s.MTU))
}

// postReceives posts all receives.
func (s *side) postReceives() error {
	if s.in == nil {
		return nil
	}
	s.in.prepare(s.q)
	for len(s.in.pending) > 0 {
		if err := s.turn(0, 0); err != nil {
			return err
		}
	}
	return nil
}

// ---- the loop ----

// isPassive reports whether this side gets control messages only. Polling for them gains nothing.
func (s *side) isPassive() bool { return s.out == nil && (s.Verb.Fetches() || !s.counts()) }

// turn posts receives that are pending and the first works of the batch, and handles completions. It waits
// for some at most wait.
func (s *side) turn(works int, wait time.Duration) error {
	receives := 0
	if s.in != nil {
		_, batch := s.q.Batch()
		receives = copy(batch, s.in.pending)
		s.in.pending = append(s.in.pending[:0], s.in.pending[receives:]...)
		if len(s.in.grants) > 0 || len(s.in.pending) > 0 || len(s.in.asked) > 0 {
			wait = 0
		}
	}
	completions, err := s.q.Turn(works, receives, wait, s.poll && !s.isPassive())
	if err != nil {
		return fmt.Errorf("%w: %w", ErrDevice, err)
	}
	if err := s.sendGrants(); err != nil {
		return err
	}
	s.polled += uint64(len(completions))
	s.idle = len(completions) == 0
	if !s.idle {
		s.moved = s.lastAction
	}
	for i := range completions {
		if err := s.complete(&completions[i]); err != nil {
			return err
		}
	}
	if s.in != nil && len(completions) < transport.TurnSize { // there was no more
		return s.in.answerChecks()
	}
	return nil
}

// sendGrants sends the CREDITs whose receives have been posted.
func (s *side) sendGrants() error {
	if s.in == nil || len(s.in.grants) == 0 || len(s.in.pending) > 0 {
		return nil
	}
	for _, g := range s.in.grants {
		if err := s.control.send(wire.VerbsMessage{Type: wire.VerbsCredit, Queue: uint16(g.queue), Number: g.number}); err != nil {
			return err
		}
	}
	s.in.grants = s.in.grants[:0]
	return nil
}

func (s *side) complete(c *transport.Completion) error {
	kind, queue, number := splitID(c.ID)
	if c.Status != 0 {
		return s.failed(kind, queue, c)
	}
	if kind != kindReceive {
		return s.out.completed(kind, queue, number)
	}
	s.in.last = s.lastAction
	return s.in.received(c)
}

// flushed is the status of work requests of a queue pair that has failed before.
const flushed = 5

// failed returns the error of a work request that failed. Why the peer ended the test, if it says so, is the
// better reason.
func (s *side) failed(kind, queue int, c *transport.Completion) error {
	late := time.After(farewell)
	for {
		_, ok, err := s.control.take()
		if err != nil && !(errors.Is(err, ErrEnded) && c.Status != flushed) {
			return err
		}
		if ok {
			continue
		}
		select {
		case <-s.control.arrived:
			if err == nil {
				continue
			}
		case <-late:
		}
		what := map[int]string{kindMessage: s.Verb.String(), kindCheck: "CHECK", kindReceive: "receive"}[kind]
		return fmt.Errorf("%w: %s on queue pair %d: %s", ErrDevice, what, queue, s.q.StatusText(c.Status))
	}
}

// handle handles the control messages that have arrived.
func (s *side) handle() error {
	for {
		m, ok, err := s.control.take()
		if err != nil || !ok {
			return err
		}
		moves, err := s.handleOne(m)
		if err != nil {
			return err
		}
		if moves {
			s.moved = time.Now()
		}
	}
}

// handleOne handles a control message, and reports whether the test moves on by it.
func (s *side) handleOne(m wire.VerbsMessage) (bool, error) {
	if int(m.Queue) >= int(s.QPs) {
		return false, violation("%s of queue pair %d of %d", m.Type, m.Queue, s.QPs)
	}
	switch {
	case m.Type == wire.VerbsCredit && s.out != nil:
		return s.out.credited(int(m.Queue), m.Number)
	case m.Type == wire.VerbsCheck && s.in != nil && s.peerDone.IsZero():
		return true, s.in.controlCheck(int(m.Queue), m.Number)
	case m.Type == wire.VerbsDone && s.in != nil && s.peerDone.IsZero() && (s.isServer || s.Duplex):
		s.peerSent, s.peerDone = m.Number, time.Now()
		return true, nil
	case m.Type == wire.VerbsReport && s.out != nil && !s.doneAt.IsZero() && s.report == nil:
		s.report = &m
		return true, s.checkReport(m)
	}
	return false, violation("%s, which does not belong here", m.Type)
}

// checkReport checks the peer's REPORT of what this side has sent.
func (s *side) checkReport(m wire.VerbsMessage) error {
	r := m.Report
	sent := s.out.total
	if !s.counts() {
		sent = 0
	}
	if r.Received > sent || r.Lost != sent-r.Received {
		return violation("REPORT of %d received and %d lost messages of %d", r.Received, r.Lost, sent)
	}
	if r.Damaged > s.out.total || r.Damaged > 0 && r.Offset >= s.Size {
		return violation("REPORT of %d damaged messages of %d, the first one at byte %d of %d", r.Damaged, s.out.total, r.Offset, s.Size)
	}
	return nil
}

// reportIfDone sends the REPORT once all that will come has come.
func (s *side) reportIfDone(now time.Time) error {
	if s.in == nil || s.peerDone.IsZero() || s.reported {
		return nil
	}
	since := s.peerDone
	if s.in.last.After(since) {
		since = s.in.last
	}
	switch waited := now.Sub(since); {
	case s.in.hasAll(s.peerSent):
	case s.mayLose() && s.idle && waited >= quiet:
	case !s.mayLose() && waited >= s.timeout/2: // they are lost; the peer waits for longer
	default:
		return nil
	}
	m, err := s.in.report(s.peerSent)
	if err != nil {
		return err
	}
	s.reported = true
	return s.control.send(m)
}

// sayDone sends DONE once everything was sent.
func (s *side) sayDone(now time.Time) error {
	if s.out == nil || !s.doneAt.IsZero() || !s.out.isDone() {
		return nil
	}
	s.workDone, s.doneAt = now, now
	return s.control.send(wire.VerbsMessage{Type: wire.VerbsDone, Number: s.out.total})
}

// isFinished reports whether this side has all REPORTs that it wants, and has sent its own.
func (s *side) isFinished() bool {
	return (s.out == nil || s.isLatency() && s.isServer || s.report != nil) && (s.in == nil || s.isLatency() && !s.isServer || s.reported)
}

// quiet is after what time what has not arrived is lost, on UC and UD. Tests change it.
var quiet = wire.VerbsQuietMS * time.Millisecond

const (
	longWait  = 100 * time.Millisecond // for completions, where no time matters
	shortWait = 10 * time.Millisecond  // where messages may be lost
)

// bandwidth sends and receives until all is done and reported.
func (s *side) bandwidth() error {
	works, _ := s.q.Batch()
	s.lastAction = time.Now()
	s.moved = s.lastAction
	if s.out != nil {
		s.out.begin(s.lastAction)
		s.peak.begin(s.lastAction)
	}
	for {
		if err := s.handle(); err != nil {
			if errors.Is(err, ErrEnded) && s.isFinished() {
				return nil // the client has disconnected behind its REPORT
			}
			return err
		}
		now := time.Now()
		s.lastAction = now
		if err := s.advance(now); err != nil {
			return err
		}
		if s.isFinished() {
			return nil
		}
		n := 0
		if s.out != nil {
			n = s.out.post(works)
		}
		if err := s.turn(n, s.wait(now)); err != nil {
			return err
		}
	}
}

// advance does what is due by time.
func (s *side) advance(now time.Time) error {
	if s.out != nil {
		if s.doneAt.IsZero() {
			s.out.tick(now)
			s.peak.add(now, s.out.done)
			if s.out.waits() && now.Sub(s.moved) > s.timeout {
				return fmt.Errorf("%w: %d messages of %d have completed, and no more in %v", ErrTimeout, s.out.done, s.out.total, s.timeout)
			}
		} else if s.report == nil && now.Sub(s.doneAt) > s.reportLimit() {
			return fmt.Errorf("%w: no REPORT in %v", ErrTimeout, s.reportLimit())
		} else if s.report != nil && s.awaitsMessages() && now.Sub(s.moved) > s.timeout {
			return fmt.Errorf("%w: neither a message nor DONE in %v", ErrTimeout, s.timeout)
		}
		if s.ctx.Err() != nil {
			s.out.stop()
		}
		if err := s.out.stalled(now, s.ask); err != nil {
			return err
		}
		if err := s.sayDone(now); err != nil {
			return err
		}
	} else if s.ctx.Err() != nil {
		return ErrStopped
	}
	return s.reportIfDone(now)
}

// awaitsMessages reports whether the peer has to send, and each message will be seen here, or be asked for.
func (s *side) awaitsMessages() bool {
	return s.in != nil && s.peerDone.IsZero() && s.Rate == 0 && s.counts() && (s.isReliable() || s.in.credits)
}

// reportLimit returns how long the peer may take for a REPORT.
func (s *side) reportLimit() time.Duration { return s.timeout + quiet }

func (s *side) ask(queue int, number uint64) error {
	return s.control.send(wire.VerbsMessage{Type: wire.VerbsCheck, Queue: uint16(queue), Number: number})
}

// wait returns how long to wait for completions.
func (s *side) wait(now time.Time) time.Duration {
	wait := longWait
	if s.mayLose() {
		wait = shortWait
	}
	if s.out == nil || !s.doneAt.IsZero() {
		return wait
	}
	if len(s.out.ready) > 0 {
		if s.Rate == 0 {
			return 0
		}
		next := s.out.start.Add(time.Duration(float64(s.out.allowed) / float64(s.Rate) * float64(time.Second)))
		wait = min(wait, max(next.Sub(now), 0))
	}
	if !s.out.end.IsZero() && !s.out.stopped {
		wait = min(wait, max(s.out.end.Sub(now), 0))
	}
	return wait
}

// outcome returns the error that a finished test ends with.
func (s *side) outcome() error {
	var lost uint64
	if s.report != nil && !s.mayLose() {
		lost = s.report.Report.Lost
	}
	if s.in != nil && s.reported && !s.mayLose() && s.counts() {
		lost += s.peerSent - s.in.sum()
	}
	switch d := s.damage(); {
	case lost > 0:
		return fmt.Errorf("%w: %d", ErrLost, lost)
	case d != nil:
		return fmt.Errorf("%w: %s", ErrDamaged, d)
	}
	return nil
}

// damage returns the first damage that either side has found.
func (s *side) damage() *Damage {
	switch {
	case s.in != nil && s.in.first != nil:
		return s.in.first
	case s.out != nil && s.out.first != nil:
		return s.out.first
	case s.report != nil && s.report.Report.Damaged > 0:
		r := s.report.Report
		return &Damage{Queue: int(s.report.Queue), Number: r.Number, Kind: r.Damage, Offset: int(r.Offset)}
	}
	return nil
}
