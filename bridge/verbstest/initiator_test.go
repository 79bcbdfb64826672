// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"testing"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// newSender returns an initiator with queue pairs whose peers have 8 slots each, and memory that nobody uses.
func newSender(t *testing.T, h wire.VerbsHello) *initiator {
	t.Helper()
	return newSenderOver(t, h, false)
}

func newSenderOver(t *testing.T, h wire.VerbsHello, iwarp bool) *initiator {
	t.Helper()
	o := newInitiator(planOf(h, false), iwarp)
	if err := o.allocate(newFabric().newQueues(o.queueConfig(1))); err != nil {
		t.Fatal(err)
	}
	peer := wire.VerbsInfo{Slots: 8}
	if h.Verb != wire.VerbSend {
		peer.Rkey = 1
	}
	for i := range o.queues {
		if err := o.setPeer(i, peer); err != nil {
			t.Fatal(err)
		}
	}
	return o
}

// posted returns what is posted at once: the opcode of each work request of a queue pair, in capitals if it is signalled.
func posted(o *initiator, n int) map[uint32]string {
	works := make([]transport.Work, n)
	got := map[uint32]string{}
	for _, w := range works[:o.post(works)] {
		letter := map[transport.Opcode][2]string{transport.OpSend: {"s", "S"}, transport.OpWrite: {"w", "W"}, transport.OpWriteImmediate: {"i", "I"}}[w.Op]
		got[w.Queue] += letter[w.Flags/transport.Signalled&1]
	}
	return got
}

func wantPosted(t *testing.T, what string, got map[uint32]string, want ...string) {
	t.Helper()
	for i, text := range want {
		if got[uint32(i)] != text {
			t.Errorf("%s: queue pair %d has posted %q, want %q", what, i, got[uint32(i)], text)
		}
	}
}

func (o *initiator) complete(t *testing.T, kind, queue int, number uint64) {
	t.Helper()
	if err := o.completed(kind, queue, number); err != nil {
		t.Fatal(err)
	}
}

// The send queue is kept full, one message in signal is signalled, and queue pairs take turns.
func TestPostsUpToDepth(t *testing.T) {
	h := bandwidthHello(wire.VerbSend, wire.RC)
	h.QPs, h.TxDepth, h.Signal, h.Count = 2, 20, 5, 23
	o := newSender(t, h)
	o.begin(time.Now())
	wantPosted(t, "at first", posted(o, 64), "ssssSssssSssssSssssS", "ssssSssssSssssSssssS")
	wantPosted(t, "without completions", posted(o, 64), "", "")
	o.complete(t, kindMessage, 1, 5)
	wantPosted(t, "after a completion", posted(o, 64), "", "ssS") // the last of 23
	o.complete(t, kindMessage, 1, 23)
	o.complete(t, kindMessage, 0, 20)
	wantPosted(t, "after completions", posted(o, 64), "ssS", "")
	if o.isDone() {
		t.Error("done before the last completion")
	}
	o.complete(t, kindMessage, 0, 23)
	if !o.isDone() || o.total != 46 {
		t.Errorf("not done after %d messages", o.total)
	}
	if err := o.completed(kindMessage, 0, 24); err == nil {
		t.Error("a completion of a message that was not sent was taken")
	}
	o = newSender(t, h)
	o.begin(time.Now())
	wantPosted(t, "a batch of 24", posted(o, 24), "ssssSssssSssssSs", "ssssSsss") // 16 in a row
}

// A CHECK follows each half of the slots, and the end. Without credit nothing is written.
func TestChecksAndCredit(t *testing.T) {
	h := bandwidthHello(wire.VerbWrite, wire.RC)
	h.QPs, h.TxDepth, h.Signal, h.Count, h.Validate = 1, 16, 16, 14, true
	o := newSender(t, h)
	o.begin(time.Now())
	wantPosted(t, "at first", posted(o, 64), "wwwwSwwwwS")
	o.complete(t, kindCheck, 0, 4)
	wantPosted(t, "without credit", posted(o, 64), "")
	if _, err := o.credited(0, 4); err != nil {
		t.Fatal(err)
	}
	wantPosted(t, "with credit for 4", posted(o, 64), "wwwwS")
	for _, wrong := range []uint64{3, 13} {
		if _, err := o.credited(0, wrong); err == nil {
			t.Errorf("credit of %d was taken", wrong)
		}
	}
	o.complete(t, kindCheck, 0, 8)
	o.complete(t, kindCheck, 0, 12)
	if _, err := o.credited(0, 12); err != nil {
		t.Fatal(err)
	}
	wantPosted(t, "the last two", posted(o, 64), "wWS")
	o.complete(t, kindMessage, 0, 14)
	o.complete(t, kindCheck, 0, 14)
	if o.isDone() {
		t.Error("done without credit for the last messages")
	}
	if _, err := o.credited(0, 14); err != nil || !o.isDone() {
		t.Errorf("not done with all credit: %v", err)
	}
}

