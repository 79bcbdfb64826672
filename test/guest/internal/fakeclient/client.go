// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package fakeclient connects to targets and ping servers from user space and sends what the
// module's client never sends.
package fakeclient

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"os"
	"testing"
	"time"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// NoKey is an rkey that no memory region has.
const NoKey = 0xdeadbeef

var (
	// Config suits a client that uses its connection.
	Config = verbs.Config{Receives: 8, MaxMessage: 8 * (wire.CommandSize + 4096), Buffers: 1, MaxData: 4096}
	// Small suits a client that expects to be rejected, or sends nothing.
	Small = verbs.Config{Receives: 2, MaxMessage: 64, Buffers: 1, MaxData: 4096}
)

// Client is a connection to a volume.
type Client struct {
	*verbs.Conn
	Private []byte       // private data of the target's accept
	Welcome wire.Welcome // what it says
	t       testing.TB
}

// DialConn connects to a port of the guest's own address. The caller releases the connection.
func DialConn(t testing.TB, port int, private []byte, config verbs.Config) (*verbs.Conn, []byte, error) {
	t.Helper()
	return dialFrom(t, netip.Addr{}, port, private, config)
}

func dialFrom(t testing.TB, source netip.Addr, port int, private []byte, config verbs.Config) (*verbs.Conn, []byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guest.Slow(20*time.Second))
	defer cancel()
	route := verbs.Route{Addr: netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), uint16(port)), Source: source}
	return route.Dial(ctx, private, config)
}

// DialRaw connects to a target, until the end of the test, and does not decode the welcome.
func DialRaw(t testing.TB, port int, private []byte, config verbs.Config) (*Client, error) {
	t.Helper()
	return dialRawFrom(t, netip.Addr{}, port, private, config)
}

func dialRawFrom(t testing.TB, source netip.Addr, port int, private []byte, config verbs.Config) (*Client, error) {
	t.Helper()
	conn, reply, err := dialFrom(t, source, port, private, config)
	if err != nil {
		return nil, err
	}
	t.Cleanup(conn.Release)
	return &Client{Conn: conn, Private: reply, t: t}, nil
}

// Dial connects to a target, until the end of the test.
func Dial(t testing.TB, port int, private []byte, config verbs.Config) (*Client, error) {
	t.Helper()
	return DialFrom(t, netip.Addr{}, port, private, config)
}

// DialFrom is Dial from one of the guest's addresses.
func DialFrom(t testing.TB, source netip.Addr, port int, private []byte, config verbs.Config) (*Client, error) {
	t.Helper()
	c, err := dialRawFrom(t, source, port, private, config)
	if err != nil {
		return nil, err
	}
	c.Welcome, err = wire.DecodeWelcome(c.Private)
	return c, err
}

// Hello asks for the first of two queues of vol0 and a depth of 4, with changes.
func Hello(session byte, changes ...func(h *wire.Hello)) wire.Hello {
	h := wire.Hello{QueueCount: 2, Depth: 4, Session: wire.SessionID{session}, Volume: wire.VolumeIDOf("vol0")}
	for _, change := range changes {
		change(&h)
	}
	return h
}

// Connect connects to a target that must accept the client.
func Connect(t testing.TB, port int, h wire.Hello) *Client {
	t.Helper()
	c, err := Dial(t, port, h.Append(nil), Config)
	if err != nil {
		t.Fatalf("connect: %v", err)
	}
	return c
}

// WantRejected checks that a target or ping server has rejected a client with a reason.
func WantRejected(t testing.TB, what string, err error, reason wire.Reason, value uint32) {
	t.Helper()
	var rejected *verbs.RejectedError
	if !errors.As(err, &rejected) {
		t.Errorf("%s: got error %v, want a rejected connection", what, err)
		return
	}
	got, err := wire.DecodeReject(rejected.Private)
	if err != nil || got.Reason != reason || got.Value != value {
		t.Errorf("%s: got %+v, %v, want reason %d, value %d", what, got, err, reason, value)
	}
}

