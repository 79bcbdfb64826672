// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/transport"
	"krping/bridge/wire"
)

// probeInterval is how often a silent client is probed.
const probeInterval = 10 * time.Second

// conn is a connection that is served. One goroutine receives, one executes each command in
// flight, and one sends.
type conn struct {
	log       zerolog.Logger
	session   *Session
	volume    *Volume
	transport transport.Transport
	limits    wire.Limits
	bye       func()      // called when the client gives up the volume
	received  atomic.Bool // a message arrived since the last probe

	operations *operations

	replies   chan reply
	workers   sync.WaitGroup
	executing atomic.Int32 // commands

	mu       sync.Mutex
	inFlight map[uint16]bool // by tag
}

// reply is a response to send.
type reply struct {
	wire.Response
	inline []byte           // data in the message
	rdma   []byte           // data to write to the client's memory; from Transport.Buffer
	client transport.Remote // the client's memory, whose key the message invalidates
}

func newConn(log zerolog.Logger, s *Session, tr transport.Transport, bye func()) *conn {
	return &conn{
		log:       log,
		session:   s,
		volume:    s.volume,
		transport: tr,
		bye:       bye,
		limits: wire.Limits{
			Version:    s.hello.Version,
			BlockSize:  s.Welcome.BlockSize,
			MaxData:    s.Welcome.MaxData,
			MaxInline:  s.Welcome.MaxInline,
			MaxMessage: s.Welcome.MaxMessage,
			Depth:      s.Welcome.Depth,
		},
		operations: newOperations(),
		replies:    make(chan reply, s.Welcome.Depth+1),
		inFlight:   map[uint16]bool{},
	}
}

// hasEnded reports whether the connection has ended or is about to.
func (c *conn) hasEnded() bool { return c.operations.isStopped() || c.transport.Ended() }

// run serves the connection until it ends and all its operations have ended. It calls left as soon as
// the connection will start no more operations. The error says why it ended.
func (c *conn) run(left func()) error {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		c.send()
	}()
	c.workers.Go(c.probe)
	err := c.receive()
	c.operations.stop()
	left()
	c.transport.Close()
	c.workers.Wait()
	close(c.replies)
	<-sent
	return err
}

func (c *conn) receive() error {
	for {
		msg, err := c.transport.Recv()
		if err != nil {
			return err
		}
		c.received.Store(true)
		// The receive buffer is posted again before the first response is sent.
		data := bytes.Clone(msg.Data)
		if err := msg.Release(); err != nil {
			return err
		}
		requests, err := wire.DecodeRequests(data, c.limits)
		if err != nil {
			return err
		}
		if err := c.startTags(requests); err != nil {
			return err
		}
		c.executing.Add(int32(len(requests)))
		for _, r := range requests {
			c.workers.Go(func() { c.handle(r) })
		}
	}
}

// probe closes the connection when the client's host has crashed, which sends nothing.
func (c *conn) probe() {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-c.operations.stopped:
			return
		case <-ticker.C:
		}
		if c.received.Swap(false) {
			continue
		}
		if err := c.transport.Probe(); err != nil {
			c.log.Warn().Err(err).Msg("the client does not answer")
			c.transport.Close()
			return
		}
	}
}

// startTags marks the tags of a message's commands as in flight.
func (c *conn) startTags(requests []wire.Request) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, r := range requests {
		if c.inFlight[r.Tag] {
			return &wire.Violation{What: "tag is in flight already", Value: uint64(r.Tag)}
		}
		c.inFlight[r.Tag] = true
		commands := len(c.inFlight)
		if c.inFlight[wire.TagKeepAlive] {
			commands--
		}
		if commands > int(c.limits.Depth) {
			return &wire.Violation{What: "too many commands in flight", Value: uint64(commands), Limit: uint64(c.limits.Depth)}
		}
	}
	return nil
}

// endTag allows the client to use the tag again. Called before the response is sent.
func (c *conn) endTag(tag uint16) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.inFlight, tag)
}

// handle executes a command and queues the reply.
func (c *conn) handle(r wire.Request) {
	defer c.executing.Add(-1)
	answer := reply{Response: wire.Response{Tag: r.Tag}, client: transport.Remote{Addr: r.Addr, Rkey: r.Rkey}}
	if err := c.execute(r, &answer); err != nil {
		if !c.transport.Ended() {
			c.log.Warn().Err(err).Msg("cannot access the client's memory, closing the connection")
		}
		c.transport.Close()
		return
	}
	if c.operations.isStopped() { // nobody waits for the reply
		return
	}
	if answer.Status != wire.StatusOK {
		c.volume.Counters.Errors.Add(1)
		c.transport.Free(answer.rdma)
		answer.Length, answer.Flags, answer.CRC, answer.inline, answer.rdma = 0, 0, 0, nil, nil
	}
	c.replies <- answer
}

// send packs ready responses into few messages. One that invalidates a key ends its message,
// as one SEND invalidates one key.
func (c *conn) send() {
	msg := make([]byte, 0, c.limits.MaxMessage)
	var next *reply
	for {
		msg = msg[:0]
		var last reply
		for last.client.Rkey == 0 {
			if next == nil {
				if next = c.nextReply(len(msg) == 0); next == nil {
					break
				}
			}
			if len(msg)+wire.ResponseSize+wire.Padded(len(next.inline)) > int(c.limits.MaxMessage) {
				break
			}
			c.endTag(next.Tag)
			msg = next.Response.Append(msg, next.inline)
			last, next = *next, nil
		}
		if len(msg) == 0 {
			return
		}
		if c.post(msg, last) != nil {
			c.transport.Close() // receive returns the reason
		}
	}
}

// post sends a message of responses, of which last is the last.
func (c *conn) post(msg []byte, last reply) error {
	if last.rdma != nil {
		return c.transport.WriteAndSend(last.rdma, last.client, msg)
	}
	return c.transport.Send(msg, last.client.Rkey)
}

// nextReply returns the next reply, or nil if the connection has ended. Without wait it also
// returns nil if none is ready, but first lets the workers run once, as they may be about to
// finish one for the same message.
func (c *conn) nextReply(wait bool) *reply {
	if wait {
		if r, ok := <-c.replies; ok {
			return &r
		}
		return nil
	}
	for yielded := false; ; yielded = true {
		select {
		case r, ok := <-c.replies:
			if ok {
				return &r
			}
			return nil
		default:
		}
		if yielded || c.executing.Load() == 0 {
			return nil
		}
		runtime.Gosched()
	}
}
