// SPDX-License-Identifier: Apache-2.0

package target

import (
	"sync/atomic"

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
