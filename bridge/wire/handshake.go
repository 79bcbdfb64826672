// SPDX-License-Identifier: Apache-2.0

// Package wire is krping's block protocol in bytes: kmod/uapi/krping.h defines it,
// kmod/PROTOCOL.md explains it. All integers are big-endian. Decoding trusts
// nothing: every field is checked before it is returned.
package wire

import (
	"encoding/binary"
	"fmt"
	"strings"
)

// Sizes in bytes and constants of kmod/uapi/krping.h.
const (
	Magic       = 0x4b525042
	Version     = 1
	HelloSize   = 56
	WelcomeSize = 40
	RejectSize  = 12
	volumeSize  = 28
	headSize    = HelloSize - volumeSize // of a hello, in front of the volume
)

// A SessionID names a session on every queue of it.
type SessionID [16]byte

// Flags of a Hello: at most one of them.
const (
	HelloKey   = 0x01 // the client has a key: it wants a challenge
	HelloProof = 0x02 // it answers one
)

// Hello is what a client asks for: the private data of its connect request.
type Hello struct {
	Flags      uint8
	QueueIndex uint16
	QueueCount uint16
	Depth      uint16 // commands that it wants in flight on this queue
	Session    SessionID
	Volume     string    // 1 to 27 characters of [A-Za-z0-9._-]; not with HelloProof
	Answer     KeyAnswer // with HelloProof
}

// Flags of a Welcome.
const (
	VolumeReadOnly  = 0x01
	VolumeWriteback = 0x02
	VolumeVolatile  = 0x04
)

// Welcome is what a target grants: the private data of its accept. Sizes are bytes.
type Welcome struct {
	Flags      uint8
	Depth      uint16
	Capacity   uint64
	Epoch      uint64
	BlockSize  uint32
	MaxData    uint32
	MaxInline  uint32
	MaxMessage uint32
}

// A Reason says why a target rejects a connection.
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
	RejectTest // from here on of a ping/pong server
	RejectTestSize
	RejectQPs
	RejectServerInv
	RejectTOS
	RejectDuplex
	RejectNotAllowed // of both
	RejectChallenge  // from here on of a target
	RejectKey
	RejectNeedsKey
	RejectNoKey
	RejectStale
)

// Reject is the private data of a target's reject. It is also the error that
// DecodeHello returns, so that what is wrong reaches the client as it is.
type Reject struct {
	Reason Reason
	Value  uint32 // the limit that was exceeded, where the reason has one
	Detail string // for the target's own log; not on the wire
}

func (r *Reject) Error() string {
	return fmt.Sprintf("rejected (reason %d, value %d): %s", r.Reason, r.Value, r.Detail)
}

func reject(reason Reason, value uint32, format string, args ...any) *Reject {
	return &Reject{Reason: reason, Value: value, Detail: fmt.Sprintf(format, args...)}
}

// Append adds the 56 bytes of the hello to b.
func (h Hello) Append(b []byte) []byte {
	b = h.appendHead(b)
	if h.Flags&HelloProof != 0 {
		return h.Answer.append(b)
	}
	return appendVolume(b, h.Volume)
}

func (h Hello) appendHead(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, Magic)
	b = append(b, Version, h.Flags)
	b = binary.BigEndian.AppendUint16(b, h.QueueIndex)
	b = binary.BigEndian.AppendUint16(b, h.QueueCount)
	b = binary.BigEndian.AppendUint16(b, h.Depth)
	return append(b, h.Session[:]...)
}

func appendVolume(b []byte, volume string) []byte {
	var name [volumeSize]byte
	copy(name[:volumeSize-1], volume)
	return append(b, name[:]...)
}

