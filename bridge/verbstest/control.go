// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// Errors that end a test.
var (
	ErrProtocol  = errors.New("the peer broke the protocol")
	ErrTimeout   = errors.New("the peer did not go on in time")
	ErrStopped   = errors.New("stopped")
	ErrDevice    = errors.New("the RDMA device failed a work request")
	ErrLost      = errors.New("messages were lost on a reliable connection")
	ErrDamaged   = errors.New("data arrived damaged")
	ErrEnded     = errors.New("the peer has disconnected")
	errResources = errors.New("out of memory or RDMA resources")
)

// PeerError is the reason with which the peer ended the test.
type PeerError struct{ Code wire.VerbsErrorCode }

func (e *PeerError) Error() string { return fmt.Sprintf("the peer has ended the test: %s", e.Code) }

func violation(format string, args ...any) error {
	return fmt.Errorf("%w: %s", ErrProtocol, fmt.Sprintf(format, args...))
}

// codeOf returns what the peer is told of an error.
func codeOf(err error) wire.VerbsErrorCode {
	switch {
	case errors.Is(err, ErrProtocol), errors.Is(err, ErrLost):
		return wire.VerbsErrorProtocol
	case errors.Is(err, ErrTimeout):
		return wire.VerbsErrorTimeout
	case errors.Is(err, ErrStopped):
		return wire.VerbsErrorStopped
	case errors.Is(err, ErrDevice):
		return wire.VerbsErrorDevice
	}
	return wire.VerbsErrorResources
}

// Conn is a control connection.
type Conn interface {
	Recv() (transport.Message, error)
	Send(msg []byte, invalidate uint32) error
	Probe() error
	Done() <-chan struct{}
	Close()
	Peer() string
	// Ability returns what the connection's device can do.
	Ability() (transport.Ability, error)
	// PathMTU returns the MTU of the connection's path in bytes.
	PathMTU() (int, error)
	// NewQueues makes queue pairs on the connection's device, those of UC and UD at once.
	NewQueues(config transport.QueueConfig) (transport.Queues, error)
}

// control sends and receives the messages of the control connection.
type control struct {
	conn    Conn
	timeout time.Duration
	most    int    // messages that are not handled yet
	wake    func() // called when a message has arrived
	readers sync.WaitGroup
	arrived chan struct{} // has an element if there are messages, or err is set
	probing sync.Mutex

	mu       sync.Mutex // protects all below
	messages []wire.VerbsMessage
	err      error // why no more will come
}

// newControl starts to receive. The caller calls close.
func newControl(conn Conn, timeout time.Duration, queues int) *control {
	c := &control{conn: conn, timeout: timeout, most: wire.VerbsControlDepth(queues), wake: func() {}, arrived: make(chan struct{}, 1)}
	c.readers.Go(c.receive)
	c.readers.Go(c.probe)
	return c
}

// close closes the connection and waits until wake is not called any more.
func (c *control) close() {
	c.conn.Close()
	c.readers.Wait()
}

// wakes makes wake be called for each message, instead of what was called before.
func (c *control) wakes(wake func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wake = wake
}

func (c *control) receive() {
	for {
		m, err := c.next()
		c.mu.Lock()
		if err == nil && len(c.messages) == c.most {
			err = violation("more than %d messages at once", c.most)
		}
		if err == nil {
			c.messages = append(c.messages, m)
		} else {
			c.err = err
		}
		c.wake()
		c.mu.Unlock()
		select {
		case c.arrived <- struct{}{}:
		default:
		}
		if err != nil {
			return
		}
	}
}

func (c *control) next() (wire.VerbsMessage, error) {
	message, err := c.conn.Recv()
	if err != nil {
		return wire.VerbsMessage{}, fmt.Errorf("%w: %w", ErrEnded, err)
	}
	m, err := wire.DecodeVerbsMessage(message.Data)
	if err != nil {
		return m, violation("%v", err)
	}
	_ = message.Release() // fails if the connection has ended; then the next Recv does, too
	return m, nil
}

// probe notices a dead peer: its device does not acknowledge an empty RDMA WRITE.
func (c *control) probe() {
	ticker := time.NewTicker(max(c.timeout/2, time.Millisecond))
	defer ticker.Stop()
	for {
		select {
		case <-c.conn.Done():
			return
		case <-ticker.C:
		}
		if c.flush() != nil {
			c.conn.Close()
			return
		}
	}
}

// flush waits until the peer's device has acknowledged all that was sent.
func (c *control) flush() error {
	c.probing.Lock()
	defer c.probing.Unlock()
	return c.conn.Probe()
}

// take returns the next message if there is one. An error is returned once all messages were.
func (c *control) take() (m wire.VerbsMessage, ok bool, err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.messages) == 0 {
		return m, false, c.err
	}
	m = c.messages[0]
	c.messages = c.messages[1:]
	if m.Type == wire.VerbsError {
		return m, false, &PeerError{wire.VerbsErrorCode(m.Number)}
	}
	return m, true, nil
}

// await waits for the next message, which must have a type.
func (c *control) await(ctx context.Context, want wire.VerbsMessageType, timeout time.Duration) (wire.VerbsMessage, error) {
	late := time.NewTimer(timeout)
	defer late.Stop()
	for {
		m, ok, err := c.take()
		switch {
		case err != nil:
			return m, err
		case ok && m.Type != want:
			return m, violation("%s instead of %s", m.Type, want)
		case ok:
			return m, nil
		}
		select {
		case <-c.arrived:
		case <-late.C:
			return m, fmt.Errorf("%w: no %s in %v", ErrTimeout, want, timeout)
		case <-ctx.Done():
			return m, ErrStopped
		}
	}
}

func (c *control) send(m wire.VerbsMessage) error {
	if err := c.conn.Send(m.Append(nil), 0); err != nil {
		return fmt.Errorf("%w: %w", ErrEnded, err)
	}
	return nil
}

const farewell = 500 * time.Millisecond // to tell the peer why the test ends

// fail tells the peer why the test ends.
func (c *control) fail(err error) {
	if errors.Is(err, ErrEnded) || errors.As(err, new(*PeerError)) {
		return
	}
	told := make(chan struct{})
	go func() {
		defer close(told)
		if c.send(wire.VerbsMessage{Type: wire.VerbsError, Number: uint64(codeOf(err))}) == nil {
			_ = c.flush() // fails if the peer disconnects at once
		}
	}()
	select {
	case <-told:
	case <-time.After(farewell):
		c.conn.Close()
		<-told
	}
}
