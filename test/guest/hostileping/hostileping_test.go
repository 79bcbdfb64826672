// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package hostileping tests both ends of ping/pong inside one VM against peers that break the protocol, stall,
// disconnect and die. None of them delays a write to /proc/krping beyond its timeout, and no resource is left.
package hostileping

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

const (
	timeout = 2 * time.Second // of the commands: timeout=2
	size    = 4096            // largest ping that the servers accept: size=4096
	short   = 64              // bytes of a ping
)

func TestMain(m *testing.M) {
	// Most tests wait for a timeout: run more of them at once than the VM has processors.
	if err := flag.Set("test.parallel", "4"); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// nextAddr returns an address whose port was not used before.
func nextAddr(t *testing.T) netip.AddrPort {
	t.Helper()
	return netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), uint16(guest.NextPort()))
}

// writer is a thread that writes a command to /proc/krping.
type writer struct{ ended chan ending }

type ending struct {
	err error
	at  time.Time
}

// write starts a command. If it hangs, a signal ends it with EINTR.
func write(format string, args ...any) writer {
	w := writer{make(chan ending, 1)}
	go func() {
		err := guest.Command(fmt.Sprintf(format, args...), guest.Slow(30*time.Second))
		w.ended <- ending{err, time.Now()}
	}()
	return w
}

// ends checks that the command ends with one of the errors, within its timeout from now on.
func (w writer) ends(t *testing.T, want ...error) {
	t.Helper()
	endsWith(t, w.end(t), want)
}

// endsWith checks the error of a command. A peer in a VM that had no processor for the timeout seems to stall.
func endsWith(t *testing.T, err error, want []error) {
	t.Helper()
	if errors.Is(err, unix.ETIMEDOUT) && !slices.Contains(want, error(unix.ETIMEDOUT)) {
		late.Errorf(t, "%v, want %v", err, want)
		return
	}
	guest.EndsWith(t, err, want)
}

// end returns the error of the command, and checks that it ends within its timeout from now on.
func (w writer) end(t *testing.T) error {
	t.Helper()
	last := time.Now()
	end := <-w.ended
	if after := end.at.Sub(last); after > timeout+guest.Slow(time.Second) {
		late.Errorf(t, "the command ended after %v, want at most its timeout and a second", after)
	}
	return end.err
}

// endsAfter runs a command against a hostile peer, and checks its error. A peer that disconnects sends one datagram,
// which is not repeated within the timeout: if it is lost, the peer seems to stall. On a busy machine that may happen
// twice in a row, but not four times.
func endsAfter(t *testing.T, begin func() (writer, *peer), do func(p *peer), want []error) {
	t.Helper()
	for left := 3; ; left-- {
		w, p := begin()
		do(p)
		err := w.end(t)
		if left == 0 || !p.disconnected || !errors.Is(err, unix.ETIMEDOUT) {
			endsWith(t, err, want)
			return
		}
		t.Log("the command did not notice the disconnect: trying again")
	}
}

// peer is the hostile end of a connection.
type peer struct {
	*verbs.Conn
	t *testing.T
	// What the other side has announced: to a server both, to a client of rlat, wlat and bw the sink.
	source, sink  wire.PingMessage
	data          []byte // read from the source, in the one buffer
	keepsReceives bool   // does not post a receive again
	disconnected  bool
}

var config = verbs.Config{Receives: 2, MaxMessage: 64, Buffers: 1, MaxData: size}

func newPeer(t *testing.T, conn *verbs.Conn) *peer {
	t.Cleanup(conn.Release)
	return &peer{Conn: conn, t: t}
}

const invalidService = 8 // IB_CM_REJ_INVALID_SERVICE_ID: nobody listens

// dial connects as soon as the server listens.
func dial(t *testing.T, addr netip.AddrPort, private []byte) (*peer, error) {
	t.Helper()
	return dialWith(t, addr, private, config)
}

func dialWith(t *testing.T, addr netip.AddrPort, private []byte, config verbs.Config) (*peer, error) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		conn, _, err := fakeclient.DialConn(t, int(addr.Port()), private, config)
		if err == nil {
			return newPeer(t, conn), nil
		}
		var rejected *verbs.RejectedError
		if !errors.As(err, &rejected) || rejected.Status != invalidService || time.Now().After(end) {
			return nil, err
		}
	}
}

func connect(t *testing.T, addr netip.AddrPort, private []byte) *peer {
	t.Helper()
	return connectWith(t, addr, private, config)
}

func connectWith(t *testing.T, addr netip.AddrPort, private []byte, config verbs.Config) *peer {
	t.Helper()
	p, err := dialWith(t, addr, private, config)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// send returns when the message has arrived or the connection has ended.
func (p *peer) send(msg []byte, invalidate uint32) {
	p.t.Helper()
	if err := p.Send(msg, invalidate); err != nil {
		p.t.Fatalf("%sthe command has ended: %v", late.Mark, err)
	}
	_ = p.Flush()
}

func (p *peer) disconnect() {
	p.disconnected = true
	p.Close()
}

func (p *peer) sendMessage(m wire.PingMessage) { p.t.Helper(); p.send(m.Append(nil), 0) }

func (p *peer) goAhead() { p.t.Helper(); p.sendMessage(wire.PingMessage{}) }

func (p *peer) recvMessage() wire.PingMessage {
	p.t.Helper()
	message, err := p.Recv()
	if err != nil {
		p.t.Fatalf("%sno message: %v", late.Mark, err)
	}
	m, err := wire.DecodePingMessage(message.Data)
	if err != nil {
		p.t.Fatal(err)
	}
	if !p.keepsReceives {
		_ = message.Release() // the connection may have ended already
	}
	return m
}

// lend lends n bytes, and returns the message that announces them.
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

// writeImmediate does so with immediate data, which consumes a receive of the other side as a message of n bytes does.
func (p *peer) writeImmediate(m wire.PingMessage, n uint32) {
	p.t.Helper()
	data := p.buffer(n)
	defer p.Free(data)
	_ = p.WriteImmediate(data, transport.Remote{Addr: m.Addr, Rkey: m.Rkey}) // the connection may end before the completion
}

// read reads the first n bytes of the other side's memory.
func (p *peer) read(m wire.PingMessage, n uint32) error {
	p.t.Helper()
	p.data = p.buffer(n)
	return p.Read(p.data, transport.Remote{Addr: m.Addr, Rkey: m.Rkey})
}

// step is a step of a peer that keeps to the protocol.
type step struct {
	name string
	do   func(p *peer)
}
