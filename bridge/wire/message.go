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
	TagKeepAlive = 0xffff   // tag of KEEP_ALIVE only
	align        = 8        // inline data is padded to a multiple of this
)

// Op is the operation of a command.
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

	// Of version 2 only.
	FlagNoUnmap = 0x08 // WRITE_ZEROES: the space stays allocated
	FlagBye     = 0x10 // KEEP_ALIVE: the session is being stopped, and gives up the volume
)

// CommandFlags returns the flags that a version of the protocol has.
func CommandFlags(version uint8) uint8 {
	if orCurrent(version) == 1 {
		return FlagFUA | FlagInline | FlagSHA256
	}
	return FlagFUA | FlagInline | FlagSHA256 | FlagNoUnmap | FlagBye
}

// Command is one command. Length and Offset are in bytes.
type Command struct {
	Op     Op
	Flags  uint8
	Tag    uint16
	Length uint32
	Offset uint64
	Addr   uint64 // of the client's memory, with Rkey only
	Rkey   uint32 // 0 for none
	CRC    uint32 // CRC32C of a WRITE's data
}

// Status is the result of a command.
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
	CRC    uint32 // CRC32C of a READ's data
}

// Request is a command with its inline data, a slice of the message.
type Request struct {
	Command
	Data []byte
}

// Limits are what was agreed on a connection. Sizes are in bytes.
type Limits struct {
	Version    uint8 // of the protocol; 0 for Version
	BlockSize  uint32
	MaxData    uint32
	MaxInline  uint32
	MaxMessage uint32
	Depth      uint16
}

// Violation is what a peer did against the protocol. It ends the connection.
type Violation struct {
	What  string
	Value uint64
	Limit uint64 // 0 for none
}

func (v *Violation) Error() string {
	if v.Limit != 0 {
		return fmt.Sprintf("protocol violation: %s (%d, limit %d)", v.What, v.Value, v.Limit)
	}
	return fmt.Sprintf("protocol violation: %s (%d)", v.What, v.Value)
}

var castagnoli = crc32.MakeTable(crc32.Castagnoli)

// CRC32C returns the checksum of RFC 3720 (iSCSI), which protects all data.
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

// DecodeRequests decodes a message of commands. The error is a *Violation. A range outside the
// volume is not an error here: the target answers it with StatusRange.
func DecodeRequests(msg []byte, limits Limits) ([]Request, error) {
	if len(msg) == 0 {
		return nil, &Violation{What: "empty message"}
	}
	var requests []Request
	for len(msg) > 0 {
		r, size, err := decodeRequest(msg, limits)
		if err != nil {
			return nil, err
		}
		requests, msg = append(requests, r), msg[size:]
		if len(requests) > int(limits.Depth) {
			return nil, &Violation{What: "too many commands in one message", Value: uint64(len(requests)), Limit: uint64(limits.Depth)}
		}
	}
	return requests, nil
}

// decodeRequest decodes the first command of a message and returns its size in bytes.
func decodeRequest(msg []byte, limits Limits) (r Request, size int, err error) {
	if len(msg) < CommandSize {
		return r, 0, &Violation{What: "message ends in a command", Value: uint64(len(msg))}
	}
	r.Command = Command{
		Op:     Op(msg[0]),
		Flags:  msg[1],
		Tag:    binary.BigEndian.Uint16(msg[2:]),
		Length: binary.BigEndian.Uint32(msg[4:]),
		Offset: binary.BigEndian.Uint64(msg[8:]),
		Addr:   binary.BigEndian.Uint64(msg[16:]),
		Rkey:   binary.BigEndian.Uint32(msg[24:]),
		CRC:    binary.BigEndian.Uint32(msg[28:]),
	}
	if err := r.check(limits); err != nil || r.Op != OpWrite || r.Rkey != 0 {
		return r, CommandSize, err
	}
	data, padded := msg[CommandSize:], Padded(int(r.Length))
	if padded > len(data) {
		return r, 0, &Violation{What: "inline data exceeds the message", Value: uint64(padded), Limit: uint64(len(data))}
	}
	r.Data = data[:r.Length]
	return r, CommandSize + padded, nil
}

// The checks below have the names and the order of kmod/wire/wire.c.

