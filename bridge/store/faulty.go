// SPDX-License-Identifier: Apache-2.0

package store

import "sync/atomic"

// Faulty is a store for tests. It passes calls on to Store until a fault is set, then fails them.
type Faulty struct {
	Store
	ReadFault, WriteFault, ClearFault, FlushFault, SaveFault atomic.Pointer[error]
}

// ReadAt fails with ReadFault.
func (f *Faulty) ReadAt(p []byte, off int64) (int, error) {
	if err := f.ReadFault.Load(); err != nil {
		return 0, *err
	}
	return f.Store.ReadAt(p, off)
}

// WriteAt fails with WriteFault.
func (f *Faulty) WriteAt(p []byte, off int64) (int, error) {
	if err := f.WriteFault.Load(); err != nil {
		return 0, *err
	}
	return f.Store.WriteAt(p, off)
}

// Discard fails with ClearFault.
func (f *Faulty) Discard(off, n int64) error {
	if err := f.ClearFault.Load(); err != nil {
		return *err
	}
	return f.Store.Discard(off, n)
}

// Zero fails with ClearFault.
func (f *Faulty) Zero(off, n int64, keep bool) error {
	if err := f.ClearFault.Load(); err != nil {
		return *err
	}
	return f.Store.Zero(off, n, keep)
}

// Flush fails with FlushFault.
func (f *Faulty) Flush() error {
	if err := f.FlushFault.Load(); err != nil {
		return *err
	}
	return f.Store.Flush()
}

// SaveWriter fails with SaveFault.
func (f *Faulty) SaveWriter(session [16]byte) error {
	if err := f.SaveFault.Load(); err != nil {
		return *err
	}
	return f.Store.SaveWriter(session)
}
