// SPDX-License-Identifier: Apache-2.0

package target

import (
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/store"
)

// Volume is what clients connect to by name.
type Volume struct {
	Name      string
	Store     store.Store
	BlockSize uint32 // 512 or 4096
	ReadOnly  bool
	Writeback bool
	Key       access.Key // that clients have to prove, nil for none

	Counters Counters

	busy    zerolog.LevelSampler // of what a client can have said again and again
	calls   chan struct{}        // of the store, under way
	digests chan struct{}        // each has a buffer
}

// Of a volume at a time; of all together, so that other volumes go on while the store of one stalls: each
// call that sleeps in the kernel holds a thread of the process, which has no more than 10,000.
const (
	storeCalls    = 128
	allStoreCalls = 4096
	digests       = 4
)

// init prepares a volume, one of n.
func (v *Volume) init(n int) {
	v.calls = make(chan struct{}, max(1, min(storeCalls, allStoreCalls/n)))
	v.busy.InfoSampler = &zerolog.BurstSampler{Burst: 128, Period: 5 * time.Second} // a session may have 64 connections
	v.busy.WarnSampler = &zerolog.BurstSampler{Burst: 10, Period: 5 * time.Second}
	v.busy.ErrorSampler = &zerolog.BurstSampler{Burst: 10, Period: 5 * time.Second}
	v.digests = make(chan struct{}, digests)
}

// Counters of a volume, since the start.
type Counters struct {
	Reads, Writes, Flushes, Digests atomic.Uint64
	Discards, Zeroes                atomic.Uint64
	BytesRead, BytesWritten         atomic.Uint64
	Errors, CRCErrors, Violations   atomic.Uint64
	Connections                     atomic.Uint64
}

// capacity is the size of the store in bytes, without a rest that is no block.
func (v *Volume) capacity() uint64 {
	size := uint64(v.Store.Size())
	return size - size%uint64(v.BlockSize)
}

// LogCounters writes the counters into the log.
func (v *Volume) LogCounters(log zerolog.Logger) {
	c := &v.Counters
	log.Info().Str("volume", v.Name).
		Uint64("reads", c.Reads.Load()).Uint64("writes", c.Writes.Load()).
		Uint64("flushes", c.Flushes.Load()).Uint64("digests", c.Digests.Load()).
		Uint64("discards", c.Discards.Load()).Uint64("zeroes", c.Zeroes.Load()).
		Uint64("bytes_read", c.BytesRead.Load()).Uint64("bytes_written", c.BytesWritten.Load()).
		Uint64("errors", c.Errors.Load()).Uint64("crc_errors", c.CRCErrors.Load()).
		Uint64("violations", c.Violations.Load()).Uint64("connections", c.Connections.Load()).
		Msg("counters")
}
