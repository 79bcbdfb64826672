// SPDX-License-Identifier: Apache-2.0

// Package wire encodes and decodes krping's protocol, which kmod/uapi/krping.h defines and
// kmod/PROTOCOL.md explains. All integers are big-endian. Decoders check every field before
// they return it.
package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Sizes in bytes and constants of kmod/uapi/krping.h.
const (
	Magic      = 0x4b525042
	Version    = 2 // of the protocol; version 1 is spoken as well
	HelloSize  = 56
	RejectSize = 12
	volumeSize = 28
	headSize   = HelloSize - volumeSize // the part of a hello before the volume

	FewMessages = 32 // of commands that are unanswered, of a client that sends HelloFew; a KEEP_ALIVE does not count
)

// speaks reports whether this package speaks a version of the protocol.
func speaks(version uint8) bool { return version == 1 || version == Version }

// orCurrent returns the version that a zero Version field stands for.
func orCurrent(version uint8) uint8 {
	if version == 0 {
		return Version
	}
	return version
}

// SessionID identifies a session; each of its queues sends it.
type SessionID [16]byte

// Flags of a Hello. Not both of the first two are set, nor both of the next two, nor HelloProof and
// HelloDigest. Version 1 has only the first two.
const (
	HelloKey      = 0x01 // the client has a key and asks for a challenge
	HelloProof    = 0x02 // the client answers a challenge
	HelloReadOnly = 0x04 // the client will not write
	HelloTakeOver = 0x08 // the client wants to be the writer in place of another one
	HelloDigest   = 0x10 // the volume's name is so long that the hello has only its digest
	HelloFew      = 0x20 // the client has at most FewMessages unanswered
)

// Hello is the private data of a client's connect request.
type Hello struct {
	Version    uint8 // of the protocol; Append takes 0 for Version
	Flags      uint8
	QueueIndex uint16
	QueueCount uint16
	Depth      uint16 // commands the client wants in flight on this queue
	Session    SessionID
	Volume     VolumeID  // zero with HelloProof
	Answer     KeyAnswer // with HelloProof only
}

// Reason says why a server rejects a connection.
type Reason uint16

// Reasons of enum krping_reject_reason.
const (
	RejectMagic Reason = iota + 1
	RejectVersion
	RejectInvalid
	RejectVolume
	RejectQueues
	RejectBusy
	RejectResources
	RejectTest // this and the next five: ping/pong servers only
	RejectTestSize
	RejectQPs
	RejectServerInv
	RejectTOS
	RejectDuplex
	RejectNotAllowed // ping/pong servers and targets
	RejectChallenge  // this and the next four: targets only
	RejectKey
	RejectNeedsKey
	RejectNoKey
	RejectStale
	RejectInUse  // see InUse
	RejectDevice // ping/pong servers only: see RejectNeed
)

// Reject is the private data of a server's reject, and the error that refuses a client.
type Reject struct {
	Version uint8 // of the protocol: the client's; Append takes 0 for Version
	Reason  Reason
	Value   uint32 // the limit, for reasons that have one
	Detail  string // for the server's log; not sent
}

func (r *Reject) Error() string {
	return fmt.Sprintf("rejected (reason %d, value %d): %s", r.Reason, r.Value, r.Detail)
}

func reject(reason Reason, value uint32, format string, args ...any) *Reject {
	return &Reject{Reason: reason, Value: value, Detail: fmt.Sprintf(format, args...)}
}

// VersionOf returns the version of the protocol in which to refuse a client: that of its hello, if this
// package speaks it.
func VersionOf(private []byte) uint8 {
	if len(private) >= HelloSize && binary.BigEndian.Uint32(private) == Magic && speaks(private[4]) {
		return private[4]
	}
	return Version
}

// Append adds the 56 bytes of the hello to b. It sets HelloDigest if the volume is a digest.
func (h Hello) Append(b []byte) []byte {
	b = h.appendHead(b)
	if h.Flags&HelloProof != 0 {
		return h.Answer.append(b)
	}
	return append(b, h.Volume.field[:]...)
}

