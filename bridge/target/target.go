// SPDX-License-Identifier: Apache-2.0

// Package target is the storage end of krping's block protocol (kmod/PROTOCOL.md section 2):
// it decodes commands, reads and writes the store, and answers. A transport carries the
// messages.
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

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// Limits of this target. The last three are in bytes.
const (
	MaxDepth       = 128
	MaxQueues      = 64
	MaxConnections = 256 // per volume
	MaxData        = 1 << 20
	MaxInline      = 4096
	MaxMessage     = 8 * (wire.CommandSize + MaxInline) // eight small writes
)

// Target serves volumes. Each Target has a new epoch.
type Target struct {
	Rejected atomic.Uint64 // clients

	log        zerolog.Logger
	allow      access.List
	volumes    map[string]*Volume
	challenges *challenges
	epoch      uint64

	mu     sync.Mutex // protects all below
	conns  map[connKey]*conn
	places map[string]int // by volume: sessions between Admit and Leave
	closed bool
}

// connKey identifies a connection. Sessions of different volumes never meet, even with the same UUID.
type connKey struct {
	volume  string
	session wire.SessionID
	index   uint16
}

// New returns a target that serves the volumes to clients with the allowed addresses.
func New(log zerolog.Logger, allow access.List, volumes ...*Volume) (*Target, error) {
	t := &Target{
		log: log, allow: allow, volumes: map[string]*Volume{}, challenges: newChallenges(),
		conns: map[connKey]*conn{}, places: map[string]int{},
	}
	for _, v := range volumes {
		switch {
		case !wire.ValidVolumeName(v.Name):
			return nil, fmt.Errorf("volume name %q: must be 1 to 27 letters, digits, '.', '_' or '-'", v.Name)
		case t.volumes[v.Name] != nil:
			return nil, fmt.Errorf("volume name %s is used twice", v.Name)
		case v.BlockSize != 512 && v.BlockSize != 4096:
			return nil, fmt.Errorf("volume %s: block size %d: must be 512 or 4096", v.Name, v.BlockSize)
		case v.Store.Size() <= 0 || v.Store.Size()%int64(v.BlockSize) != 0:
			return nil, fmt.Errorf("volume %s: size %d: must be a multiple of the block size, %d", v.Name, v.Store.Size(), v.BlockSize)
		}
		t.volumes[v.Name] = v
		v.init(len(volumes))
	}
	var epoch [8]byte
	_, _ = rand.Read(epoch[:]) // never fails
	t.epoch = binary.BigEndian.Uint64(epoch[:])
	return t, nil
}

// Session is an admitted client's connection, for Serve. It counts as one of its volume's
// connections until Leave.
type Session struct {
	Welcome wire.Welcome
	Private []byte // private data for the accept: the welcome and, if the volume has a key, the proof
	hello   wire.Hello
	volume  *Volume
}

// Volume returns the name of the session's volume.
func (s *Session) Volume() string { return s.volume.Name }

// Leave ends a session. The caller has released its transport, which may take some time.
func (t *Target) Leave(s *Session) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.places[s.volume.Name]--
}

func (s *Session) key() connKey {
	return connKey{s.volume.Name, s.hello.Session, s.hello.QueueIndex}
}

// Admit checks the private data of a connect request and fences the old connection of the
// same session and queue, if any: when Admit returns, none of its operations is running.
// The caller calls Leave in the end. The error is a *wire.Reject or a *wire.Challenge.
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
		transcript, err = t.checkProof(peer, hello)
		volume = transcript.Volume
	} else {
		err = t.checkVolume(peer, hello)
	}
	if err != nil {
		return nil, err
	}
	if hello.QueueCount > MaxQueues {
		return nil, &wire.Reject{Reason: wire.RejectQueues, Value: MaxQueues, Detail: fmt.Sprintf("%d queues, at most %d", hello.QueueCount, MaxQueues)}
	}
	s := t.newSession(hello, t.volumes[volume])
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

