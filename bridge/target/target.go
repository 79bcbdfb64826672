// SPDX-License-Identifier: Apache-2.0

// Package target is the storage side of krping's block protocol (kmod/PROTOCOL.md
// section 2): it decodes commands, stores and reads, and answers. What carries the
// messages is behind Transport.
package target

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/wire"
)

// Limits of this target, in bytes but for the first three.
const (
	MaxDepth       = 128
	MaxQueues      = 64
	MaxConnections = 256
	MaxData        = 1 << 20
	MaxInline      = 4096
	MaxMessage     = 8 * (wire.CommandSize + MaxInline) // eight small writes
)

// A client that was silent for so long is looked for.
const silence = 10 * time.Second

// Target serves volumes. Its epoch is new each time that one is made.
type Target struct {
	log     zerolog.Logger
	volumes map[string]*Volume
	epoch   uint64
	silence time.Duration

	mu     sync.Mutex
	queues map[queueKey]*queue
	closed bool
}

type queueKey struct {
	session wire.SessionID
	index   uint16
}

// New makes a target for the volumes, which have different names.
func New(log zerolog.Logger, volumes ...*Volume) (*Target, error) {
	t := &Target{log: log, volumes: map[string]*Volume{}, queues: map[queueKey]*queue{}, silence: silence}
	for _, v := range volumes {
		switch {
		case !wire.ValidVolumeName(v.Name):
			return nil, fmt.Errorf("volume name %q: must be 1 to 27 letters, digits, '.', '_' or '-'", v.Name)
		case t.volumes[v.Name] != nil:
			return nil, fmt.Errorf("volume %s is given twice", v.Name)
		case v.BlockSize != 512 && v.BlockSize != 4096:
			return nil, fmt.Errorf("volume %s: block size %d: must be 512 or 4096", v.Name, v.BlockSize)
		case v.Store.Size() <= 0 || v.Store.Size()%int64(v.BlockSize) != 0:
			return nil, fmt.Errorf("volume %s: size %d is no multiple of the block size %d", v.Name, v.Store.Size(), v.BlockSize)
		}
		t.volumes[v.Name] = v
	}
	var epoch [8]byte
	_, _ = rand.Read(epoch[:]) // never fails
	t.epoch = binary.BigEndian.Uint64(epoch[:])
	return t, nil
}

// Session is a checked hello: what Serve needs beside the transport.
type Session struct {
	Welcome wire.Welcome
	hello   wire.Hello
	volume  *Volume
}

// Admit checks the private data of a connect request and fences an old connection of
// the same session and queue: when it returns, no operation of that one runs. The
// error is a *wire.Reject.
func (t *Target) Admit(private []byte) (*Session, error) {
	hello, err := wire.DecodeHello(private)
	if err != nil {
		return nil, err
	}
	volume := t.volumes[hello.Volume]
	switch {
	case volume == nil:
		return nil, &wire.Reject{Reason: wire.RejectVolume, Detail: fmt.Sprintf("no volume %q", hello.Volume)}
	case hello.QueueCount > MaxQueues:
		return nil, &wire.Reject{Reason: wire.RejectQueues, Value: MaxQueues, Detail: fmt.Sprintf("%d queues", hello.QueueCount)}
	}
	if err := t.fence(queueKey{hello.Session, hello.QueueIndex}); err != nil {
		return nil, err
	}
	s := &Session{hello: hello, volume: volume, Welcome: wire.Welcome{
		Depth:      min(hello.Depth, MaxDepth),
		Capacity:   volume.capacity(),
		Epoch:      t.epoch,
		BlockSize:  volume.BlockSize,
		MaxData:    MaxData,
		MaxInline:  MaxInline,
		MaxMessage: MaxMessage,
	}}
	if volume.ReadOnly {
		s.Welcome.Flags |= wire.VolumeReadOnly
	}
	if volume.Writeback {
		s.Welcome.Flags |= wire.VolumeWriteback
	}
	return s, nil
}

func (t *Target) fence(key queueKey) error {
	t.mu.Lock()
	old, n, closed := t.queues[key], len(t.queues), t.closed
	t.mu.Unlock()
	if closed {
		return &wire.Reject{Reason: wire.RejectResources, Detail: "the target is being closed"}
	}
	if old == nil {
		if n >= MaxConnections {
			return &wire.Reject{Reason: wire.RejectBusy, Value: MaxConnections, Detail: "too many connections"}
		}
		return nil
	}
	t.log.Info().Str("peer", old.transport.Peer()).Msg("fencing the old connection of a session that connects anew")
	old.transport.Close()
	<-old.done
	return nil
}

// Serve answers commands until the connection ends; then no operation of it runs any
// more. It owns the transport.
func (t *Target) Serve(ctx context.Context, s *Session, transport Transport) {
	defer transport.Close()
	stop := context.AfterFunc(ctx, transport.Close)
	defer stop()

	log := t.log.With().Str("peer", transport.Peer()).Str("volume", s.volume.Name).
		Uint16("queue", s.hello.QueueIndex).Hex("session", s.hello.Session[:4]).Logger()
	q := newQueue(log, s, transport, t.silence)
	key := queueKey{s.hello.Session, s.hello.QueueIndex}
	if !t.add(key, q) {
		close(q.done)
		return
	}
	s.volume.Counters.Connections.Add(1)
	log.Info().Uint16("depth", s.Welcome.Depth).Msg("connected")
	err := q.run()
	t.remove(key, q) // first: who waits for done puts its own queue there
	close(q.done)

	var violation *wire.Violation
	if errors.As(err, &violation) {
		s.volume.Counters.Violations.Add(1)
		log.Warn().Err(err).Msg("connection ended")
		return
	}
	log.Info().AnErr("reason", err).Msg("disconnected")
}

// add refuses a queue that races with another of the same name: both were admitted,
// and the client of the first is gone or lies.
func (t *Target) add(key queueKey, q *queue) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.queues[key] != nil {
		return false
	}
	t.queues[key] = q
	return true
}

func (t *Target) remove(key queueKey, q *queue) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.queues[key] == q {
		delete(t.queues, key)
	}
}

// Close ends all connections, waits for their operations, and flushes and closes the
// stores.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed = true
	queues := make([]*queue, 0, len(t.queues))
	for _, q := range t.queues {
		queues = append(queues, q)
	}
	t.mu.Unlock()
	for _, q := range queues {
		q.transport.Close()
		<-q.done
	}
	var errs []error
	for _, v := range t.volumes {
		if !v.ReadOnly {
			errs = append(errs, v.Store.Flush())
		}
		errs = append(errs, v.Store.Close())
	}
	return errors.Join(errs...)
}
