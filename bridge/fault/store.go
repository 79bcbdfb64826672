// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"io"

	"krping/bridge/store"
)

// faultyStore injects the faults of a store.
type faultyStore struct {
	store.Store
	faults *Faults
	volume string
}

// Store returns s with faults injected.
func (f *Faults) Store(s store.Store, volume string) store.Store { return &faultyStore{s, f, volume} }

func (s *faultyStore) ReadAt(p []byte, off int64) (int, error) {
	s.faults.delay(StoreStall, s.volume)
	if s.faults.happens(StoreShort, s.volume) {
		n, _ := s.Store.ReadAt(p[:len(p)/2], off)
		return n, io.ErrUnexpectedEOF
	}
	return s.Store.ReadAt(p, off)
}

func (s *faultyStore) WriteAt(p []byte, off int64) (int, error) {
	s.faults.delay(StoreStall, s.volume)
	return s.Store.WriteAt(p, off)
}

func (s *faultyStore) Refresh() error {
	if s.faults.happens(StoreRefresh, s.volume) {
		return injected(StoreRefresh)
	}
	return s.Store.Refresh()
}
