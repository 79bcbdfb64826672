// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// probeInterval is how often a silent client is probed.
const probeInterval = 10 * time.Second

// conn is a connection that is served. One goroutine receives, a worker executes each command in
// flight, and one of the workers whose commands are done sends their responses.
type conn struct {
	log       zerolog.Logger
	session   *Session
	volume    *Volume
	transport transport.Transport
	limits    wire.Limits
	begin     func() error // called at the first message
	bye       func()       // called when the client gives up the volume
	received  atomic.Bool  // a message arrived since the last probe

	operations *operations

	executor transport.Executor // the transport, if it is one

	workers   *workers
	executing atomic.Int32 // commands

	mu       sync.Mutex      // protects all below
	inFlight map[uint16]bool // by tag
	replies  []reply         // to send
	sending  bool            // a worker sends them
}

// task is a command to execute, and the message that it came in.
type task struct {
	wire.Request
	message *message
}

// message is a copy of a received message. While responses are sent, one is the buffer for them.
type message struct {
	data []byte
	left atomic.Int32 // commands that are not executed yet
}

const smallRead = 4096 // bytes; the data of a larger READ is in a buffer of the transport, of which there are few

var (
	messages = sync.Pool{New: func() any { return &message{} }}
	inline   = sync.Pool{New: func() any { b := make([]byte, smallRead); return &b }}
)

// reply is a response to send.
type reply struct {
	wire.Response
	inline []byte           // data in the message
	pooled *[]byte          // what inline is part of, if it goes back to the pool
	buffer []byte           // data of a larger READ, inline or to write to the client's memory; from Transport.Buffer
	client transport.Remote // the client's memory, whose key the message invalidates
}

func newConn(log zerolog.Logger, s *Session, tr transport.Transport, begin func() error, bye func()) *conn {
	c := &conn{
		log:       log,
		session:   s,
		volume:    s.volume,
		transport: tr,
		begin:     begin,
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
		inFlight:   map[uint16]bool{},
	}
	c.workers = newWorkers(c.handle)
	if e, ok := tr.(transport.Executor); ok {
		c.executor = e
		c.operations.tell = e.Interrupt
	}
	return c
}

// hasEnded reports whether the connection has ended or is about to.
func (c *conn) hasEnded() bool { return c.operations.isStopped() || c.transport.Ended() }

// run serves the connection until it ends and all its operations have ended. It calls left as soon as
// the connection will start no more operations. The error says why it ended.
func (c *conn) run(left func()) error {
	var probing sync.WaitGroup
	probing.Go(c.probe)
	err := c.serve()
	c.operations.stop()
	left()
	c.transport.Close()
	c.workers.wait()
	<-c.operations.done // an Executor's, too
	probing.Wait()
	return err
}

var errLostVolume = errors.New("another session has become the writer")

// serve handles messages until the connection ends. An Executor needs a thread for a store in a file.
func (c *conn) serve() (err error) {
	s, opened := c.volume.Store.(store.Opened)
	switch {
	case c.executor == nil || !opened:
		return c.receive(nil)
	case s.Contents().Memory != nil:
		return c.receive(s)
	}
	if !c.volume.threads.run(c.executor.Prepare, func() { err = c.receive(s) }) {
		err = c.receive(nil)
	}
	return err
}

// receive handles messages. The transport executes commands for executes, unless that is nil.
func (c *conn) receive(executes store.Opened) error {
	var tasks []task
	begun := false
	for {
		msg, err := c.transport.Recv()
		if err != nil {
			return err
		}
		if !begun {
			if err := c.first(); err != nil {
				return err
			}
			if executes != nil {
				c.execute(executes.Contents())
			}
		}
		begun = true
		c.received.Store(true)
		// The receive buffer is posted again before the first response is sent.
		m := messages.Get().(*message)
		m.data = append(m.data[:0], msg.Data...)
		if err := msg.Release(); err != nil {
			return err
		}
		requests, err := wire.DecodeRequests(m.data, c.limits)
		if err != nil {
			return err
		}
		if err := c.startTags(requests, msg.Taken); err != nil {
			return err
		}
		m.left.Store(int32(len(requests)))
		c.executing.Add(int32(len(requests)))
		tasks = tasks[:0]
		for _, r := range requests {
			tasks = append(tasks, task{r, m})
		}
		c.workers.add(tasks)
	}
}

// first is called at the first message. What it writes to the store counts as an operation.
func (c *conn) first() error {
	if !c.operations.begin() {
		return errStopped
	}
	defer c.operations.end()
	return c.begin()
}

// execute has the transport execute commands, if it can.
func (c *conn) execute(contents store.Contents) {
	to := transport.Volume{
		Memory: contents.Memory, Size: contents.Size, Stable: contents.Stable, Counts: &c.volume.Counters.Counts,
		Writes: c.session.writes, Writeback: c.volume.Writeback, Flags: wire.CommandFlags(c.limits.Version),
		BlockSize: c.limits.BlockSize, MaxData: c.limits.MaxData, MaxInline: c.limits.MaxInline,
		MaxMessage: c.limits.MaxMessage, Depth: c.limits.Depth,
		Begin: c.operations.begin, End: c.operations.end,
	}
	if contents.Memory == nil {
		to.File = contents.File.Fd()
	}
	c.executor.Execute(to)
}

