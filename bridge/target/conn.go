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

// queue is a connection that is served: one goroutine receives, one for each command
// in flight works, one sends.
type queue struct {
	log       zerolog.Logger
	volume    *Volume
	transport transport.Transport
	limits    wire.Limits
	silence   time.Duration
	heard     atomic.Bool   // a message has arrived since the last look for the client
	ended     atomic.Bool   // nothing is received any more
	gone      chan struct{} // closed then
	done      chan struct{} // closed when no operation of the queue runs any more

	replies chan reply
	workers sync.WaitGroup
	working atomic.Int32 // commands that are executed

	mu       sync.Mutex
	inFlight map[uint16]bool // by tag
}

// reply is a response on its way, with the memory of the client whose key it gives back.
type reply struct {
	wire.Response
	data   []byte // in the message
	client transport.Remote
	moved  []byte // of Transport.Buffer: goes into the client's memory
}

func newQueue(log zerolog.Logger, s *Session, conn transport.Transport, silence time.Duration) *queue {
	return &queue{
		log:       log,
		volume:    s.volume,
		transport: conn,
		silence:   silence,
		limits: wire.Limits{
			BlockSize:  s.Welcome.BlockSize,
			MaxData:    s.Welcome.MaxData,
			MaxInline:  s.Welcome.MaxInline,
			MaxMessage: s.Welcome.MaxMessage,
			Depth:      s.Welcome.Depth,
		},
		gone:     make(chan struct{}),
		done:     make(chan struct{}),
		replies:  make(chan reply, s.Welcome.Depth+1),
		inFlight: map[uint16]bool{},
	}
}

// run returns why the connection ended, when all its operations have.
func (q *queue) run() error {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		q.send()
	}()
	q.workers.Go(q.lookForClient)
	err := q.receive()
	q.ended.Store(true)
	close(q.gone)
	q.transport.Close()
	q.workers.Wait()
	close(q.replies)
	<-sent
	return err
}

func (q *queue) receive() error {
	for {
		msg, err := q.transport.Recv()
		if err != nil {
			return err
		}
		q.heard.Store(true)
		// Inline data lives in the receive buffer, which goes back before the first response.
		data := bytes.Clone(msg.Data)
		if err := msg.Release(); err != nil {
			return err
		}
		requests, err := wire.DecodeRequests(data, q.limits)
		if err != nil {
			return err
		}
		if err := q.begin(requests); err != nil {
			return err
		}
		q.working.Add(int32(len(requests)))
		for _, r := range requests {
			q.workers.Go(func() { q.work(r) })
		}
	}
}

// lookForClient ends the connection of a client that has died without a word, as its host does.
func (q *queue) lookForClient() {
	look := time.NewTicker(q.silence)
	defer look.Stop()
	for {
		select {
		case <-q.gone:
			return
		case <-look.C:
		}
		if q.heard.Swap(false) {
			continue
		}
		if err := q.transport.Probe(); err != nil {
			q.log.Warn().Err(err).Msg("the client is gone")
			q.transport.Close()
			return
		}
	}
}

// begin notes the tags of a message as being in flight.
func (q *queue) begin(requests []wire.Request) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, r := range requests {
		if q.inFlight[r.Tag] {
			return &wire.Violation{What: "tag is in flight already:", Value: uint64(r.Tag)}
		}
		q.inFlight[r.Tag] = true
		commands := len(q.inFlight)
		if q.inFlight[wire.TagKeepAlive] {
			commands--
		}
		if commands > int(q.limits.Depth) {
			return &wire.Violation{What: "commands in flight", Value: uint64(commands), Limit: uint64(q.limits.Depth)}
		}
	}
	return nil
}

func (q *queue) work(r wire.Request) {
	defer q.working.Add(-1)
	answer := reply{Response: wire.Response{Tag: r.Tag}, client: transport.Remote{Addr: r.Addr, Rkey: r.Rkey}}
	if err := q.execute(r, &answer); err != nil {
		if !q.transport.Ended() {
			q.log.Warn().Err(err).Msg("the client's memory cannot be reached: its connection ends")
		}
		q.transport.Close()
		return
	}
	if q.ended.Load() { // nobody is told
		return
	}
	if answer.Status != wire.StatusOK {
		q.volume.Counters.Errors.Add(1)
		q.transport.Free(answer.moved)
		answer.Length, answer.Flags, answer.CRC, answer.data, answer.moved = 0, 0, 0, nil, nil
	}
	q.replies <- answer
}

// send packs responses that are ready into few messages. One that gives back a key
// ends its message, as one SEND invalidates one key.
func (q *queue) send() {
	msg := make([]byte, 0, q.limits.MaxMessage)
	var next *reply
	for {
		msg = msg[:0]
		var last reply
		for last.client.Rkey == 0 {
			if next == nil {
				if next = q.nextReply(len(msg) == 0); next == nil {
					break
				}
			}
			if len(msg)+wire.ResponseSize+wire.Padded(len(next.data)) > int(q.limits.MaxMessage) {
				break
			}
			q.finish(next.Tag)
			msg = next.Response.Append(msg, next.data)
			last, next = *next, nil
		}
		if len(msg) == 0 {
			return
		}
		if q.post(msg, last) != nil {
			q.transport.Close() // receive() tells why
		}
	}
}

// post sends a message of responses that ends with last.
func (q *queue) post(msg []byte, last reply) error {
	if last.moved != nil {
		return q.transport.SendBehind(last.moved, last.client, msg)
	}
	return q.transport.Send(msg, last.client.Rkey)
}

// nextReply returns a reply that is ready; if wait, the next one, or nil at the end. Before it
// finds none ready it lets the workers run: what they are about to finish goes along.
func (q *queue) nextReply(wait bool) *reply {
	if wait {
		if r, ok := <-q.replies; ok {
			return &r
		}
		return nil
	}
	for yielded := false; ; yielded = true {
		select {
		case r, ok := <-q.replies:
			if ok {
				return &r
			}
			return nil
		default:
		}
		if yielded || q.working.Load() == 0 {
			return nil
		}
		runtime.Gosched()
	}
}

// finish lets the tag be used again; before its response is sent.
func (q *queue) finish(tag uint16) {
	q.mu.Lock()
	defer q.mu.Unlock()
	delete(q.inFlight, tag)
}
