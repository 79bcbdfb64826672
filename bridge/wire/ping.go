// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
)

// Sizes in bytes and constants of the ping/pong part of kmod/uapi/krping.h.
const (
	PingMessageSize = 16
	TestHelloSize   = 16
	testMagic       = 0x4b525054
	testVersion     = 1
)

// TestKind is what a ping/pong client runs.
type TestKind uint8

// Kinds of enum krping_test_kind.
const (
	TestPing TestKind = iota
	TestWriteLatency
	TestReadLatency
	TestBandwidth
	TestFastRegister
	TestVerbs // see VerbsHello
)

// TestHello is the private data that krping's own ping/pong clients send; rping and the
// original krping send none.
type TestHello struct {
	Test      TestKind
	ServerInv bool   // the server invalidates the keys with its SENDs
	Duplex    bool   // bandwidth test: the server writes, too
	Size      uint32 // bytes per operation
	QPs       uint16 // connections of this client
	Group     uint16 // the same on all connections of this client
}

const (
	testServerInv = 0x01
	testDuplex    = 0x02
)

// Append adds the 16 bytes of the hello to b.
func (h TestHello) Append(b []byte) []byte {
	var flags byte
	if h.ServerInv {
		flags |= testServerInv
	}
	if h.Duplex {
		flags |= testDuplex
	}
	b = binary.BigEndian.AppendUint32(b, testMagic)
	b = append(b, testVersion, byte(h.Test), flags, 0)
	b = binary.BigEndian.AppendUint32(b, h.Size)
	b = binary.BigEndian.AppendUint16(b, h.QPs)
	return binary.BigEndian.AppendUint16(b, h.Group)
}

// DecodeTestHello decodes the private data of a ping/pong client, which the transport may have
// padded; found is false for a client that sent no hello. The error is a *Reject.
func DecodeTestHello(b []byte) (h TestHello, found bool, err error) {
	if len(b) < TestHelloSize || binary.BigEndian.Uint32(b) != testMagic {
		return h, false, nil
	}
	if b[4] != testVersion {
		return h, true, reject(RejectVersion, testVersion, "version %d, want %d", b[4], testVersion)
	}
	if b[6]&^(testServerInv|testDuplex) != 0 || b[7] != 0 {
		return h, true, reject(RejectInvalid, 0, "unknown flags in %#x, or reserved field %d is not 0", b[6], b[7])
	}
	return TestHello{
		Test: TestKind(b[5]), ServerInv: b[6]&testServerInv != 0, Duplex: b[6]&testDuplex != 0,
		Size: binary.BigEndian.Uint32(b[8:]), QPs: binary.BigEndian.Uint16(b[12:]),
		Group: binary.BigEndian.Uint16(b[14:]),
	}, true, nil
}

// PingMessage is the only message of ping/pong: memory of the sender that the peer may access.
// A server sends zeros as its "go ahead".
type PingMessage struct {
	Addr   uint64
	Rkey   uint32
	Length uint32 // bytes
}

// Append adds the 16 bytes of the message to b.
func (m PingMessage) Append(b []byte) []byte {
	b = binary.BigEndian.AppendUint64(b, m.Addr)
	b = binary.BigEndian.AppendUint32(b, m.Rkey)
	return binary.BigEndian.AppendUint32(b, m.Length)
}

// DecodePingMessage decodes a message, which must have exactly PingMessageSize bytes.
func DecodePingMessage(b []byte) (PingMessage, error) {
	if len(b) != PingMessageSize {
		return PingMessage{}, fmt.Errorf("message of %d bytes, want %d", len(b), PingMessageSize)
	}
	return PingMessage{binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:]), binary.BigEndian.Uint32(b[12:])}, nil
}