func (t *Target) newSession(hello wire.Hello, volume *Volume) *Session {
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

// checkVolume checks a hello without a proof. A client with a key gets a challenge.
func (t *Target) checkVolume(peer netip.Addr, hello wire.Hello) error {
	volume := t.volumes[hello.Volume]
	hasKey := hello.Flags == wire.HelloKey
	switch {
	case volume == nil:
		return &wire.Reject{Reason: wire.RejectVolume, Detail: fmt.Sprintf("no volume %q", hello.Volume)}
	case hasKey && volume.Key == nil:
		return &wire.Reject{Reason: wire.RejectNoKey, Detail: fmt.Sprintf("the client has a key, but volume %s has none", volume.Name)}
	case hasKey:
		return t.challenges.issue(peer, hello)
	case volume.Key != nil:
		return &wire.Reject{Reason: wire.RejectNeedsKey, Detail: fmt.Sprintf("volume %s has a key, but the client has none", volume.Name)}
	}
	return nil
}

// checkProof checks a client's answer to a challenge.
func (t *Target) checkProof(peer netip.Addr, hello wire.Hello) (wire.Transcript, error) {
	transcript, found := t.challenges.redeem(peer, hello)
	if !found {
		return transcript, &wire.Reject{Reason: wire.RejectStale, Detail: "the answered challenge is unknown or has expired"}
	}
	if !transcript.ClientProof(t.volumes[transcript.Volume].Key).Equal(hello.Answer.Proof) {
		return transcript, &wire.Reject{Reason: wire.RejectKey, Detail: fmt.Sprintf("wrong key for volume %s", transcript.Volume)}
	}
	return transcript, nil
}

// fence closes the old connection with that key, and waits for its operations and for those of
// every ended connection of the volume: a client that was restarted has a new session, and
// writes of its old one must not reach the store later.
func (t *Target) fence(key connKey) error {
	before, err := t.reserve(key)
	if err != nil {
		return err
	}
	for _, c := range before {
		c.log.Info().Msg("closing this connection before a new one is admitted")
		c.transport.Close()
		<-c.done
	}
	return nil
}

// reserve counts a new connection and returns the connections to wait for.
func (t *Target) reserve(key connKey) (before []*conn, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed {
		return nil, &wire.Reject{Reason: wire.RejectResources, Detail: "the target is shutting down"}
	}
	old, taken := t.conns[key], t.places[key.volume]
	for k, c := range t.conns {
		if k.volume == key.volume && (c == old || c.ended.Load() || c.transport.Ended()) {
			before = append(before, c)
		}
	}
	// A replacement needs no free place, but the number of those that wait is limited, too.
	if taken >= 2*MaxConnections || old == nil && taken >= MaxConnections {
		return nil, &wire.Reject{Reason: wire.RejectBusy, Value: MaxConnections, Detail: fmt.Sprintf("volume %s has %d connections already", key.volume, taken)}
	}
	t.places[key.volume]++
	return before, nil
}

// Serve executes and answers commands until the connection ends; then none of its operations
// is running. It closes the transport.
func (t *Target) Serve(ctx context.Context, s *Session, tr transport.Transport) {
	defer tr.Close()
	stop := context.AfterFunc(ctx, tr.Close)
	defer stop()

	log := t.log.With().Str("peer", tr.Peer()).Str("volume", s.volume.Name).
		Uint16("queue", s.hello.QueueIndex).Hex("session", s.hello.Session[:4]).Logger().Sample(s.volume.sampler)
	c := newConn(log, s, tr)
	key := s.key()
	if !t.add(key, c) {
		close(c.done)
		return
	}
	s.volume.Counters.Connections.Add(1)
	log.Info().Uint16("depth", s.Welcome.Depth).Msg("connected")
	err := c.run()
	t.remove(key, c) // before done: whoever waits for that adds a connection with this key
	close(c.done)

	var violation *wire.Violation
	if errors.As(err, &violation) {
		s.volume.Counters.Violations.Add(1)
		log.Warn().Err(err).Msg("connection closed")
		return
	}
	log.Info().AnErr("reason", err).Msg("disconnected")
}

// add refuses a connection whose key is in use: two were admitted at the same time, and a client
// has only one. It also refuses one that has ended, for which later clients did not wait.
func (t *Target) add(key connKey, c *conn) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed || t.conns[key] != nil || c.transport.Ended() {
		return false
	}
	t.conns[key] = c
	return true
}

func (t *Target) remove(key connKey, c *conn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns[key] == c {
		delete(t.conns, key)
	}
}

// Close closes all connections, waits for their operations, and flushes and closes the stores.
func (t *Target) Close() error {
	t.mu.Lock()
	t.closed = true
	conns := make([]*conn, 0, len(t.conns))
	for _, c := range t.conns {
		conns = append(conns, c)
	}
	t.mu.Unlock()
	for _, c := range conns {
		c.transport.Close()
		<-c.done
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
