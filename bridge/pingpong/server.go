// SPDX-License-Identifier: Apache-2.0

// Package pingpong answers the kernel module's ping/pong clients, krping's and rping's
// from user space (kmod/PROTOCOL.md section 1): pings, and the tests in which a server
// only lends its memory (rlat, bw, fr).
package pingpong

import (
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"krping/bridge/access"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// Conn is one connection.
type Conn interface {
	transport.Transport
	// Write moves p into the client's memory by RDMA WRITE; p is of Buffer.
	Write(p []byte, to transport.Remote) error
	// Lend returns n bytes that the peer may read and write until the connection is released.
	Lend(n int) (transport.Remote, error)
	// Done is closed when the connection is.
	Done() <-chan struct{}
}

// Server answers clients.
type Server struct {
	MaxSize uint32        // bytes of one operation
	Timeout time.Duration // of each step of a client
	Allow   access.List   // clients that it serves
}

// defaultSize is the most bytes of a ping of a client that has not said a size.
const defaultSize = 64 << 10

// Admit checks what a client says before it connects: the private data of its request. The
// error is a *wire.Reject. A client that says nothing pings.
func (s Server) Admit(private []byte, peer netip.Addr) (wire.TestHello, error) {
	if !s.Allow.Allows(peer) {
		return wire.TestHello{}, &wire.Reject{Reason: wire.RejectNotAllowed, Detail: "the client's address is not allowed"}
	}
	h, found, err := wire.DecodeTestHello(private)
	if err != nil {
		return h, err
	}
	if !found {
		return wire.TestHello{Test: wire.TestPing, Size: min(defaultSize, s.MaxSize), QPs: 1}, nil
	}
	switch {
	case h.Test == wire.TestWriteLatency || h.Test > wire.TestFastRegister:
		return h, &wire.Reject{Reason: wire.RejectTest, Value: uint32(wire.TestPing), Detail: fmt.Sprintf("test %d: only a server in the kernel can", h.Test)}
	case h.Duplex:
		return h, &wire.Reject{Reason: wire.RejectDuplex, Detail: "duplex: only a server in the kernel can"}
	case h.Size == 0 || h.Size > s.MaxSize:
		return h, &wire.Reject{Reason: wire.RejectTestSize, Value: s.MaxSize, Detail: fmt.Sprintf("size %d, at most %d", h.Size, s.MaxSize)}
	}
	return h, nil
}

// ErrTimeout is how a connection ends on which the client stalls.
var ErrTimeout = errors.New("the client does not answer in time")

// Serve answers an admitted client until it disconnects, and returns how many pings it
// answered. The connection is closed then; an error says what the client did wrong.
func (s Server) Serve(conn Conn, h wire.TestHello) (pings uint64, err error) {
	defer conn.Close()
	if h.Test == wire.TestPing {
		return s.pings(conn, h)
	}
	return 0, s.lend(conn, h)
}

// lend tells the client of memory that it may use, and waits for its end.
func (s Server) lend(conn Conn, h wire.TestHello) error {
	m, err := s.recv(conn)
	if err != nil {
		return err
	}
	if m.Rkey == 0 || m.Length == 0 || m.Length > h.Size {
		return fmt.Errorf("client told of %d bytes with key %#x: must be 1 to %d, with a key", m.Length, m.Rkey, h.Size)
	}
	own, err := conn.Lend(int(h.Size))
	if err != nil {
		return err
	}
	if err := conn.Send(wire.PingMessage{Addr: own.Addr, Rkey: own.Rkey, Length: h.Size}.Append(nil), 0); err != nil {
		return err
	}
	return s.awaitEnd(conn, transport.Remote{Addr: m.Addr, Rkey: m.Rkey})
}

// errOutOfTurn is a message of a client that has nothing to say any more.
var errOutOfTurn = errors.New("a message in the test")

// awaitEnd waits for the client's disconnect. One that is gone without a word does not answer
// an RDMA READ of a byte of its memory.
func (s Server) awaitEnd(conn Conn, client transport.Remote) error {
	spoke := make(chan struct{})
	var listening sync.WaitGroup
	defer listening.Wait()
	defer conn.Close()
	listening.Go(func() {
		if _, err := conn.Recv(); err == nil {
			close(spoke)
		}
	})
	probe, err := conn.Buffer(1)
	if err != nil {
		return err
	}
	defer conn.Free(probe)
	for {
		select {
		case <-conn.Done():
			return nil
		case <-spoke:
			return errOutOfTurn
		case <-time.After(s.Timeout / 2):
		}
		err := s.step(conn, func() error { return conn.Read(probe, client) })
		select {
		case <-conn.Done(): // in the meantime
			if errors.Is(err, ErrTimeout) {
				return err
			}
			return nil
		default:
		}
		if err != nil {
			return fmt.Errorf("look for the client: %w", err)
		}
	}
}

// step does something that a client can hold up. A watchdog closes the connection of one that
// does, so that no call on it waits longer.
func (s Server) step(conn Conn, do func() error) error {
	late := make(chan struct{})
	watchdog := time.AfterFunc(s.Timeout, func() {
		close(late)
		conn.Close()
	})
	err := do()
	if !watchdog.Stop() {
		<-late
		return ErrTimeout
	}
	return err
}

func (s Server) pings(conn Conn, h wire.TestHello) (uint64, error) {
	for n := uint64(0); ; n++ {
		source, err := s.recv(conn)
		if errors.Is(err, errEnd) {
			return n, nil
		}
		if err == nil {
			err = s.pong(conn, h, source)
		}
		if err != nil {
			return n, fmt.Errorf("ping %d: %w", n, err)
		}
	}
}

func (s Server) pong(conn Conn, h wire.TestHello, source wire.PingMessage) error {
	if source.Rkey == 0 || source.Length == 0 || source.Length > h.Size {
		return fmt.Errorf("client told of %d bytes with key %#x: must be 1 to %d, with a key", source.Length, source.Rkey, h.Size)
	}
	data, err := conn.Buffer(int(source.Length))
	if err != nil {
		return err
	}
	defer conn.Free(data)
	err = s.step(conn, func() error {
		if err := conn.Read(data, transport.Remote{Addr: source.Addr, Rkey: source.Rkey}); err != nil {
			return fmt.Errorf("RDMA READ: %w", err)
		}
		return goAhead(conn, h, source)
	})
	if err != nil {
		return err
	}
	sink, err := s.recv(conn)
	if err != nil {
		return err
	}
	if sink.Rkey == 0 || sink.Length < source.Length {
		return fmt.Errorf("client told of a sink of %d bytes with key %#x: must be at least %d, with a key", sink.Length, sink.Rkey, source.Length)
	}
	return s.step(conn, func() error {
		if err := conn.Write(data, transport.Remote{Addr: sink.Addr, Rkey: sink.Rkey}); err != nil {
			return fmt.Errorf("RDMA WRITE: %w", err)
		}
		return goAhead(conn, h, sink)
	})
}

func goAhead(conn Conn, h wire.TestHello, m wire.PingMessage) error {
	var invalidate uint32
	if h.ServerInv {
		invalidate = m.Rkey
	}
	return conn.Send(wire.PingMessage{}.Append(nil), invalidate)
}

// errEnd is the disconnect of a client that has not begun another ping.
var errEnd = errors.New("the client has disconnected")

// recv returns the client's next message.
func (s Server) recv(conn Conn) (m wire.PingMessage, err error) {
	var message transport.Message
	err = s.step(conn, func() (err error) {
		message, err = conn.Recv()
		return err
	})
	if errors.Is(err, ErrTimeout) {
		return m, err
	}
	if err != nil {
		return m, fmt.Errorf("%w: %w", errEnd, err)
	}
	m, err = wire.DecodePingMessage(message.Data)
	if release := message.Release(); err == nil && release != nil {
		// What has arrived before a disconnect counts; the next step sees it.
		select {
		case <-conn.Done():
		default:
			err = release
		}
	}
	return m, err
}
