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
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/transport"
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
	Rejected atomic.Uint64 // clients that were refused

	log        zerolog.Logger
	allow      access.List
	volumes    map[string]*Volume
	challenges *challenges
	epoch      uint64
	silence    time.Duration

	mu     sync.Mutex
	queues map[queueKey]*queue
	places map[string]int // taken, by volume
	closed bool
}

type queueKey struct {
	volume  string // a session of one is nothing to another
	session wire.SessionID
	index   uint16
}

// New makes a target for clients of the addresses, and for the volumes, which have different
// names.
func New(log zerolog.Logger, allow access.List, volumes ...*Volume) (*Target, error) {
	t := &Target{
		log: log, allow: allow, volumes: map[string]*Volume{}, challenges: newChallenges(),
		queues: map[queueKey]*queue{}, places: map[string]int{}, silence: silence,
	}
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
		v.init(len(volumes))
	}
	var epoch [8]byte
	_, _ = rand.Read(epoch[:]) // never fails
	t.epoch = binary.BigEndian.Uint64(epoch[:])
	return t, nil
}

// Session is a checked hello: what Serve needs beside the transport. It has a place among those of its
// volume until Leave.
type Session struct {
	Welcome wire.Welcome
	Private []byte // of the accept: the welcome, and the proof of the volume's key if it has one
	hello   wire.Hello
	volume  *Volume
}

// Volume returns the name of the session's volume.
func (s *Session) Volume() string { return s.volume.Name }

// Leave gives back the place of a session, of which nothing is left: neither a queue that is served nor
// what its transport was made of, which may take its time to be given back.
func (t *Target) Leave(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places[s.volume.Name]--
}

func (s *Session) key() queueKey {
	return queueKey{s.volume.Name, s.hello.Session, s.hello.QueueIndex}
}

// Admit checks the private data of a connect request and fences an old connection of
// the same session and queue: when it returns, no operation of that one runs. Leave
// gives the session's place back. The error is a *wire.Reject, or a *wire.Challenge.
func (t *Target) Admit(private []byte, peer netip.Addr) (*Session, error) {
	s, err := t.admit(private, peer)
	if errors.As(err, new(*wire.Reject)) {
		t.Rejected.Add(1)
	}
	return s, err
}

func (t *Target) admit(private []byte, peer netip.Addr) (*Session, error) {
	if !t.allow.Allows(peer) {
		return nil, &wire.Reject{Reason: wire.RejectNotAllowed, Detail: "the client's address is not allowed"}
	}
	hello, err := wire.DecodeHello(private)
	if err != nil {
		return nil, err
	}
	var transcript wire.Transcript
	volume := hello.Volume
	if hello.Flags == wire.HelloProof {
		transcript, err = t.checkAnswer(peer, hello)
		volume = transcript.Volume
	} else {
		err = t.checkVolume(peer, hello)
	}
	if err != nil {
		return nil, err
	}
	if hello.QueueCount > MaxQueues {
		return nil, &wire.Reject{Reason: wire.RejectQueues, Value: MaxQueues, Detail: fmt.Sprintf("%d queues", hello.QueueCount)}
	}
	s := t.session(hello, t.volumes[volume])
	s.Private = s.Welcome.Append(nil)
	if key := s.volume.Key; key != nil {
		proof := transcript.TargetProof(key, s.Welcome)
		s.Private = append(s.Private, proof[:]...)
	}
	if err := t.fence(s.key()); err != nil {
		return nil, err
	}
	return s, nil
}

func (t *Target) session(hello wire.Hello, volume *Volume) *Session {
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
	if volume.Store.Volatile() {
		s.Welcome.Flags |= wire.VolumeVolatile
	}
	return s
}

// checkVolume checks that a client without an answer to a challenge gets what it asks for.
func (t *Target) checkVolume(peer netip.Addr, hello wire.Hello) error {
	volume := t.volumes[hello.Volume]
	asks := hello.Flags == wire.HelloKey
	switch {
	case volume == nil:
		return &wire.Reject{Reason: wire.RejectVolume, Detail: fmt.Sprintf("no volume %q", hello.Volume)}
	case asks && volume.Key == nil:
		return &wire.Reject{Reason: wire.RejectNoKey, Detail: fmt.Sprintf("the client has a key, volume %s has none", volume.Name)}
	case asks:
		return t.challenges.give(peer, hello)
	case volume.Key != nil:
		return &wire.Reject{Reason: wire.RejectNeedsKey, Detail: fmt.Sprintf("volume %s has a key, the client none", volume.Name)}
	}
	return nil
}

// checkAnswer checks what a client answers to a challenge.
func (t *Target) checkAnswer(peer netip.Addr, hello wire.Hello) (wire.Transcript, error) {
	transcript, found := t.challenges.take(peer, hello)
	if !found {
		return transcript, &wire.Reject{Reason: wire.RejectStale, Detail: "an answer to no challenge that waits"}
	}
	if !transcript.ClientProof(t.volumes[transcript.Volume].Key).Equal(hello.Answer.Proof) {
		return transcript, &wire.Reject{Reason: wire.RejectKey, Detail: fmt.Sprintf("the key is not that of volume %s", transcript.Volume)}
	}
	return transcript, nil
}

// fence waits until no operation runs of an old connection of that key, nor of one of any session of the
// volume that has ended: a client that was stopped and starts anew has another session, and what the store
// still does for the old one must not come behind it.
func (t *Target) fence(key queueKey) error {
	before, err := t.reserve(key)
	if err != nil {
		return err
	}
	for _, q := range before {
		q.log.Info().Msg("fencing this connection before a new one")
		q.transport.Close()
		<-q.done
	}
	return nil
}

// reserve takes a place for a session, and returns what is to be waited for.
func (t *Target) reserve(key queueKey) (before []*queue, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &wire.Reject{Reason: wire.RejectResources, Detail: "the target is being closed"}
	}
	old, taken := t.queues[key], t.places[key.volume]
	for k, q := range t.queues {
		if k.volume == key.volume && (q == old || q.ended.Load() || q.transport.Ended()) {
			before = append(before, q)
		}
	}
	// One that takes an old one's place needs no other, but not any number may wait for that.
	if taken >= 2*MaxConnections || old == nil && taken >= MaxConnections {
		return nil, &wire.Reject{Reason: wire.RejectBusy, Value: MaxConnections, Detail: "too many connections of volume " + key.volume}
	}
	t.places[key.volume]++
	return before, nil
}

// Serve answers commands until the connection ends; then no operation of it runs any
// more. It owns the transport.
func (t *Target) Serve(ctx context.Context, s *Session, conn transport.Transport) {
	defer conn.Close()
	stop := context.AfterFunc(ctx, conn.Close)
	defer stop()

	log := t.log.With().Str("peer", conn.Peer()).Str("volume", s.volume.Name).
		Uint16("queue", s.hello.QueueIndex).Hex("session", s.hello.Session[:4]).Logger().Sample(s.volume.busy)
	q := newQueue(log, s, conn, t.silence)
	key := s.key()
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
// and the client of the first is gone or lies. Nor is one served that has ended: whoever was admitted since
// does not wait for it.
func (t *Target) add(key queueKey, q *queue) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.queues[key] != nil || q.transport.Ended() {
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
