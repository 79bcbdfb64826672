// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// Dialer connects to a server.
type Dialer interface {
	// Dial makes the control connection, with receives of size bytes each. A *wire.Reject says why the
	// server refuses.
	Dial(ctx context.Context, private []byte, receives, size int) (Conn, error)
	// DialQueue connects an RC queue pair, of which this side answers, and has outstanding, so many RDMA
	// READs and atomics.
	DialQueue(ctx context.Context, q transport.Queues, index int, private []byte, responder, initiator int) error
	// Release frees a connection of Dial, which is closed.
	Release(conn Conn)
}

// Client runs a test against a server.
type Client struct {
	Dialer  Dialer
	Timeout time.Duration // of connection set-up and of each step
	Poll    bool          // poll for completions instead of sleeping
}

// Run runs a test. The end of ctx ends it in good order, as if its count were reached. The result is valid
// also with an error.
func (c Client) Run(ctx context.Context, h wire.VerbsHello) (Result, error) {
	if err := h.Check(); err != nil {
		var reject *wire.Reject
		errors.As(err, &reject)
		return Result{}, errors.New(reject.Detail)
	}
	setup, cancel := context.WithTimeout(ctx, c.Timeout)
	defer cancel()
	p := planOf(h, false)
	conn, err := c.Dialer.Dial(setup, h.Append(nil), wire.VerbsControlDepth(int(h.QPs)), wire.VerbsMessageSize)
	if err != nil {
		return Result{}, err
	}
	defer c.Dialer.Release(conn)
	test, err := newSide(ctx, p, conn, c.Timeout)
	if err != nil {
		return Result{}, err
	}
	defer test.close()
	test.poll = c.Poll
	if err = c.run(ctx, test); err == nil {
		err = test.control.flush() // its REPORT, if it owes one
	}
	if err == nil {
		err = test.outcome()
	} else {
		test.fail(err)
	}
	return test.result(), err
}

func (c Client) run(ctx context.Context, test *side) error {
	if err := c.connect(ctx, test); err != nil {
		return err
	}
	if err := test.postReceives(); err != nil {
		return err
	}
	if err := test.describe(); err != nil {
		return err
	}
	if err := test.meet(); err != nil {
		return err
	}
	if err := test.control.send(wire.VerbsMessage{Type: wire.VerbsGo}); err != nil {
		return err
	}
	if test.isLatency() {
		return test.measureLatency()
	}
	return test.bandwidth()
}

// connect connects the RC queue pairs.
func (c Client) connect(ctx context.Context, test *side) error {
	if test.QPType != wire.RC {
		return nil
	}
	h := test.VerbsHello
	initiator, responder := int(h.Reads), 0
	if h.Duplex {
		responder = int(h.Reads)
	}
	for i := range int(h.QPs) {
		h.Connection = uint16(i + 1)
		limited, cancel := context.WithTimeout(ctx, test.setupTimeout(c.Timeout))
		err := c.Dialer.DialQueue(limited, test.q, i, h.Append(nil), responder, initiator)
		cancel()
		if ctx.Err() != nil {
			return ErrStopped
		}
		if err != nil {
			return fmt.Errorf("connect data queue pair %d of %d: %w", i+1, h.QPs, err)
		}
	}
	return nil
}
