// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"context"
	"fmt"
	"time"

	"krping/bridge/wire"
)

// watchSlice is how long memory is watched before other things are looked at.
const watchSlice = time.Millisecond

// measureLatency sends one message after another, each when the one before is done, then DONE.
func (s *side) measureLatency() error {
	s.out.begin(time.Now())
	defer context.AfterFunc(s.ctx, s.q.Wake)()
	for !s.out.isDone() {
		n, sent, err := s.exchanges(s.out.total)
		switch {
		case err != nil:
		case n > 0 && sent.IsZero():
			err = s.handle()
		default:
			err = s.exchange(sent)
		}
		if err != nil {
			return err
		}
		if s.ctx.Err() != nil {
			s.out.stop()
		}
		s.out.tick(time.Now())
	}
	return s.finish()
}

// finish sends DONE and waits for the REPORT.
func (s *side) finish() error {
	for {
		now := time.Now()
		if err := s.handle(); err != nil {
			return err
		}
		if err := s.sayDone(now); err != nil {
			return err
		}
		if s.isFinished() {
			return nil
		}
		if now.Sub(s.doneAt) > s.reportLimit() {
			return fmt.Errorf("%w: no REPORT in %v", ErrTimeout, s.reportLimit())
		}
		if err := s.turn(0, shortWait); err != nil {
			return err
		}
	}
}

// exchange sends a message, unless it was sent before, and waits until it is done.
func (s *side) exchange(sent time.Time) error {
	number := s.out.total
	if !sent.IsZero() {
		number--
	}
	isDone := func() bool { return s.out.done > number }
	if s.in != nil {
		isDone = func() bool { return s.in.queues[0].next > number }
		defer s.out.answered(number)
	}
	start := sent
	s.lastAction = time.Now()
	var err error
	if sent.IsZero() {
		start = s.lastAction
		err = s.sendOne()
	}
	for ; err == nil && !isDone(); err = s.await() {
		if err := s.handle(); err != nil {
			return err
		}
		if time.Since(start) < s.patience() {
			continue
		}
		if s.mayLose() {
			s.in.queues[0].skip(number + 1) // what comes later is no answer to the next message
			return nil
		}
		return fmt.Errorf("%w: no answer to message %d", ErrTimeout, number)
	}
	if err == nil {
		s.latency.add(time.Since(start))
	}
	return err
}

// patience returns how long a side waits for an answer.
func (s *side) patience() time.Duration {
	if s.mayLose() {
		return quiet
	}
	return s.timeout
}

// watches reports whether messages are seen in memory only.
func (s *side) watches() bool { return s.Verb == wire.VerbWrite && s.in != nil }

// sendOne posts the next message, and waits for something to happen.
func (s *side) sendOne() error {
	works, _ := s.q.Batch()
	s.out.message(0, &works[0])
	if s.watches() {
		return s.turn(1, 0)
	}
	return s.turn(1, shortWait)
}

// await waits for something to happen.
func (s *side) await() error {
	if !s.watches() {
		return s.turn(0, shortWait)
	}
	if err := s.turn(0, 0); err != nil { // completions of what was sent
		return err
	}
	return s.watch()
}

// watch takes a WRITE when the last byte of its slot changes.
func (s *side) watch() error {
	q, data := &s.in.queues[0], s.in.slot(0, 0)
	now, changed := s.q.Watch(&data[len(data)-1], s.seen, watchSlice)
	if !changed {
		return nil
	}
	s.seen = now
	number := q.next
	switch {
	case s.mayLose():
		number = q.extend(uint32(now), 8)
	case !s.Validate && now != byte(number):
		return violation("message %d ends with byte %#x", number, now)
	}
	if s.Validate {
		number = s.checkWritten(q, data, number)
	}
	s.in.last = time.Now()
	return s.in.count(0, number)
}

// checkWritten checks the slot, whose last byte is that of a message, and returns the number of the message. Over UC that
// byte may be wrong, and a client that has given up an answer may write the next message meanwhile. Then the first word
// says which message it is.
func (s *side) checkWritten(q *inbound, data []byte, number uint64) uint64 {
	tag := s.in.receiveTag(0)
	f := s.in.settle(0, data, number)
	if f.kind == wire.Intact {
		return number
	}
	if s.in.isMissing(f) {
		other := q.extend(f.number, 32)
		if examine(data, tag, uint32(other)).isMissing(0) {
			return number
		}
		number = other
	}
	if !s.in.check(data, 0, tag, number) {
		data[len(data)-1] = byte(number) // so that the next message changes it
	}
	s.seen = byte(number)
	return number
}

// answer answers each message by one of its number, until the client is done.
func (s *side) answer() error {
	s.out.begin(time.Now())
	defer context.AfterFunc(s.ctx, s.q.Wake)()
	q := &s.in.queues[0]
	for answered := uint64(0); ; {
		if err := s.handle(); err != nil {
			return err
		}
		s.lastAction = time.Now()
		if err := s.reportIfDone(s.lastAction); err != nil || s.reported {
			return err
		}
		if s.ctx.Err() != nil {
			return ErrStopped
		}
		if q.next == answered {
			n, _, err := s.exchanges(answered)
			answered += uint64(n)
			if err == nil && n == 0 && q.next == answered {
				err = s.await()
			}
			if err != nil {
				return err
			}
			continue
		}
		s.out.setNumber(q.next - 1)
		answered = q.next
		if err := s.sendOne(); err != nil {
			return err
		}
	}
}
