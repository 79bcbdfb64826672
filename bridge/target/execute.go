// SPDX-License-Identifier: Apache-2.0

package target

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"hash"
	"hash/crc32"

	"golang.org/x/sys/unix"

	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/wire"
)

// errGone is what a command ends with that the client waits for no more.
var errGone = errors.New("the connection has ended")

// take waits for one of a volume's slots, which the caller gives back. It returns false if the connection ends
// before there is one.
func (q *queue) take(slots chan struct{}) bool {
	select {
	case slots <- struct{}{}:
		return true
	case <-q.gone:
		return false
	}
}

// call does something with the store, when not too much is under way there: what is not yet begun when the
// connection ends is left, so that nobody who comes after it has to wait for that.
func (q *queue) call(do func(s store.Store) error) error {
	if !q.take(q.volume.calls) {
		return errGone
	}
	defer func() { <-q.volume.calls }()
	if q.ended.Load() {
		return errGone
	}
	return do(q.volume.Store)
}

func (q *queue) flush() error { return q.call(store.Store.Flush) }

func (q *queue) readAt(p []byte, off uint64) error {
	return q.call(func(s store.Store) error {
		_, err := s.ReadAt(p, int64(off))
		return err
	})
}

// execute does what the command says and fills in the answer. An error means that the
// connection is broken; what goes wrong with the store is a status.
func (q *queue) execute(r wire.Request, answer *reply) error {
	size := q.volume.capacity()
	if r.Offset > size || uint64(r.Length) > size-r.Offset {
		answer.Status = wire.StatusRange
		return nil
	}
	switch r.Op {
	case wire.OpRead:
		return q.read(r, answer)
	case wire.OpWrite:
		return q.write(r, answer)
	case wire.OpFlush:
		answer.Status = q.status(q.flush())
		q.volume.Counters.Flushes.Add(1)
	case wire.OpDiscard, wire.OpWriteZeroes:
		answer.Status = q.clear(r)
	case wire.OpDigest:
		q.digest(r, answer)
	case wire.OpKeepAlive:
		q.alive(answer)
	default:
		answer.Status = wire.StatusUnsupported
	}
	return nil
}

func (q *queue) read(r wire.Request, answer *reply) error {
	var data []byte
	if r.Rkey == 0 {
		data = make([]byte, r.Length)
		answer.Flags, answer.data = wire.ResponseInline, data
	} else {
		buf, err := q.transport.Buffer(int(r.Length))
		if err != nil {
			return err
		}
		data, answer.moved = buf, buf
	}
	if answer.Status = q.status(q.readAt(data, r.Offset)); answer.Status != wire.StatusOK {
		return nil
	}
	answer.Length, answer.CRC = r.Length, wire.CRC32C(data)
	q.volume.Counters.Reads.Add(1)
	q.volume.Counters.BytesRead.Add(uint64(r.Length))
	return nil
}

func (q *queue) write(r wire.Request, answer *reply) error {
	if q.volume.ReadOnly {
		answer.Status = wire.StatusReadOnly
		return nil
	}
	data := r.Data
	if r.Rkey != 0 {
		buf, err := q.transport.Buffer(int(r.Length))
		if err != nil {
			return err
		}
		defer q.transport.Free(buf)
		if err := q.transport.Read(buf, transport.Remote{Addr: r.Addr, Rkey: r.Rkey}); err != nil {
			return err
		}
		data = buf
	}
	if crc := wire.CRC32C(data); crc != r.CRC {
		q.volume.Counters.CRCErrors.Add(1)
		q.log.Warn().Uint64("offset", r.Offset).Uint32("length", r.Length).Uint32("crc", crc).
			Uint32("want", r.CRC).Msg("write refused: its data does not match its CRC")
		answer.Status = wire.StatusCRC
		return nil
	}
	err := q.call(func(s store.Store) error {
		_, err := s.WriteAt(data, int64(r.Offset))
		return err
	})
	if err == nil && r.Flags&wire.FlagFUA != 0 && q.volume.Writeback {
		err = q.flush()
	}
	if answer.Status = q.status(err); answer.Status != wire.StatusOK {
		return nil
	}
	answer.Length = r.Length
	q.volume.Counters.Writes.Add(1)
	q.volume.Counters.BytesWritten.Add(uint64(r.Length))
	return nil
}

const clearStep = 64 << 20 // bytes discarded or zeroed at a time

// clear discards a range or makes it read as zeros.
func (q *queue) clear(r wire.Request) wire.Status {
	if q.volume.ReadOnly {
		return wire.StatusReadOnly
	}
	counter, do := &q.volume.Counters.Discards, store.Store.Discard
	if r.Op == wire.OpWriteZeroes {
		counter, do = &q.volume.Counters.Zeroes, store.Store.Zero
	}
	var err error
	for off, left := int64(r.Offset), int64(r.Length); left > 0 && err == nil; {
		n := min(left, clearStep)
		err = q.call(func(s store.Store) error { return do(s, off, n) })
		off, left = off+n, left-n
	}
	if err == nil && r.Flags&wire.FlagFUA != 0 && q.volume.Writeback {
		err = q.flush()
	}
	if err == nil {
		counter.Add(1)
	}
	return q.status(err)
}

// alive tells that this target lives, and what size the volume has now. If the store
// cannot say, it has the size it had.
func (q *queue) alive(answer *reply) {
	if err := q.volume.Store.Refresh(); err != nil {
		q.log.Warn().Err(err).Msg("the size of the store is unknown")
	}
	answer.data = binary.BigEndian.AppendUint64(nil, q.volume.capacity())
	answer.Flags, answer.Length = wire.ResponseInline, uint32(len(answer.data))
}

const digestStep = 256 << 10 // bytes read at a time

func (q *queue) digest(r wire.Request, answer *reply) {
	var sum hash.Hash = crc32.New(crc32.MakeTable(crc32.Castagnoli))
	if r.Flags&wire.FlagSHA256 != 0 {
		sum = sha256.New()
	}
	if !q.take(q.volume.digests) {
		return
	}
	defer func() { <-q.volume.digests }()
	buf := make([]byte, min(digestStep, r.Length))
	for done := uint32(0); done < r.Length; {
		part := buf[:min(uint32(len(buf)), r.Length-done)]
		if err := q.readAt(part, r.Offset+uint64(done)); err != nil {
			answer.Status = q.status(err)
			return
		}
		_, _ = sum.Write(part) // never fails
		done += uint32(len(part))
	}
	answer.data = sum.Sum(nil)
	answer.Flags, answer.Length = wire.ResponseInline, uint32(len(answer.data))
	q.volume.Counters.Digests.Add(1)
}

// status of a store's error, which goes into the log.
func (q *queue) status(err error) wire.Status {
	if err == nil {
		return wire.StatusOK
	}
	if errors.Is(err, errGone) { // nobody is told
		return wire.StatusIO
	}
	if errors.Is(err, store.ErrUnsupported) {
		return wire.StatusUnsupported
	}
	q.log.Error().Err(err).Msg("the store failed")
	if errors.Is(err, unix.ENOSPC) {
		return wire.StatusNoSpace
	}
	return wire.StatusIO
}