// DecodeHello reads private data, which a transport may have padded. The error is a
// *Reject.
func DecodeHello(b []byte) (Hello, error) {
	var h Hello
	if len(b) < HelloSize {
		return h, reject(RejectMagic, 0, "hello of %d bytes, not %d", len(b), HelloSize)
	}
	if magic := binary.BigEndian.Uint32(b); magic != Magic {
		return h, reject(RejectMagic, 0, "magic %#x, not %#x", magic, uint32(Magic))
	}
	if b[4] != Version {
		return h, reject(RejectVersion, Version, "version %d, not %d", b[4], Version)
	}
	h.Flags = b[5]
	h.QueueIndex = binary.BigEndian.Uint16(b[6:])
	h.QueueCount = binary.BigEndian.Uint16(b[8:])
	h.Depth = binary.BigEndian.Uint16(b[10:])
	copy(h.Session[:], b[12:])
	switch {
	case h.QueueCount == 0 || h.QueueIndex >= h.QueueCount:
		return h, reject(RejectInvalid, 0, "queue %d of %d", h.QueueIndex, h.QueueCount)
	case h.Depth == 0:
		return h, reject(RejectInvalid, 0, "depth 0")
	}
	switch h.Flags {
	case 0, HelloKey:
		return h, h.decodeVolume(b[headSize:HelloSize])
	case HelloProof:
		h.Answer = decodeAnswer(b[headSize:HelloSize])
		return h, nil
	}
	return h, reject(RejectInvalid, 0, "flags %#x", h.Flags)
}

func (h *Hello) decodeVolume(name []byte) error {
	h.Volume = strings.TrimRight(string(name), "\x00")
	if !ValidVolumeName(h.Volume) {
		return reject(RejectInvalid, 0, "volume name %q", h.Volume)
	}
	return nil
}

// ValidVolumeName says whether name is 1 to 27 characters of [A-Za-z0-9._-].
func ValidVolumeName(name string) bool {
	return len(name) > 0 && len(name) < volumeSize && strings.IndexFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') &&
			!strings.ContainsRune("._-", r)
	}) < 0
}

// Append adds the 40 bytes of the welcome to b.
func (w Welcome) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, Magic)
	b = append(b, Version, w.Flags)
	b = binary.BigEndian.AppendUint16(b, w.Depth)
	b = binary.BigEndian.AppendUint64(b, w.Capacity)
	b = binary.BigEndian.AppendUint64(b, w.Epoch)
	b = binary.BigEndian.AppendUint32(b, w.BlockSize)
	b = binary.BigEndian.AppendUint32(b, w.MaxData)
	b = binary.BigEndian.AppendUint32(b, w.MaxInline)
	return binary.BigEndian.AppendUint32(b, w.MaxMessage)
}

// DecodeWelcome reads the private data of an accept.
func DecodeWelcome(b []byte) (Welcome, error) {
	if len(b) < WelcomeSize {
		return Welcome{}, fmt.Errorf("welcome of %d bytes, not %d", len(b), WelcomeSize)
	}
	if magic := binary.BigEndian.Uint32(b); magic != Magic || b[4] != Version {
		return Welcome{}, fmt.Errorf("welcome with magic %#x and version %d", magic, b[4])
	}
	return Welcome{
		Flags:      b[5],
		Depth:      binary.BigEndian.Uint16(b[6:]),
		Capacity:   binary.BigEndian.Uint64(b[8:]),
		Epoch:      binary.BigEndian.Uint64(b[16:]),
		BlockSize:  binary.BigEndian.Uint32(b[24:]),
		MaxData:    binary.BigEndian.Uint32(b[28:]),
		MaxInline:  binary.BigEndian.Uint32(b[32:]),
		MaxMessage: binary.BigEndian.Uint32(b[36:]),
	}, nil
}

// Append adds the 12 bytes of the reject to b.
func (r *Reject) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, Magic)
	b = append(b, Version, 0)
	b = binary.BigEndian.AppendUint16(b, uint16(r.Reason))
	return binary.BigEndian.AppendUint32(b, r.Value)
}

// DecodeReject reads the private data of a reject.
func DecodeReject(b []byte) (*Reject, error) {
	if len(b) < RejectSize || binary.BigEndian.Uint32(b) != Magic {
		return nil, fmt.Errorf("reject of %d bytes is not krping's", len(b))
	}
	return &Reject{
		Reason: Reason(binary.BigEndian.Uint16(b[6:])),
		Value:  binary.BigEndian.Uint32(b[8:]),
	}, nil
}
