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
	Magic       = 0x4b525042
	Version     = 1
	HelloSize   = 56
	WelcomeSize = 40
	RejectSize  = 12
	volumeSize  = 28
	headSize    = HelloSize - volumeSize // the part of a hello before the volume
)

// SessionID identifies a session; each of its queues sends it.
type SessionID [16]byte

// Flags of a Hello, of which at most one is set.
const (
	HelloKey   = 0x01 // the client has a key and asks for a challenge
	HelloProof = 0x02 // the client answers a challenge
)

// Hello is the private data of a client's connect request.
type Hello struct {
	Flags      uint8
	QueueIndex uint16
	QueueCount uint16
	Depth      uint16 // commands the client wants in flight on this queue
	Session    SessionID
	Volume     string    // 1 to 27 characters of [A-Za-z0-9._-]; empty with HelloProof
	Answer     KeyAnswer // with HelloProof only
}

// Flags of a Welcome.
const (
	VolumeReadOnly  = 0x01
	VolumeWriteback = 0x02
	VolumeVolatile  = 0x04
)

// Welcome is what a target grants: the private data of its accept. Sizes are in bytes.
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
)

// Reject is the private data of a server's reject, and the error that refuses a client.
type Reject struct {
	Reason Reason
	Value  uint32 // the limit, for reasons that have one
	Detail string // for the server's log; not sent
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
	if b[4] != Version {
		return h, reject(RejectVersion, Version, "version %d, want %d", b[4], Version)
	}
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
	}
	switch h.Flags {
	case 0, HelloKey:
		return h, h.decodeVolume(b[headSize:HelloSize])
	case HelloProof:
		h.Answer = decodeAnswer(b[headSize:HelloSize])
		return h, nil
	}
	return h, reject(RejectInvalid, 0, "unknown flags %#x", h.Flags)
}

func (h *Hello) decodeVolume(name []byte) error {
	h.Volume = strings.TrimRight(string(name), "\x00")
	if !ValidVolumeName(h.Volume) {
		return reject(RejectInvalid, 0, "invalid volume name %q", h.Volume)
	}
	return nil
}

// ValidVolumeName reports whether name is 1 to 27 characters of [A-Za-z0-9._-].
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

// DecodeWelcome decodes the private data of an accept.
func DecodeWelcome(b []byte) (Welcome, error) {
	if len(b) < WelcomeSize {
		return Welcome{}, fmt.Errorf("welcome of %d bytes, want %d", len(b), WelcomeSize)
	}
	if magic := binary.BigEndian.Uint32(b); magic != Magic || b[4] != Version {
		return Welcome{}, fmt.Errorf("welcome with magic %#x and version %d, want %#x and %d", magic, b[4], uint32(Magic), Version)
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

// DecodeReject decodes the private data of a reject.
func DecodeReject(b []byte) (*Reject, error) {
	if len(b) < RejectSize || binary.BigEndian.Uint32(b) != Magic {
		return nil, fmt.Errorf("the reject's %d bytes are not krping's", len(b))
	}
	return &Reject{
		Reason: Reason(binary.BigEndian.Uint16(b[6:])),
		Value:  binary.BigEndian.Uint32(b[8:]),
	}, nil
}
