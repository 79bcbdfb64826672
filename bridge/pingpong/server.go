// SPDX-License-Identifier: Apache-2.0

// Package pingpong answers ping/pong clients: the kernel module's, the original krping's and
// rping's (kmod/PROTOCOL.md section 1). It answers pings, and the tests in which the server only
// lends its memory (rlat, bw, fr).
package pingpong

import (
	"errors"
	"fmt"
	"math"
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
	// Write writes p to the client's memory by RDMA WRITE. p is from Buffer.
	Write(p []byte, to transport.Remote) error
	// Lend returns n bytes that the client may read and write until the connection is released.
	Lend(n int) (transport.Remote, error)
	// Done returns a channel that is closed when the connection is closed.
	Done() <-chan struct{}
}

// Server answers clients.
type Server struct {
	MaxSize uint32        // bytes per operation
	Timeout time.Duration // per step of a client
	Allow   access.List   // addresses of clients
}

// defaultSize is the largest ping, in bytes, of a client that sent no hello.
const defaultSize = 64 << 10

// Admit checks the private data of a connect request. A client that sent none pings. The error
// is a *wire.Reject.
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
		return h, &wire.Reject{Reason: wire.RejectTest, Value: uint32(wire.TestPing), Detail: fmt.Sprintf("test %d needs a server in the kernel", h.Test)}
	case h.Duplex:
		return h, &wire.Reject{Reason: wire.RejectDuplex, Detail: "a duplex test needs a server in the kernel"}
	case h.Size == 0 || h.Size > s.MaxSize:
		return h, &wire.Reject{Reason: wire.RejectTestSize, Value: s.MaxSize, Detail: fmt.Sprintf("size %d: must be 1 to %d bytes", h.Size, s.MaxSize)}
	}
	return h, nil
}

// ErrTimeout ends a connection whose client stalls.
var ErrTimeout = errors.New("the client did not answer in time")

// Serve answers an admitted client until it disconnects, closes the connection, and returns
// the number of answered pings. The error says what the client did wrong.
func (s Server) Serve(conn Conn, h wire.TestHello) (pings uint64, err error) {
	defer conn.Close()
	if h.Test == wire.TestPing {
		return s.pings(conn, h)
	}
	return 0, s.lend(conn, h)
}

// mostQPs is the module's limit of connections of a client.
const mostQPs = 1024

// setUp returns how long a client may take for its first message: it sends it when it has all of its connections,
// while its other threads may set up theirs.
func (s Server) setUp(h wire.TestHello) time.Duration {
	return s.Timeout * time.Duration(1+min(h.QPs, mostQPs)/16)
}

// first returns the first message of a client. While it sets up other connections, its device must answer probes.
func (s Server) first(conn Conn, h wire.TestHello) (wire.PingMessage, error) {
	arrived := make(chan struct{})
	var prober sync.WaitGroup
	defer prober.Wait()
	defer close(arrived)
	prober.Go(func() {
		for {
			select {
			case <-arrived:
				return
			case <-time.After(s.Timeout):
			}
			if step(conn, s.Timeout, conn.Probe) != nil {
				conn.Close()
				return
			}
		}
	})
	return s.recv(conn, s.setUp(h))
}

// lend sends the client the address of memory it may access, and waits until it disconnects.
func (s Server) lend(conn Conn, h wire.TestHello) error {
	m, err := s.first(conn, h)
	if err != nil {
		return err
	}
	if err := checkMemory("memory", m, 1, h.Size); err != nil {
		return err
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

// checkMemory checks the memory that a client offers.
func checkMemory(what string, m wire.PingMessage, least, most uint32) error {
	if m.Rkey == 0 || m.Length < least || m.Length > most {
		return fmt.Errorf("the client's %s has %d bytes and key %#x: must be %d to %d bytes with a key", what, m.Length, m.Rkey, least, most)
	}
	return nil
}

var errUnexpected = errors.New("the client sent a message during the test")

// awaitEnd waits until the client disconnects. It reads a byte of the client's memory from time
// to time, which fails when the client's host has crashed.
func (s Server) awaitEnd(conn Conn, client transport.Remote) error {
	message := make(chan struct{})
	var receiver sync.WaitGroup
	defer receiver.Wait()
	defer conn.Close()
	receiver.Go(func() {
		if _, err := conn.Recv(); err == nil {
			close(message)
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
		case <-message:
			return errUnexpected
		case <-time.After(s.Timeout / 2):
		}
		err := step(conn, s.Timeout, func() error { return conn.Read(probe, client) })
		select {
		case <-conn.Done(): // in the meantime
			if errors.Is(err, ErrTimeout) {
				return err
			}
			return nil
		default:
		}
		if err != nil {
			return fmt.Errorf("probe the client: %w", err)
		}
	}
}

// step calls do, which the client can delay. After the time it closes the connection, which ends
// every call on it, and returns ErrTimeout.
func step(conn Conn, timeout time.Duration, do func() error) error {
	late := make(chan struct{})
	watchdog := time.AfterFunc(timeout, func() {
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
		source, err := s.recv(conn, s.Timeout)
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
	if err := checkMemory("source", source, 1, h.Size); err != nil {
		return err
	}
	data, err := conn.Buffer(int(source.Length))
	if err != nil {
		return err
	}
	defer conn.Free(data)
	err = step(conn, s.Timeout, func() error {
		if err := conn.Read(data, transport.Remote{Addr: source.Addr, Rkey: source.Rkey}); err != nil {
			return fmt.Errorf("RDMA READ: %w", err)
		}
		return goAhead(conn, h, source)
	})
	if err != nil {
		return err
	}
	sink, err := s.recv(conn, s.Timeout)
	if err != nil {
		return err
	}
	if err := checkMemory("sink", sink, source.Length, math.MaxUint32); err != nil {
		return err
	}
	return step(conn, s.Timeout, func() error {
		if err := conn.Write(data, transport.Remote{Addr: sink.Addr, Rkey: sink.Rkey}); err != nil {
			return fmt.Errorf("RDMA WRITE: %w", err)
		}
		return goAhead(conn, h, sink)
	})
}

// goAhead tells the client to continue and invalidates its key if it asked for that.
func goAhead(conn Conn, h wire.TestHello, m wire.PingMessage) error {
	var invalidate uint32
	if h.ServerInv {
		invalidate = m.Rkey
	}
	return conn.Send(wire.PingMessage{}.Append(nil), invalidate)
}

// errEnd ends the pings without an error.
var errEnd = errors.New("the client has disconnected")

// recv returns the client's next message.
func (s Server) recv(conn Conn, timeout time.Duration) (m wire.PingMessage, err error) {
	var message transport.Message
	err = step(conn, timeout, func() (err error) {
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
		// A message that arrived before the disconnect counts. The next step returns the error.
		select {
		case <-conn.Done():
		default:
			err = release
		}
	}
	return m, err
}
