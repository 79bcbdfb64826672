// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package hostileping tests both ends of ping/pong inside one VM against peers that lie, stall,
// hang up and die: none of them keeps a writer of /proc/krping longer than its time-out, and
// nothing is left of it.
package hostileping

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

const (
	timeout = 2 * time.Second // of the commands: timeout=2
	size    = 4096            // the most that the servers take: size=4096
	short   = 64              // bytes of a ping
	noKey   = 0xdeadbeef      // nobody has it
)

func TestMain(m *testing.M) {
	// Stalling is waiting: more of it at once than the VM has processors.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

var ports atomic.Int32

// address returns one that was not used before.
func address(t *testing.T) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), uint16(12000+ports.Add(1)))
}

// leavesNothing checks, when the test and its subtests have ended, that no thread, queue
// pair, CM id or memory region is left.
func leavesNothing(t *testing.T) {
	t.Helper()
	t.Cleanup(func() {
		guest.NoThreads(t)
		guest.NoResources(t)
	})
}

// writer is the thread that writes a command.
type writer struct{ ended chan ending }

type ending struct {
	err error
	at  time.Time
}

// write begins a command. One that is stuck ends with EINTR.
func write(format string, args ...any) writer {
	w := writer{make(chan ending, 1)}
	go func() {
		err := guest.Command(fmt.Sprintf(format, args...), guest.Slow(30*time.Second))
		w.ended <- ending{err, time.Now()}
	}()
	return w
}

// ends checks that the command ends as it should, and in time from now on.
func (w writer) ends(t *testing.T, want ...error) {
	t.Helper()
	guest.EndsWith(t, w.end(t), want)
}

// end returns how the command ends, and checks that it is in time from now on.
func (w writer) end(t *testing.T) error {
	t.Helper()
	last := time.Now()
	end := <-w.ended
	if after := end.at.Sub(last); after > timeout+guest.Slow(time.Second) {
		late.Errorf(t, "the command ended after %v, more than its time-out and a second", after)
	}
	return end.err
}

// meets has a command meet a hostile peer, and checks how it ends. A peer that hangs up says so
// with one datagram, that is sent again after more than the time-out only: to a command that
// does not get it, the peer stalls. That may happen, twice in a row on a busy machine, but not four times.
func meets(t *testing.T, begin func() (writer, *peer), do func(p *peer), want []error) {
	t.Helper()
	for left := 3; ; left-- {
		w, p := begin()
		do(p)
		err := w.end(t)
		if left == 0 || !p.hungUp || !errors.Is(err, unix.ETIMEDOUT) {
			guest.EndsWith(t, err, want)
			return
		}
		t.Log("the command did not hear that its peer had hung up: once more")
	}
}

// peer is the hostile end of a connection.
type peer struct {
	*verbs.Conn
	t *testing.T
	// As a server it hears of the client's; as a client of rlat, wlat and bw, of the server's sink.
	source, sink wire.PingMessage
	data         []byte // read from the source, in the one buffer
	deaf         bool   // does not post a receive again
	hungUp       bool
}

var config = verbs.Config{Receives: 2, MaxMessage: 64, Buffers: 1, MaxData: size}

func newPeer(t *testing.T, conn *verbs.Conn) *peer {
	t.Cleanup(conn.Release)
	return &peer{Conn: conn, t: t}
}

const invalidService = 8 // IB_CM_REJ_INVALID_SERVICE_ID: nobody listens

// dial connects, when somebody listens.
func dial(t *testing.T, addr netip.AddrPort, private []byte) (*peer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	for {
		conn, _, err := verbs.Dial(ctx, addr, private, config)
		var rejected *verbs.RejectedError
		if errors.As(err, &rejected) && rejected.Status == invalidService && ctx.Err() == nil {
			time.Sleep(20 * time.Millisecond)
			continue
		}
		if err != nil {
			return nil, err
		}
		return newPeer(t, conn), nil
	}
}

func connect(t *testing.T, addr netip.AddrPort, private []byte) *peer {
	t.Helper()
	p, err := dial(t, addr, private)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// send returns when the message has arrived, or has ended the connection.
func (p *peer) send(msg []byte, invalidate uint32) {
	p.t.Helper()
	if err := p.Send(msg, invalidate); err != nil {
		p.t.Fatal(err)
	}
	_ = p.Flush()
}

func (p *peer) hangUp() {
	p.hungUp = true
	p.Close()
}

func (p *peer) tell(m wire.PingMessage) { p.t.Helper(); p.send(m.Append(nil), 0) }

func (p *peer) goAhead() { p.t.Helper(); p.tell(wire.PingMessage{}) }

func (p *peer) hear() wire.PingMessage {
	p.t.Helper()
	message, err := p.Recv()
	if err != nil {
		p.t.Fatalf("no message: %v", err)
	}
	m, err := wire.DecodePingMessage(message.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	if !p.deaf {
		_ = message.Release() // a lie may have ended the connection already
	}
	return m
}

// lend returns what an honest peer tells of n bytes that it lends.
func (p *peer) lend(n uint32) wire.PingMessage {
	p.t.Helper()
	r, err := p.Lend(int(n))
	if err != nil {
		p.t.Fatal(err)
	}
	return wire.PingMessage{Addr: r.Addr, Rkey: r.Rkey, Length: n}
}

func (p *peer) buffer(n uint32) []byte {
	p.t.Helper()
	data, err := p.Buffer(int(n))
	if err != nil {
		p.t.Fatal(err)
	}
	return data
}

// write fills the first n bytes of the other side's memory.
func (p *peer) write(m wire.PingMessage, n uint32, fill byte) error {
	p.t.Helper()
	data := p.buffer(n)
	defer p.Free(data)
	for i := range data {
		data[i] = fill
	}
	return p.Write(data, transport.Remote{Addr: m.Addr, Rkey: m.Rkey})
}

// writeImmediate does so, and takes a receive of the other side's, as a message of n bytes would.
func (p *peer) writeImmediate(m wire.PingMessage, n uint32) {
	p.t.Helper()
	data := p.buffer(n)
	defer p.Free(data)
	_ = p.WriteImmediate(data, transport.Remote{Addr: m.Addr, Rkey: m.Rkey}) // the end may come before the completion
}

// read reads the first n bytes of the other side's memory.
func (p *peer) read(m wire.PingMessage, n uint32) error {
	p.t.Helper()
	p.data = p.buffer(n)
	return p.Read(p.data, transport.Remote{Addr: m.Addr, Rkey: m.Rkey})
}

// step is one that an honest peer takes.
type step struct {
	name string
	do   func(p *peer)
}