// Rejected checks that a target rejects a hello with a reason.
func Rejected(t testing.TB, what string, port int, h wire.Hello, reason wire.Reason) {
	t.Helper()
	_, err := Dial(t, port, h.Append(nil), Small)
	WantRejected(t, what, err, reason, 0)
}

// Post sends commands in one message.
func (c *Client) Post(requests ...wire.Request) {
	c.t.Helper()
	var msg []byte
	for _, r := range requests {
		msg = r.Append(msg)
	}
	c.PostMessage(msg)
}

// PostMessage sends any bytes.
func (c *Client) PostMessage(msg []byte) {
	c.t.Helper()
	if err := c.Send(msg, 0); err != nil {
		c.t.Fatal(err)
	}
}

// Call sends commands in one message and returns the answers to all of them.
func (c *Client) Call(requests ...wire.Request) []wire.Answer {
	c.t.Helper()
	c.Post(requests...)
	return c.Answers(len(requests))
}

// Answers returns the answers to n commands that were sent before, or more if others share their last message.
func (c *Client) Answers(n int) []wire.Answer {
	c.t.Helper()
	var answers []wire.Answer
	for len(answers) < n {
		more, err := c.receive()
		if err != nil {
			c.t.Fatalf("%d answers to %d commands: %v", len(answers), n, err)
		}
		answers = append(answers, more...)
	}
	return answers
}

// receive returns the answers of the next message.
func (c *Client) receive() ([]wire.Answer, error) {
	c.t.Helper()
	type received struct {
		message transport.Message
		err     error
	}
	next := make(chan received, 1)
	go func() {
		message, err := c.Recv()
		next <- received{message, err}
	}()
	r := guest.Within(c.t, 20*time.Second, "the target answers", next)
	if r.err != nil {
		return nil, r.err
	}
	answers, err := wire.DecodeAnswers(bytes.Clone(r.message.Data))
	if err != nil {
		return nil, err
	}
	return answers, r.message.Release()
}

// WantServed checks that the target still answers on this connection.
func (c *Client) WantServed() {
	c.t.Helper()
	if a := c.Call(Read(1, 0, 512))[0]; a.Status != wire.StatusOK || len(a.Data) != 512 {
		c.t.Errorf("READ of 512 bytes: %+v", a)
	}
}

// WantClosed checks that the target closes the connection.
func (c *Client) WantClosed(what string) {
	c.t.Helper()
	WantClosed(c.t, what, c.Conn)
}

// WantClosed checks that the peer closes a connection.
func WantClosed(t testing.TB, what string, conn *verbs.Conn) {
	t.Helper()
	select {
	case <-conn.Done():
	case <-time.After(guest.Slow(15 * time.Second)):
		late.Errorf(t, "%s: the connection is still open", what)
	}
}

// LendData returns memory that holds the data and that the target may access.
func (c *Client) LendData(data []byte) transport.Remote {
	c.t.Helper()
	m, err := c.Lend(len(data))
	if err != nil {
		c.t.Fatal(err)
	}
	f := c.ownMemory()
	defer f.Close()
	if _, err := f.WriteAt(data, int64(m.Addr)); err != nil {
		c.t.Fatal(err)
	}
	return m
}

// Lent returns the first n bytes of memory that was lent.
func (c *Client) Lent(m transport.Remote, n int) []byte {
	c.t.Helper()
	f := c.ownMemory()
	defer f.Close()
	data := make([]byte, n)
	if _, err := f.ReadAt(data, int64(m.Addr)); err != nil {
		c.t.Fatal(err)
	}
	return data
}

// ownMemory opens the memory of this process: the memory that C allocated and lent is part of it.
func (c *Client) ownMemory() *os.File {
	c.t.Helper()
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		c.t.Fatal(err)
	}
	return f
}
