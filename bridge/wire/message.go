// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"encoding/binary"
	"fmt"
	"hash/crc32"
)

// Sizes in bytes and limits of kmod/uapi/krping.h.
const (
	CommandSize  = 32
	ResponseSize = 16
	DigestMax    = 16 << 20 // longest range of one DIGEST
	RangeMax     = 2 << 30  // longest range of one DISCARD or WRITE_ZEROES
	TagKeepAlive = 0xffff   // tag of KEEP_ALIVE, and of nothing else
	align        = 8        // inline data is padded to a multiple of it
)

// An Op is the operation of a command.
type Op uint8

// Operations of enum krping_op.
const (
	OpRead Op = iota + 1
	OpWrite
	OpFlush
	OpDiscard
	OpWriteZeroes
	OpDigest
	OpKeepAlive
)

func (op Op) String() string {
	switch op {
	case OpRead:
		return "READ"
	case OpWrite:
		return "WRITE"
	case OpFlush:
		return "FLUSH"
	case OpDiscard:
		return "DISCARD"
	case OpWriteZeroes:
		return "WRITE_ZEROES"
	case OpDigest:
		return "DIGEST"
	case OpKeepAlive:
		return "KEEP_ALIVE"
	}
	return fmt.Sprintf("op %d", uint8(op))
}

// Flags of a Command.
const (
	FlagFUA    = 0x01
	FlagInline = 0x02
	FlagSHA256 = 0x04

	commandFlags = FlagFUA | FlagInline | FlagSHA256
)

// Command is one command. Length and Offset are bytes.
type Command struct {
	Op     Op
	Flags  uint8
	Tag    uint16
	Length uint32
	Offset uint64
	Addr   uint64 // with Rkey: the client's memory
	Rkey   uint32
	CRC    uint32 // CRC32C of the data of a WRITE
}

// A Status is the result of a command.
type Status uint8

// Statuses of enum krping_status.
const (
	StatusOK Status = iota
	StatusIO
	StatusCRC
	StatusRange
	StatusReadOnly
	StatusNoSpace
	StatusUnsupported
	StatusInvalid
)

// ResponseInline says that data follows the response.
const ResponseInline = 0x01

// Response answers the command with its tag.
type Response struct {
	Tag    uint16
	Status Status
	Flags  uint8
	Length uint32 // bytes
	CRC    uint32 // CRC32C of the data of a READ
}

// Request is a command with its inline data, which aliases the message.
type Request struct {
	Command
	Data []byte
}

// Limits are those of a connection, in bytes but for Depth.
type Limits struct {
	BlockSize  uint32
	MaxData    uint32
	MaxInline  uint32
	MaxMessage uint32
	Depth      uint16
}

// Violation is a breach of the protocol: it ends the connection.
type Violation struct {
	What  string
	Value uint64
	Limit uint64 // 0 if there is none to name
}

