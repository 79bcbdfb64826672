// SPDX-License-Identifier: Apache-2.0

package target

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/store"
	"krping/bridge/transport"
	"krping/bridge/uuid"
	"krping/bridge/wire"
)

// Volume is a store that clients connect to by name.
type Volume struct {
	Name      string
	Store     store.Store
	BlockSize uint32 // 512 or 4096
	ReadOnly  bool
	Shared    bool // several sessions may write
	Writeback bool
	Key       access.Key // that clients must have, nil for none

	Counters Counters

	sampler     zerolog.LevelSampler // limits log lines that clients can cause
	storeSlots  chan struct{}        // one entry per running call of the store
	digestSlots chan struct{}        // one entry per running DIGEST, which has a buffer
	threads     threads

	uuid   uuid.UUID // the store's
	writer writer    // protected by Target.mu

	sizing     sync.Mutex    // protects refreshing
	refreshing chan struct{} // closed when the call of Store.Refresh that runs has ended; nil: none runs

	saving sync.Mutex     // protects saved; locked before Target.mu
	saved  wire.SessionID // the last writer that is kept with the store
}

// Limits of concurrent calls. A call that sleeps in the kernel holds one of the at most 10,000
// threads of a Go process, so a stalled store must not take so many that other volumes stall, too.
const (
	storeCalls    = 128  // per volume
	allStoreCalls = 4096 // in all
	digests       = 4    // per volume
)

// Log lines per volume in each logPeriod.
const (
	logPeriod = 5 * time.Second
	logInfos  = 2 * MaxQueues // a session connects and disconnects with up to MaxQueues connections
	logOthers = 10            // warnings, and as many errors
)

// init prepares one of n volumes.
func (v *Volume) init(n int) {
	v.sampler.InfoSampler = &zerolog.BurstSampler{Burst: logInfos, Period: logPeriod}
	v.sampler.WarnSampler = &zerolog.BurstSampler{Burst: logOthers, Period: logPeriod}
	v.sampler.ErrorSampler = &zerolog.BurstSampler{Burst: logOthers, Period: logPeriod}
	v.storeSlots = make(chan struct{}, max(1, min(storeCalls, allStoreCalls/n)))
	v.digestSlots = make(chan struct{}, digests)
	id := v.Store.Identity()
	v.uuid, v.saved = id.UUID, id.Writer
	v.writer = writerBefore(id.Writer)
	if v.Shared { // a session of a time when the volume was not shared must not continue after this
		v.writer = writerBefore(nobody())
	}
}

// caps returns the capabilities of the volume for a welcome.
func (v *Volume) caps() uint32 {
	var caps uint32
	features := v.Store.Features()
	if features.Discard {
		caps |= wire.CapDiscard
	}
	if v.Shared {
		caps |= wire.CapShared
	}
	if features.Block != 0 && features.Block < v.BlockSize {
		caps |= wire.CapTornBlocks
	}
	return caps
}

// Counters count what happened to a volume since the start.
type Counters struct {
	transport.Counts
	Flushes, Digests              atomic.Uint64
	Discards, Zeroes              atomic.Uint64
	Errors, CRCErrors, Violations atomic.Uint64
	Connections                   atomic.Uint64
}

// capacity returns the size of the store in bytes, rounded down to whole blocks.
func (v *Volume) capacity() uint64 {
	size := uint64(v.Store.Size())
	return size - size%uint64(v.BlockSize)
}

// LogCounters logs the counters.
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

// refresh reads the size of the store again, without waiting: a store may hang. The channel is closed when it is done.
func (v *Volume) refresh(log zerolog.Logger) <-chan struct{} {
	v.sizing.Lock()
	defer v.sizing.Unlock()
	if v.refreshing != nil {
		return v.refreshing
	}
	done := make(chan struct{})
	v.refreshing = done
	go func() {
		defer close(done)
		if err := v.Store.Refresh(); err != nil {
			log.Warn().Err(err).Msg("cannot read the size of the store")
		}
		v.sizing.Lock()
		defer v.sizing.Unlock()
		v.refreshing = nil
	}()
	return done
}
