// SPDX-License-Identifier: Apache-2.0

//go:build lab

package fakeclient

import (
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// Read is an inline READ.
func Read(tag uint16, offset uint64, n uint32) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpRead, Flags: wire.FlagInline, Tag: tag, Length: n, Offset: offset}}
}

// Write is an inline WRITE.
func Write(tag uint16, offset uint64, data []byte) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Tag: tag, Length: uint32(len(data)), Offset: offset,
		CRC: wire.CRC32C(data)}, Data: data}
}

// Large is a READ or WRITE whose data is in the client's memory.
func Large(op wire.Op, offset uint64, data []byte, memory transport.Remote) wire.Request {
	r := wire.Request{Command: wire.Command{Op: op, Tag: 3, Length: uint32(len(data)), Offset: offset, Addr: memory.Addr, Rkey: memory.Rkey}}
	if op == wire.OpWrite {
		r.CRC = wire.CRC32C(data)
	}
	return r
}

// Command is a command with tag 0 at offset 0.
func Command(op wire.Op, flags uint8, length uint32) wire.Request {
	return wire.Request{Command: wire.Command{Op: op, Flags: flags, Length: length}}
}

// KeepAlive is a KEEP_ALIVE.
func KeepAlive() wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpKeepAlive, Flags: wire.FlagInline, Tag: wire.TagKeepAlive}}
}