func (v *Violation) Error() string {
	if v.Limit != 0 {
		return fmt.Sprintf("protocol violation: %s %d, limit %d", v.What, v.Value, v.Limit)
	}
	return fmt.Sprintf("protocol violation: %s %d", v.What, v.Value)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C is the checksum of RFC 3720 (iSCSI), which the protocol uses everywhere.
func CRC32C(data []byte) uint32 { return crc32.Checksum(data, castagnoli) }

// Padded returns n rounded up to the alignment of inline data.
func Padded(n int) int { return (n + align - 1) &^ (align - 1) }

// Append adds the command and its inline data, if any, to a message.
func (r Request) Append(b []byte) []byte {
	b = append(b, byte(r.Op), r.Flags)
	b = binary.BigEndian.AppendUint16(b, r.Tag)
	b = binary.BigEndian.AppendUint32(b, r.Length)
	b = binary.BigEndian.AppendUint64(b, r.Offset)
	b = binary.BigEndian.AppendUint64(b, r.Addr)
	b = binary.BigEndian.AppendUint32(b, r.Rkey)
	b = binary.BigEndian.AppendUint32(b, r.CRC)
	return appendPadded(b, r.Data)
}

func appendPadded(b, data []byte) []byte {
	b = append(b, data...)
	return append(b, make([]byte, Padded(len(data))-len(data))...)
}

// DecodeRequests reads a message of commands. The error is a *Violation. A range
// outside the volume is none: that is the target's to answer.
func DecodeRequests(msg []byte, limits Limits) ([]Request, error) {
	if len(msg) == 0 {
		return nil, &Violation{What: "empty message"}
	}
	var requests []Request
	for len(msg) > 0 {
		if len(msg) < CommandSize {
			return nil, &Violation{What: "message ends in a command after bytes:", Value: uint64(len(msg))}
		}
		c := Command{
			Op:     Op(msg[0]),
			Flags:  msg[1],
			Tag:    binary.BigEndian.Uint16(msg[2:]),
			Length: binary.BigEndian.Uint32(msg[4:]),
			Offset: binary.BigEndian.Uint64(msg[8:]),
			Addr:   binary.BigEndian.Uint64(msg[16:]),
			Rkey:   binary.BigEndian.Uint32(msg[24:]),
			CRC:    binary.BigEndian.Uint32(msg[28:]),
		}
		msg = msg[CommandSize:]
		if err := c.check(limits); err != nil {
			return nil, err
		}
		r := Request{Command: c}
		if c.Op == OpWrite && c.Flags&FlagInline != 0 {
			padded := Padded(int(c.Length))
			if padded > len(msg) {
				return nil, &Violation{What: "inline data ends behind the message: bytes", Value: uint64(padded), Limit: uint64(len(msg))}
			}
			r.Data, msg = msg[:c.Length], msg[padded:]
		}
		requests = append(requests, r)
		if len(requests) > int(limits.Depth) {
			return nil, &Violation{What: "commands in one message", Value: uint64(len(requests)), Limit: uint64(limits.Depth)}
		}
	}
	return requests, nil
}

func (c Command) check(limits Limits) error {
	inline := c.Flags&FlagInline != 0
	hasKey := c.Rkey != 0
	switch {
	case c.Flags&^commandFlags != 0:
		return &Violation{What: "unknown command flags", Value: uint64(c.Flags)}
	case c.Flags&FlagFUA != 0 && c.Op != OpWrite && c.Op != OpWriteZeroes:
		return &Violation{What: "FUA on an op that does not write:", Value: uint64(c.Op)}
	case (c.Op == OpKeepAlive) != (c.Tag == TagKeepAlive):
		return &Violation{What: "tag of another op than KEEP_ALIVE, or the reverse:", Value: uint64(c.Tag)}
	case c.Flags&FlagSHA256 != 0 && c.Op != OpDigest:
		return &Violation{What: "SHA256 on an op that is not DIGEST:", Value: uint64(c.Op)}
	case c.CRC != 0 && c.Op != OpWrite:
		return &Violation{What: "CRC on an op that carries no data:", Value: uint64(c.Op)}
	case !hasKey && c.Addr != 0:
		return &Violation{What: "address without a key:", Value: c.Addr}
	}
	limit := limits.MaxData
	switch c.Op {
	case OpRead, OpWrite:
		if inline == hasKey {
			return &Violation{What: "data must be either inline or behind an rkey:", Value: uint64(c.Rkey)}
		}
		if inline {
			limit = limits.MaxInline
		}
	case OpDigest:
		limit = DigestMax
		if !inline || hasKey {
			return &Violation{What: "DIGEST is answered inline: rkey", Value: uint64(c.Rkey)}
		}
	case OpFlush:
		if c.Length != 0 || c.Offset != 0 || inline || hasKey {
			return &Violation{What: "FLUSH with data: bytes", Value: uint64(c.Length)}
		}
		return nil
	case OpKeepAlive:
		if c.Length != 0 || c.Offset != 0 || !inline || hasKey {
			return &Violation{What: "KEEP_ALIVE with data: bytes", Value: uint64(c.Length)}
		}
		return nil
	case OpDiscard, OpWriteZeroes:
		limit = RangeMax
		if inline || hasKey {
			return &Violation{What: "op without data has some:", Value: uint64(c.Op)}
		}
	default:
		return &Violation{What: "unknown op", Value: uint64(c.Op)}
	}
	switch {
	case c.Length == 0 || c.Length%limits.BlockSize != 0:
		return &Violation{What: "length that is no multiple of the block size:", Value: uint64(c.Length), Limit: uint64(limits.BlockSize)}
	case c.Offset%uint64(limits.BlockSize) != 0:
		return &Violation{What: "offset that is no multiple of the block size:", Value: c.Offset, Limit: uint64(limits.BlockSize)}
	case c.Length > limit:
		return &Violation{What: "length", Value: uint64(c.Length), Limit: uint64(limit)}
	}
	return nil
}

// Append adds the response and its inline data, if any, to a message.
func (r Response) Append(b, data []byte) []byte {
	b = binary.BigEndian.AppendUint16(b, r.Tag)
	b = append(b, byte(r.Status), r.Flags)
	b = binary.BigEndian.AppendUint32(b, r.Length)
	b = binary.BigEndian.AppendUint32(b, r.CRC)
	b = binary.BigEndian.AppendUint32(b, 0)
	return appendPadded(b, data)
}

// Answer is a response with its inline data, which aliases the message.
type Answer struct {
	Response
	Data []byte
}

// DecodeAnswers reads a message of responses: the client's side, for tests.
func DecodeAnswers(msg []byte) ([]Answer, error) {
	var answers []Answer
	for len(msg) > 0 {
		if len(msg) < ResponseSize {
			return nil, &Violation{What: "message ends in a response after bytes:", Value: uint64(len(msg))}
		}
		a := Answer{Response: Response{
			Tag:    binary.BigEndian.Uint16(msg),
			Status: Status(msg[2]),
			Flags:  msg[3],
			Length: binary.BigEndian.Uint32(msg[4:]),
			CRC:    binary.BigEndian.Uint32(msg[8:]),
		}}
		msg = msg[ResponseSize:]
		if a.Flags&ResponseInline != 0 {
			if uint64(a.Length) > uint64(len(msg)) || Padded(int(a.Length)) > len(msg) {
				return nil, &Violation{What: "inline data ends behind the message: bytes", Value: uint64(a.Length), Limit: uint64(len(msg))}
			}
			a.Data, msg = msg[:a.Length], msg[Padded(int(a.Length)):]
		}
		answers = append(answers, a)
	}
	return answers, nil
}
