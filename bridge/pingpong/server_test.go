// SPDX-License-Identifier: Apache-2.0

package pingpong

import (
	"errors"
	"sync"
	"testing"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// A client with many connections has time to set them up, and one that claims more than there can be not for ever.
func TestTimeForConnections(t *testing.T) {
	s := Server{Timeout: 10 * time.Second}
	for qps, want := range map[uint16]time.Duration{1: 10 * time.Second, 16: 20 * time.Second, 1024: 650 * time.Second, 65535: 650 * time.Second} {
		if got := s.setUp(wire.TestHello{Test: wire.TestBandwidth, QPs: qps}); got != want {
			t.Errorf("%d connections: %v, want %v", qps, got, want)
		}
	}
}

// silent is a connection whose client sends one message, after a time, and whose device answers so many probes.
type silent struct {
	Conn
	after  time.Duration
	probes int
	once   sync.Once
	closed chan struct{}
}

var errClosed = errors.New("closed")

func (s *silent) Close() { s.once.Do(func() { close(s.closed) }) }

func (s *silent) Probe() error {
	if s.probes--; s.probes < 0 {
		<-s.closed
		return errClosed
	}
	return nil
}

func (s *silent) Recv() (transport.Message, error) {
	select {
	case <-s.closed:
		return transport.Message{}, errClosed
	case <-time.After(s.after):
		message := wire.PingMessage{Addr: 1, Rkey: 2, Length: 3}
		return transport.Message{Data: message.Append(nil), Release: func() error { return nil }}, nil
	}
}

func (s *silent) Done() <-chan struct{} { return s.closed }

// A client that sets up connections is waited for as long as its device answers, and one without others only
// for the time of a step.
func TestFirstMessage(t *testing.T) {
	s := Server{Timeout: 50 * time.Millisecond}
	for name, tc := range map[string]struct {
		conn *silent
		qps  uint16
		ok   bool
	}{
		"slow":             {&silent{after: 175 * time.Millisecond, probes: 100}, 1024, true},
		"dead":             {&silent{after: time.Hour}, 1024, false},
		"dies later":       {&silent{after: time.Hour, probes: 2}, 1024, false},
		"alive and silent": {&silent{after: time.Hour, probes: 1000}, 1, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			tc.conn.closed = make(chan struct{})
			began := time.Now()
			m, err := s.first(tc.conn, wire.TestHello{Test: wire.TestBandwidth, QPs: tc.qps})
			if (err == nil) != tc.ok || tc.ok && m.Rkey != 2 {
				t.Errorf("after %v: %v, %v", time.Since(began), m, err)
			}
			if took := time.Since(began); took > 20*time.Second {
				t.Errorf("took %v", took)
			}
		})
	}
}