// probe closes the connection when the client's host has crashed, which sends nothing. It also notices that
// the store has another size, which a client that is busy does not ask for.
func (c *conn) probe() {
	ticker := time.NewTicker(probeInterval)
	defer ticker.Stop()
	for {
		select {
		case <-c.operations.stopped:
			return
		case <-ticker.C:
		}
		c.volume.refresh(c.log)
		if executed := c.executor != nil && c.executor.Executed(); c.received.Swap(false) || executed {
			continue
		}
		if err := c.transport.Probe(); err != nil {
			c.log.Warn().Err(err).Msg("the client does not answer")
			c.transport.Close()
			return
		}
	}
}

// startTags marks the tags of a message's commands as in flight. With taken, the transport has done so.
func (c *conn) startTags(requests []wire.Request, taken bool) error {
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
		if c.executor != nil && !taken && r.Tag != wire.TagKeepAlive {
			all, free := c.executor.TakeTag(r.Tag)
			if !free {
				return &wire.Violation{What: "tag is in flight already", Value: uint64(r.Tag)}
			}
			commands = max(commands, all)
		}
		if commands > int(c.limits.Depth) {
			return &wire.Violation{What: "too many commands in flight", Value: uint64(commands), Limit: uint64(c.limits.Depth)}
		}
	}
	return nil
}

// handle executes a command and answers it.
func (c *conn) handle(t task) {
	answer := reply{Response: wire.Response{Tag: t.Tag}, client: transport.Remote{Addr: t.Addr, Rkey: t.Rkey}}
	err := c.command(t.Request, &answer)
	if t.message.left.Add(-1) == 0 {
		messages.Put(t.message)
	}
	c.executing.Add(-1)
	switch {
	case err != nil:
		if !c.transport.Ended() {
			c.log.Warn().Err(err).Msg("cannot access the client's memory, closing the connection")
		}
		c.transport.Close()
		return
	case c.operations.isStopped(): // nobody waits for the reply
		return
	case answer.Status != wire.StatusOK:
		c.volume.Counters.Errors.Add(1)
		c.transport.Free(answer.buffer)
		answer.Length, answer.Flags, answer.CRC, answer.inline, answer.buffer = 0, 0, 0, nil, nil
	}
	c.mu.Lock()
	c.replies = append(c.replies, answer)
	first := !c.sending
	c.sending = true
	c.mu.Unlock()
	if first {
		c.send()
	}
}

// send sends responses until none is left.
func (c *conn) send() {
	buffer := messages.Get().(*message)
	defer messages.Put(buffer)
	for {
		msg, last := c.nextMessage(buffer.data[:0])
		if len(msg) == 0 {
			return
		}
		buffer.data = msg
		if c.post(msg, last) != nil {
			c.transport.Close() // receive returns the reason
		}
	}
}

// nextMessage appends responses to an empty message, and returns it with the last of them. It is empty
// if there are none; then the caller no longer sends.
func (c *conn) nextMessage(msg []byte) (_ []byte, last reply) {
	for yielded := false; ; yielded = true {
		msg, last = c.pack(msg, last)
		// Other workers may be about to finish a command for the same message.
		if yielded || len(msg) == 0 || last.client.Rkey != 0 || c.executing.Load() == 0 {
			return msg, last
		}
		runtime.Gosched()
	}
}

// pack appends those responses that are ready and fit. One that invalidates a key ends its message, as
// one SEND invalidates one key.
func (c *conn) pack(msg []byte, last reply) ([]byte, reply) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for ; n < len(c.replies) && last.client.Rkey == 0; n++ {
		r := &c.replies[n]
		if len(msg)+wire.ResponseSize+wire.Padded(len(r.inline)) > int(c.limits.MaxMessage) {
			break
		}
		delete(c.inFlight, r.Tag) // the client may use it again
		if c.executor != nil && r.Tag != wire.TagKeepAlive {
			c.executor.FreeTag(r.Tag)
		}
		msg = r.Response.Append(msg, r.inline)
		if r.pooled != nil {
			inline.Put(r.pooled)
		}
		if r.inline != nil && r.buffer != nil { // the message has the data
			c.transport.Free(r.buffer)
			r.buffer = nil
		}
		last = *r
	}
	c.replies = slices.Delete(c.replies, 0, n)
	c.sending = len(msg) > 0
	return msg, last
}

// post sends a message of responses, of which last is the last.
func (c *conn) post(msg []byte, last reply) error {
	if last.buffer != nil {
		return c.transport.WriteAndSend(last.buffer, last.client, msg)
	}
	return c.transport.Send(msg, last.client.Rkey)
}
