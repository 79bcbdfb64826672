// SPDX-License-Identifier: Apache-2.0

// Package verbstest runs the verbs test (kmod/PROTOCOL.md section 1.3) in both roles: SEND, RDMA WRITE with
// and without immediate data, RDMA READ and atomic operations on RC, UC and UD queue pairs, with the data
// checked and the messages counted.
//
// One goroutine runs a side of a test. It posts and polls in batches, and sleeps or polls in the library.
package verbstest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"krping/bridge/access"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// Server serves clients.
type Server struct {
	MaxSize uint32        // bytes of a message
	Timeout time.Duration // per step of a client
	Allow   access.List   // addresses of clients
	Poll    bool          // poll for completions instead of sleeping

	mu      sync.Mutex // protects running
	running map[identity][]*Session
}

// identity is what the connections of a client have in common. It is a random number, so other clients of the
// same host may have it, too.
type identity struct {
	addr  netip.Addr
	group uint16
}

// Session is a client whose control connection is admitted. The caller calls Serve or Leave.
type Session struct {
	Hello    wire.VerbsHello
	server   *Server
	identity identity
	requests chan transport.Incoming // of data queue pairs, in order
	joined   int                     // how many of them there were; protected by the server's mu
}

// Admit checks the private data of a connect request. The error is a *wire.Reject. For a control connection
// it returns a session; for that of a data queue pair it hands the request over to its session and returns
// nil.
func (s *Server) Admit(private []byte, peer netip.Addr, ability transport.Ability, incoming transport.Incoming) (*Session, error) {
	if !s.Allow.Allows(peer) {
		return nil, &wire.Reject{Reason: wire.RejectNotAllowed, Detail: "the client's address is not allowed"}
	}
	h, err := wire.DecodeVerbsHello(private)
	if err != nil {
		return nil, err
	}
	if h.Size > s.MaxSize {
		return nil, &wire.Reject{Reason: wire.RejectTestSize, Value: s.MaxSize, Detail: fmt.Sprintf("size %d: must be at most %d bytes", h.Size, s.MaxSize)}
	}
	p := planOf(h, true)
	if r := p.lacks(ability); r != nil {
		return nil, r
	}
	if r := p.datagramLimit(ability.PortMTU); r != nil {
		return nil, r
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	id := identity{peer, h.Group}
	if h.Connection > 0 {
		return nil, s.join(id, h, incoming)
	}
	session := &Session{Hello: h, server: s, identity: id, requests: make(chan transport.Incoming, h.QPs)}
	if s.running == nil {
		s.running = map[identity][]*Session{}
	}
	s.running[id] = append(s.running[id], session)
	return session, nil
}

func invalid(format string, args ...any) *wire.Reject {
	return &wire.Reject{Reason: wire.RejectInvalid, Detail: fmt.Sprintf(format, args...)}
}

// join hands over the request of a data queue pair to the session that waits for it. mu is locked.
func (s *Server) join(id identity, h wire.VerbsHello, incoming transport.Incoming) error {
	index := int(h.Connection) - 1
	control := h
	control.Connection = 0
	for _, session := range s.running[id] {
		if session.Hello == control && session.joined == index {
			session.joined++
			session.requests <- incoming // has room for all
			return nil
		}
	}
	return invalid("no test of the client waits for data queue pair %d", index)
}

// Leave ends a session. It may be called more than once. Requests of data queue pairs that were not accepted are rejected.
func (s *Session) Leave() {
	s.server.mu.Lock()
	of := s.server.running
	of[s.identity] = slices.DeleteFunc(of[s.identity], func(other *Session) bool { return other == s })
	if len(of[s.identity]) == 0 {
		delete(of, s.identity)
	}
	s.server.mu.Unlock()
	for {
		select {
		case r := <-s.requests:
			r.Reject((&wire.Reject{Version: 1, Reason: wire.RejectInvalid}).Append(nil))
		default:
			return
		}
	}
}

// ControlDepth returns how many receives of wire.VerbsMessageSize bytes the control connection needs.
func (s *Session) ControlDepth() int { return wire.VerbsControlDepth(int(s.Hello.QPs)) }

// Serve runs the test until the client disconnects or ctx ends, and closes the connection. Without an error
// all is as the client wanted it; the result is valid in any case.
func (s *Session) Serve(ctx context.Context, conn Conn) (Result, error) {
	defer s.Leave()
	test, err := newSide(ctx, planOf(s.Hello, true), conn, s.server.Timeout)
	if err != nil {
		return Result{}, err
	}
	defer test.close()
	test.poll = s.server.Poll
	err = s.run(test)
	if err == nil {
		err = test.awaitEnd(ctx)
	}
	if peer := (*PeerError)(nil); errors.As(err, &peer) && peer.Code == wire.VerbsErrorStopped && s.Hello.Count == 0 && s.Hello.Duration == 0 {
		err = nil // that is how a client ends a test without an end
	}
	if err == nil {
		err = test.outcome()
	} else {
		test.fail(err)
	}
	return test.result(), err
}

func (s *Session) run(test *side) error {
	if err := s.accept(test); err != nil {
		return err
	}
	if err := test.meet(); err != nil {
		return err
	}
	if err := test.postReceives(); err != nil {
		return err
	}
	if err := test.describe(); err != nil {
		return err
	}
	if _, err := test.control.await(test.ctx, wire.VerbsGo, test.setupTimeout(test.timeout)); err != nil {
		return err
	}
	if test.isLatency() && test.out != nil {
		return test.answer()
	}
	return test.bandwidth()
}

// accept accepts the RC queue pairs.
func (s *Session) accept(test *side) error {
	if s.Hello.QPType != wire.RC {
		return nil
	}
	timeout := test.setupTimeout(test.timeout)
	late := time.NewTimer(timeout)
	defer late.Stop()
	for i := range int(s.Hello.QPs) {
		late.Reset(timeout)
		select {
		case r := <-s.requests:
			if err := r.AcceptQueue(test.q, i); err != nil {
				return fmt.Errorf("%w: %w", errResources, err)
			}
		case <-late.C:
			return fmt.Errorf("%w: data queue pair %d was not connected", ErrTimeout, i)
		case <-test.control.conn.Done():
			return ErrEnded
		case <-test.ctx.Done():
			return ErrStopped
		}
	}
	return nil
}

// awaitEnd waits until the client disconnects, after everything was reported.
func (s *side) awaitEnd(ctx context.Context) error {
	late := time.NewTimer(s.timeout)
	defer late.Stop()
	select {
	case <-s.control.conn.Done():
	case <-ctx.Done():
		return nil
	case <-late.C:
		if err := s.outcome(); err != nil {
			return err
		}
		return fmt.Errorf("%w: it does not disconnect after the REPORT", ErrTimeout)
	}
	s.control.readers.Wait() // until what came before the end has been taken
	if _, ok, err := s.control.take(); ok {
		return violation("a message after the REPORT")
	} else if err != nil && !errors.Is(err, ErrEnded) {
		return err
	}
	return nil
}