func (h Hello) appendHead(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, Magic)
	flags := h.Flags
	if h.Volume.digest && flags&HelloProof == 0 {
		flags |= HelloDigest
	}
	b = append(b, orCurrent(h.Version), flags)
	b = binary.BigEndian.AppendUint16(b, h.QueueIndex)
	b = binary.BigEndian.AppendUint16(b, h.QueueCount)
	b = binary.BigEndian.AppendUint16(b, h.Depth)
	return append(b, h.Session[:]...)
}

// DecodeHello decodes private data, which the transport may have padded. The error is a
// *Reject.
func DecodeHello(b []byte) (Hello, error) {
	var h Hello
	if len(b) < HelloSize {
		return h, reject(RejectMagic, 0, "hello of %d bytes, want %d", len(b), HelloSize)
	}
	if magic := binary.BigEndian.Uint32(b); magic != Magic {
		return h, reject(RejectMagic, 0, "magic %#x, want %#x", magic, uint32(Magic))
	}
	if !speaks(b[4]) {
		return h, reject(RejectVersion, Version, "version %d, want %d or 1", b[4], Version)
	}
	h.Version = b[4]
	h.Flags = b[5]
	h.QueueIndex = binary.BigEndian.Uint16(b[6:])
	h.QueueCount = binary.BigEndian.Uint16(b[8:])
	h.Depth = binary.BigEndian.Uint16(b[10:])
	copy(h.Session[:], b[12:])
	switch {
	case h.QueueCount == 0 || h.QueueIndex >= h.QueueCount:
		return h, reject(RejectInvalid, 0, "queue index %d of %d queues", h.QueueIndex, h.QueueCount)
	case h.Depth == 0:
		return h, reject(RejectInvalid, 0, "depth 0, want at least 1")
	case h.Session == SessionID{}:
		return h, reject(RejectInvalid, 0, "a session of zeros, want a UUID")
	}
	if err := h.checkFlags(); err != nil {
		return h, err
	}
	if h.Flags&HelloProof != 0 {
		h.Answer = decodeAnswer(b[headSize:HelloSize])
		return h, nil
	}
	return h, h.decodeVolume(b[headSize:HelloSize])
}

func (h *Hello) checkFlags() error {
	known := uint8(HelloKey | HelloProof)
	if h.Version >= 2 {
		known |= HelloReadOnly | HelloTakeOver | HelloDigest | HelloFew
	}
	switch {
	case h.Flags&^known != 0:
		return reject(RejectInvalid, 0, "unknown flags %#x", h.Flags)
	case h.Flags&HelloKey != 0 && h.Flags&HelloProof != 0:
		return reject(RejectInvalid, 0, "a question for a challenge and an answer to one")
	case h.Flags&HelloReadOnly != 0 && h.Flags&HelloTakeOver != 0:
		return reject(RejectInvalid, 0, "a client that does not write, but takes over")
	case h.Flags&HelloProof != 0 && h.Flags&HelloDigest != 0:
		return reject(RejectInvalid, 0, "an answer to a challenge, and the digest of a name")
	}
	return nil
}

func (h *Hello) decodeVolume(field []byte) error {
	h.Volume = VolumeID{digest: h.Flags&HelloDigest != 0, field: [volumeSize]byte(field)}
	if h.Volume.digest {
		return nil
	}
	name := strings.TrimRight(string(field), "\x00")
	if !ValidVolumeName(name) || len(name) == volumeSize || h.Version == 1 && strings.Contains(name, "/") {
		return reject(RejectInvalid, 0, "invalid volume name %q", name)
	}
	return nil
}

// Append adds the 12 bytes of the reject to b.
func (r *Reject) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, Magic)
	b = append(b, orCurrent(r.Version), 0)
	b = binary.BigEndian.AppendUint16(b, uint16(r.Reason))
	return binary.BigEndian.AppendUint32(b, r.Value)
}

// DecodeReject decodes the private data of a reject.
func DecodeReject(b []byte) (*Reject, error) {
	if len(b) < RejectSize || binary.BigEndian.Uint32(b) != Magic {
		return nil, fmt.Errorf("the reject's %d bytes are not krping's", len(b))
	}
	return &Reject{
		Version: b[4],
		Reason:  Reason(binary.BigEndian.Uint16(b[6:])),
		Value:   binary.BigEndian.Uint32(b[8:]),
	}, nil
}