// Once stopped, a queue pair whose last message was not signalled sends one more that is.
func TestStopSignals(t *testing.T) {
	h := bandwidthHello(wire.VerbSend, wire.RC)
	h.QPs, h.TxDepth, h.Signal, h.Count = 2, 16, 4, 0
	o := newSender(t, h)
	o.begin(time.Now())
	wantPosted(t, "a batch of 22", posted(o, 22), "sssSsssSsssSsssS", "sssSss")
	o.stop()
	wantPosted(t, "once stopped", posted(o, 64), "", "S")
	o.complete(t, kindMessage, 0, 16)
	o.complete(t, kindMessage, 1, 7)
	if !o.isDone() || o.total != 23 {
		t.Errorf("not done after %d messages", o.total)
	}
}

// Over iWARP data that differs from message to message is signalled, as it is filled again once it is completed.
func TestSignalsOverIWARP(t *testing.T) {
	for _, tc := range []struct {
		iwarp, validate bool
		want            string
	}{
		{false, true, "wwwW"},
		{true, false, "wwwW"},
		{true, true, "WWWW"},
	} {
		h := bandwidthHello(wire.VerbWrite, wire.RC)
		h.QPs, h.TxDepth, h.Signal, h.Count, h.Validate = 1, 4, 4, 0, tc.validate
		o := newSenderOver(t, h, tc.iwarp)
		o.begin(time.Now())
		wantPosted(t, fmt.Sprintf("iWARP %t, own data %t", tc.iwarp, tc.validate), posted(o, 4), tc.want)
	}
}

// Messages follow a rate.
func TestRateOfPosts(t *testing.T) {
	h := bandwidthHello(wire.VerbSend, wire.RC)
	h.QPs, h.TxDepth, h.Signal, h.Count, h.Rate = 1, 16, 16, 0, 100
	o := newSender(t, h)
	start := time.Now()
	o.begin(start)
	o.tick(start)
	wantPosted(t, "at first", posted(o, 64), "s")
	o.tick(start.Add(35 * time.Millisecond))
	wantPosted(t, "after 35 ms", posted(o, 64), "sss")
	wantPosted(t, "again", posted(o, 64), "")
}

// Over UC, an initiator without credit asks for it, once, until it is answered.
func TestAsksForCredit(t *testing.T) {
	h := bandwidthHello(wire.VerbWriteImmediate, wire.UC)
	h.QPs, h.TxDepth, h.Signal, h.Count, h.Validate = 1, 16, 16, 100, true
	o := newSender(t, h)
	start := time.Now()
	o.begin(start)
	wantPosted(t, "at first", posted(o, 64), "iiiiiiii")
	asked := func(after time.Duration) (numbers []uint64) {
		t.Helper()
		err := o.stalled(start.Add(after), func(_ int, number uint64) error {
			numbers = append(numbers, number)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		return numbers
	}
	for _, tc := range []struct {
		after  time.Duration
		credit uint64
		want   int
	}{{0, 0, 0}, {90 * time.Millisecond, 0, 0}, {110 * time.Millisecond, 0, 1}, {time.Second, 0, 0}, {2 * time.Second, 8, 0}, {3 * time.Second, 0, 0}} {
		if tc.credit > 0 {
			if _, err := o.credited(0, tc.credit); err != nil {
				t.Fatal(err)
			}
		}
		if got := asked(tc.after); len(got) != tc.want || len(got) > 0 && got[0] != 8 {
			t.Errorf("after %v: asked for %v, want %d", tc.after, got, tc.want)
		}
	}
	wantPosted(t, "with credit", posted(o, 64), "iiiiiiiI")
}
