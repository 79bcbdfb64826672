// SPDX-License-Identifier: Apache-2.0

package fault

import (
	"io"

	"krping/bridge/store"
)

// faultyStore is a store that is slow, short and forgetful.
type faultyStore struct {
	store.Store
	faults *Faults
	volume string
}

// Store returns s with the faults of a store.
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
		return failed(StoreRefresh)
	}
	return s.Store.Refresh()
}
