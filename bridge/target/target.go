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
	MaxDepth           = 128
	MaxQueues          = 64
	MaxConnections     = 256 // per volume
	MaxPeerConnections = 128 // of one address per volume
	MaxData            = 1 << 20
	MaxInline          = 16 << 10
	MaxMessage         = 7 * (wire.CommandSize + 4096) // seven writes of 4 KiB, just below 32 KiB
)

const _ = uint(MaxMessage - wire.CommandSize - MaxInline) // a message holds the largest inline data

// maxInlineV1 is what clients of version 1 get: they take no other limit after a reconnect.
const maxInlineV1 = 4096

// Target serves volumes. Each Target has a new epoch.
type Target struct {
	Rejected atomic.Uint64 // clients

	log        zerolog.Logger
	allow      access.List
	volumes    map[wire.VolumeID]*Volume
	challenges *challenges
	epoch      uint64

	mu     sync.Mutex // protects all below, and the volumes' writers
	conns  map[connKey]*conn
	places map[string]int  // by volume: sessions between Admit and Leave
	peers  map[peerKey]int // the same by address
	closed bool
}

// New returns a target that serves the volumes to clients with the allowed addresses.
func New(log zerolog.Logger, allow access.List, volumes ...*Volume) (*Target, error) {
	t := &Target{
		log: log, allow: allow, volumes: map[wire.VolumeID]*Volume{}, challenges: newChallenges(),
		conns: map[connKey]*conn{}, places: map[string]int{}, peers: map[peerKey]int{},
	}
	for _, v := range volumes {
		if err := wire.CheckVolumeName(v.Name); err != nil {
			return nil, fmt.Errorf("volume name %q: %w", v.Name, err)
		}
		id := wire.VolumeIDOf(v.Name)
		switch {
		case t.volumes[id] != nil:
			return nil, fmt.Errorf("volume name %s is used twice", v.Name)
		case v.BlockSize != 512 && v.BlockSize != 4096:
			return nil, fmt.Errorf("volume %s: block size %d: must be 512 or 4096", v.Name, v.BlockSize)
		case v.Store.Size() <= 0 || v.Store.Size()%int64(v.BlockSize) != 0:
			return nil, fmt.Errorf("volume %s: size %d: must be a multiple of the block size, %d", v.Name, v.Store.Size(), v.BlockSize)
		}
		t.volumes[id] = v
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
	peer    netip.Addr
	writes  bool   // else writes are refused
	number  uint32 // of the writer; 0 if the volume has none, or the session does not write
	conn    *conn  // once it is accepted; protected by Target.mu
	served  bool   // a command has arrived; protected by Target.mu
}

// Volume returns the name of the session's volume.
func (s *Session) Volume() string { return s.volume.Name }

// Messages returns how many messages of the client may be unanswered at a time.
func (s *Session) Messages() int {
	n := s.Welcome.Depth
	if s.hello.Flags&wire.HelloFew != 0 {
		n = min(n, wire.FewMessages)
	}
	return int(n) + 1 // a KEEP_ALIVE
}

func (s *Session) key() connKey {
	return connKey{s.volume.Name, s.hello.Session, s.hello.QueueIndex}
}

func (s *Session) peerKey() peerKey { return peerKey{s.volume.Name, s.peer} }

// hasEnded reports whether the session's connection was accepted and has ended. Target.mu is locked.
func (s *Session) hasEnded() bool { return s.conn != nil && s.conn.hasEnded() }

// Admit checks the private data of a connect request, and makes the session the volume's writer
// unless it only reads. It closes the old connection of the same session and queue, and those of a
// writer before: when Admit returns, none of their operations is running. The caller calls Leave in
// the end. The error is a *wire.Reject, *wire.InUse or *wire.Challenge.
func (t *Target) Admit(private []byte, peer netip.Addr) (*Session, error) {
	s, err := t.admit(private, peer.Unmap().WithZone(""))
	switch version := wire.VersionOf(private); refused := err.(type) {
	case *wire.Reject:
		refused.Version = version
		t.Rejected.Add(1)
	case *wire.InUse:
		refused.Version = version
		t.Rejected.Add(1)
	case *wire.Challenge:
		refused.Version = version
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
	if hello.Flags&wire.HelloProof != 0 {
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
	s := t.newSession(hello, t.volumes[volume], peer)
	if err := t.enter(s); err != nil {
		return nil, err
	}
	s.Welcome.Writer = s.number
	s.Private = s.Welcome.Append(nil)
	if key := s.volume.Key; key != nil {
		proof := transcript.TargetProof(key, s.Welcome)
		s.Private = append(s.Private, proof[:]...)
	}
	return s, nil
}

func (t *Target) newSession(hello wire.Hello, volume *Volume, peer netip.Addr) *Session {
	s := &Session{hello: hello, volume: volume, peer: peer, Welcome: wire.Welcome{
		Version:    hello.Version,
		UUID:       volume.uuid,
		Caps:       volume.caps(),
		Depth:      min(hello.Depth, MaxDepth),
		Capacity:   volume.capacity(),
		Epoch:      t.epoch,
		BlockSize:  volume.BlockSize,
		MaxData:    MaxData,
		MaxInline:  MaxInline,
		MaxMessage: MaxMessage,
	}}
	if hello.Version == 1 {
		s.Welcome.MaxInline = maxInlineV1
	}
	s.writes = !volume.ReadOnly && hello.Flags&wire.HelloReadOnly == 0
	if !s.writes {
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
	hasKey := hello.Flags&wire.HelloKey != 0
	switch {
	case volume == nil:
		return &wire.Reject{Reason: wire.RejectVolume, Detail: fmt.Sprintf("no volume %q", hello.Volume.String())}
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
	volume := t.volumes[transcript.Volume]
	if !transcript.ClientProof(volume.Key).Equal(hello.Answer.Proof) {
		return transcript, &wire.Reject{Reason: wire.RejectKey, Detail: fmt.Sprintf("wrong key for volume %s", volume.Name)}
	}
	return transcript, nil
}

// Serve executes and answers commands until the connection ends; then none of its operations
// is running. It closes the transport.
func (t *Target) Serve(ctx context.Context, s *Session, tr transport.Transport) {
	defer tr.Close()
	stop := context.AfterFunc(ctx, tr.Close)
	defer stop()

	log := t.log.With().Str("peer", tr.Peer()).Str("volume", s.volume.Name).
		Uint16("queue", s.hello.QueueIndex).Hex("session", s.hello.Session[:4]).Logger().Sample(s.volume.sampler)
	c := newConn(log, s, tr, func() error { return t.begin(s) }, func() { t.bye(s) })
	if !t.add(c) {
		return
	}
	s.volume.Counters.Connections.Add(1)
	log.Info().Uint16("depth", s.Welcome.Depth).Uint32("writer", s.number).Msg("connected")
	err := c.run(func() { t.left(s) })
	t.remove(c)

	var violation *wire.Violation
	if errors.As(err, &violation) {
		s.volume.Counters.Violations.Add(1)
		log.Warn().Err(err).Msg("connection closed")
		return
	}
	log.Info().AnErr("reason", err).Msg("disconnected")
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
		c.operations.stop()
		c.transport.Close()
		<-c.operations.done
	}
	var errs []error
	for _, v := range t.volumes {
		v.threads.close()
		if !v.ReadOnly {
			errs = append(errs, v.Store.Flush())
		}
		errs = append(errs, v.Store.Close())
	}
	return errors.Join(errs...)
}
