// SPDX-License-Identifier: Apache-2.0

//go:build lab

package faketarget

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"time"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// Conn is a connection of a client.
type Conn struct {
	*verbs.Conn
	Target *Target
	limits wire.Limits
}

// serve answers commands until the connection ends.
func (c *Conn) serve() {
	for {
		requests, release, err := c.Hold()
		if err != nil || release() != nil {
			return
		}
		for _, r := range requests {
			if !c.misbehave(r) {
				c.Answer(r)
			}
		}
	}
}

// Hold waits for a message and returns its commands. Its receive is posted again by release.
func (c *Conn) Hold() (commands []wire.Request, release func() error, err error) {
	message, err := c.Recv()
	if err != nil {
		return nil, nil, err
	}
	commands, err = wire.DecodeRequests(bytes.Clone(message.Data), c.limits)
	if err != nil {
		c.Target.t.Errorf("the client broke the protocol: %v", err)
	}
	return commands, message.Release, err
}

// Answer carries out a command and sends the answer, if the client is still connected.
func (c *Conn) Answer(r wire.Request) {
	if msg, err := c.Perform(r); err == nil {
		_ = c.Send(msg, r.Rkey)
	}
}

// Perform carries out a command and returns the message that answers it.
func (c *Conn) Perform(r wire.Request) ([]byte, error) {
	a := wire.Response{Tag: r.Tag}
	var data []byte
	var err error
	switch r.Op {
	case wire.OpRead:
		data = c.Target.Load(r)
		a.Length, a.CRC = r.Length, wire.CRC32C(data)
		if r.Rkey != 0 {
			return a.Append(nil, nil), c.Put(Remote(r), data)
		}
		a.Flags = wire.ResponseInline
	case wire.OpWrite:
		a.Length = r.Length
		err = c.store(r)
	case wire.OpFlush:
	case wire.OpDigest:
		data = digest(r, c.Target.Load(r))
		a.Flags, a.Length = wire.ResponseInline, uint32(len(data))
	case wire.OpKeepAlive:
		data = binary.BigEndian.AppendUint64(nil, Capacity)
		a.Flags, a.Length = wire.ResponseInline, uint32(len(data))
	default:
		a.Status = wire.StatusUnsupported
	}
	return a.Append(nil, data), err
}

func digest(r wire.Request, data []byte) []byte {
	if r.Flags&wire.FlagSHA256 != 0 {
		sum := sha256.Sum256(data)
		return sum[:]
	}
	return binary.BigEndian.AppendUint32(nil, wire.CRC32C(data))
}

func (c *Conn) store(r wire.Request) error {
	data := r.Data
	if r.Rkey != 0 {
		var err error
		if data, err = c.Get(Remote(r), int(r.Length)); err != nil {
			return err
		}
	}
	if wire.CRC32C(data) != r.CRC {
		c.Target.t.Errorf("the data of a write at %d does not match its CRC", r.Offset)
	}
	c.Target.mu.Lock()
	defer c.Target.mu.Unlock()
	copy(c.Target.memory[r.Offset:], data)
	return nil
}

// Remote is the client's memory that a command lends.
func Remote(r wire.Request) transport.Remote { return transport.Remote{Addr: r.Addr, Rkey: r.Rkey} }

// Put moves data into the client's memory.
func (c *Conn) Put(to transport.Remote, data []byte) error {
	buf, err := c.Buffer(len(data))
	if err != nil {
		return err
	}
	defer c.Free(buf)
	copy(buf, data)
	return c.Write(buf, to)
}

// PutDenied is Put where the client does not allow it. iWARP reports no error to the writer, but ends the connection.
func (c *Conn) PutDenied(to transport.Remote, data []byte) error {
	err := c.Put(to, data)
	if err != nil || !guest.IWARP(c.Target.t) {
		return err
	}
	select {
	case <-c.Done():
		return errors.New("the connection has ended")
	case <-time.After(20 * time.Second):
		return nil
	}
}

// Get moves n bytes out of the client's memory.
func (c *Conn) Get(from transport.Remote, n int) ([]byte, error) {
	buf, err := c.Buffer(n)
	if err != nil {
		return nil, err
	}
	defer c.Free(buf)
	if err := c.Read(buf, from); err != nil {
		return nil, err
	}
	return bytes.Clone(buf), nil
}