func (c Command) check(limits Limits) error {
	if c.Op == OpKeepAlive {
		return c.checkKeepAlive(limits)
	}
	if err := c.checkFlags(limits); err != nil {
		return err
	}
	limit, err := c.checkPlace(limits)
	if err != nil {
		return err
	}
	switch {
	case c.Op == OpFlush && (c.Length != 0 || c.Offset != 0):
		return &Violation{What: "FLUSH with a range", Value: uint64(c.Length)}
	case c.Op == OpFlush:
	case c.Length == 0 || c.Length%limits.BlockSize != 0:
		return &Violation{What: "length is not a multiple of the block size", Value: uint64(c.Length)}
	case c.Offset%uint64(limits.BlockSize) != 0:
		return &Violation{What: "offset is not a multiple of the block size", Value: c.Offset}
	case c.Length > limit:
		return &Violation{What: "length", Value: uint64(c.Length), Limit: uint64(limit)}
	}
	if c.Tag == TagKeepAlive {
		return &Violation{What: "KEEP_ALIVE's tag with op", Value: uint64(c.Op)}
	}
	return nil
}

func (c Command) checkKeepAlive(limits Limits) error {
	bye := c.Flags & FlagBye & CommandFlags(limits.Version)
	if (c != Command{Op: OpKeepAlive, Flags: FlagInline | bye, Tag: c.Tag}) {
		return &Violation{What: "KEEP_ALIVE with a nonzero field, or wrong flags", Value: uint64(c.Flags)}
	}
	if c.Tag != TagKeepAlive {
		return &Violation{What: "tag of a KEEP_ALIVE", Value: uint64(c.Tag)}
	}
	return nil
}

func (c Command) checkFlags(limits Limits) error {
	switch {
	case c.Flags&^CommandFlags(limits.Version) != 0:
		return &Violation{What: "unknown flags", Value: uint64(c.Flags)}
	case c.Flags&FlagFUA != 0 && c.Op != OpWrite && c.Op != OpWriteZeroes:
		return &Violation{What: "FUA with op", Value: uint64(c.Op)}
	case c.Flags&FlagSHA256 != 0 && c.Op != OpDigest:
		return &Violation{What: "SHA256 with op", Value: uint64(c.Op)}
	case c.Flags&FlagNoUnmap != 0 && c.Op != OpWriteZeroes:
		return &Violation{What: "NO_UNMAP with op", Value: uint64(c.Op)}
	case c.Flags&FlagBye != 0:
		return &Violation{What: "BYE with op", Value: uint64(c.Op)}
	case c.CRC != 0 && c.Op != OpWrite:
		return &Violation{What: "CRC with op", Value: uint64(c.Op)}
	}
	return nil
}

// checkPlace checks where the data is (in the client's memory, in the message, or nowhere) and
// returns the longest valid length.
func (c Command) checkPlace(limits Limits) (limit uint32, err error) {
	inline, hasKey := c.Flags&FlagInline != 0, c.Rkey != 0
	if c.Addr != 0 && !hasKey {
		return 0, &Violation{What: "address without a key", Value: c.Addr}
	}
	switch c.Op {
	case OpRead, OpWrite:
		if inline == hasKey {
			return 0, &Violation{What: "data must be either inline or behind a key", Value: uint64(c.Rkey)}
		}
		if inline {
			return limits.MaxInline, nil
		}
		return limits.MaxData, nil
	case OpDigest:
		if !inline || hasKey {
			return 0, &Violation{What: "DIGEST must be inline, without a key", Value: uint64(c.Rkey)}
		}
		return DigestMax, nil
	case OpFlush, OpDiscard, OpWriteZeroes:
		if inline || hasKey {
			return 0, &Violation{What: "data with op", Value: uint64(c.Op)}
		}
		return RangeMax, nil // a FLUSH has no range
	}
	return 0, &Violation{What: "unknown op", Value: uint64(c.Op)}
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

// Answer is a response with its inline data, a slice of the message.
type Answer struct {
	Response
	Data []byte
}

// DecodeAnswers decodes a message of responses. Only tests, which act as clients, need it.
func DecodeAnswers(msg []byte) ([]Answer, error) {
	var answers []Answer
	for len(msg) > 0 {
		if len(msg) < ResponseSize {
			return nil, &Violation{What: "message ends in a response", Value: uint64(len(msg))}
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
				return nil, &Violation{What: "inline data exceeds the message", Value: uint64(a.Length), Limit: uint64(len(msg))}
			}
			a.Data, msg = msg[:a.Length], msg[Padded(int(a.Length)):]
		}
		answers = append(answers, a)
	}
	return answers, nil
}
