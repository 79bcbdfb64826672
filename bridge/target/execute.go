// SPDX-License-Identifier: Apache-2.0

package target

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// errStopped ends a command whose connection has ended. The client is not told.
var errStopped = errors.New("the connection has ended")

// acquire waits for one of a volume's slots. It returns false if the connection ends first;
// otherwise the caller receives from slots in the end.
func (c *conn) acquire(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	default:
	}
	select {
	case slots <- struct{}{}:
		return true
	case <-c.operations.stopped:
		return false
	}
}

// onStore calls do with the store when one of the volume's slots is free. Calls not started
// when the connection ends are dropped, so that later connections do not wait for them.
func (c *conn) onStore(do func(s store.Store) error) error {
	if !c.acquire(c.volume.storeSlots) {
		return errStopped
	}
	defer func() { <-c.volume.storeSlots }()
	if !c.operations.begin() {
		return errStopped
	}
	defer c.operations.end()
	return do(c.volume.Store)
}

func (c *conn) flush() error { return c.onStore(store.Store.Flush) }

func (c *conn) readAt(p []byte, off uint64) error {
	return c.onStore(func(s store.Store) error {
		_, err := s.ReadAt(p, int64(off))
		return err
	})
}

// command executes a command and fills in the reply. An error means that the connection is
// broken; a failure of the store is a status.
func (c *conn) command(r wire.Request, answer *reply) error {
	size := c.volume.capacity()
	if r.Offset > size || uint64(r.Length) > size-r.Offset {
		answer.Status = wire.StatusRange
		return nil
	}
	switch r.Op {
	case wire.OpRead:
		return c.read(r, answer)
	case wire.OpWrite:
		return c.write(r, answer)
	case wire.OpFlush:
		answer.Status = c.status(c.flush())
		c.volume.Counters.Flushes.Add(1)
	case wire.OpDiscard, wire.OpWriteZeroes:
		answer.Status = c.clear(r)
	case wire.OpDigest:
		c.digest(r, answer)
	case wire.OpKeepAlive:
		c.keepAlive(r, answer)
	default:
		answer.Status = wire.StatusUnsupported
	}
	return nil
}

func (c *conn) read(r wire.Request, answer *reply) error {
	var data []byte
	if r.Rkey == 0 && r.Length <= smallRead {
		answer.pooled = inline.Get().(*[]byte)
		data = (*answer.pooled)[:r.Length]
	} else {
		var err error
		if data, err = c.transport.Buffer(int(r.Length)); err != nil {
			return err
		}
		answer.buffer = data
	}
	if r.Rkey == 0 {
		answer.Flags, answer.inline = wire.ResponseInline, data
	}
	if answer.Status = c.status(c.readAt(data, r.Offset)); answer.Status != wire.StatusOK {
		return nil
	}
	answer.Length, answer.CRC = r.Length, wire.CRC32C(data)
	c.volume.Counters.Reads.Add(1)
	c.volume.Counters.BytesRead.Add(uint64(r.Length))
	return nil
}

func (c *conn) write(r wire.Request, answer *reply) error {
	if !c.session.writes {
		answer.Status = wire.StatusReadOnly
		return nil
	}
	data := r.Data
	if r.Rkey != 0 {
		buf, err := c.transport.Buffer(int(r.Length))
		if err != nil {
			return err
		}
		defer c.transport.Free(buf)
		if err := c.transport.Read(buf, transport.Remote{Addr: r.Addr, Rkey: r.Rkey}); err != nil {
			return err
		}
		data = buf
	}
	if crc := wire.CRC32C(data); crc != r.CRC {
		c.volume.Counters.CRCErrors.Add(1)
		c.log.Warn().Uint64("offset", r.Offset).Uint32("length", r.Length).Uint32("crc", crc).
			Uint32("want", r.CRC).Msg("write refused: the data does not match its CRC")
		answer.Status = wire.StatusCRC
		return nil
	}
	err := c.onStore(func(s store.Store) error {
		_, err := s.WriteAt(data, int64(r.Offset))
		return err
	})
	if err == nil && r.Flags&wire.FlagFUA != 0 && c.volume.Writeback {
		err = c.flush()
	}
	if answer.Status = c.status(err); answer.Status != wire.StatusOK {
		return nil
	}
	answer.Length = r.Length
	c.volume.Counters.Writes.Add(1)
	c.volume.Counters.BytesWritten.Add(uint64(r.Length))
	return nil
}

const clearStep = 64 << 20 // bytes per call of the store

// clear executes DISCARD and WRITE_ZEROES.
func (c *conn) clear(r wire.Request) wire.Status {
	if !c.session.writes {
		return wire.StatusReadOnly
	}
	counter, do := &c.volume.Counters.Discards, store.Store.Discard
	if r.Op == wire.OpWriteZeroes {
		counter = &c.volume.Counters.Zeroes
		do = func(s store.Store, off, n int64) error { return s.Zero(off, n, r.Flags&wire.FlagNoUnmap != 0) }
	}
	var err error
	for off, left := int64(r.Offset), int64(r.Length); left > 0 && err == nil; {
		n := min(left, clearStep)
		err = c.onStore(func(s store.Store) error { return do(s, off, n) })
		off, left = off+n, left-n
	}
	if err == nil && r.Flags&wire.FlagFUA != 0 && c.volume.Writeback {
		err = c.flush()
	}
	if err == nil {
		counter.Add(1)
	}
	return c.status(err)
}

// refreshTime is how long the answer to a KEEP_ALIVE waits for the size of the store.
const refreshTime = time.Second

// keepAlive answers with the volume's current size, or the last known one if the store does not tell it in
// time. It does not wait for a slot of the store. With BYE, the client gives up the volume before it is
// answered.
func (c *conn) keepAlive(r wire.Request, answer *reply) {
	if r.Flags&wire.FlagBye != 0 {
		c.bye()
	}
	select {
	case <-c.volume.refresh(c.log):
	case <-time.After(refreshTime):
	}
	answer.inline = binary.BigEndian.AppendUint64(nil, c.volume.capacity())
	answer.Flags, answer.Length = wire.ResponseInline, uint32(len(answer.inline))
}

const digestStep = 256 << 10 // bytes per read

func (c *conn) digest(r wire.Request, answer *reply) {
	var sum hash.Hash = crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if r.Flags&wire.FlagSHA256 != 0 {
		sum = sha256.New()
	}
	if !c.acquire(c.volume.digestSlots) {
		return
	}
	defer func() { <-c.volume.digestSlots }()
	buf := make([]byte, min(digestStep, r.Length))
	for done := uint32(0); done < r.Length; {
		part := buf[:min(uint32(len(buf)), r.Length-done)]
		if err := c.readAt(part, r.Offset+uint64(done)); err != nil {
			answer.Status = c.status(err)
			return
		}
		_, _ = sum.Write(part) // never fails
		done += uint32(len(part))
	}
	answer.inline = sum.Sum(nil)
	answer.Flags, answer.Length = wire.ResponseInline, uint32(len(answer.inline))
	c.volume.Counters.Digests.Add(1)
}

// status returns the status of a store's error, and logs it.
func (c *conn) status(err error) wire.Status {
	if err == nil {
		return wire.StatusOK
	}
	if errors.Is(err, errStopped) { // not sent
		return wire.StatusIO
	}
	if errors.Is(err, store.ErrUnsupported) {
		return wire.StatusUnsupported
	}
	c.log.Error().Err(err).Msg("the store failed")
	if errors.Is(err, unix.ENOSPC) {
		return wire.StatusNoSpace
	}
	return wire.StatusIO
}
