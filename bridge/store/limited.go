// SPDX-License-Identifier: Apache-2.0

package store

// limited lets so many calls at a time through to a store. Each that sleeps in the kernel holds a thread of
// the process, which has no more than 10,000: a disk that stalls must not take those of other volumes.
type limited struct {
	Store
	slots chan struct{}
}

// Limit returns s with at most n calls at a time that read, write or flush; further ones wait.
func Limit(s Store, n int) Store { return &limited{s, make(chan struct{}, n)} }

func (l *limited) enter() (leave func()) {
	l.slots <- struct{}{}
	return func() { <-l.slots }
}

func (l *limited) ReadAt(p []byte, off int64) (int, error) {
	defer l.enter()()
	return l.Store.ReadAt(p, off)
}

func (l *limited) WriteAt(p []byte, off int64) (int, error) {
	defer l.enter()()
	return l.Store.WriteAt(p, off)
}

func (l *limited) Discard(off, n int64) error {
	defer l.enter()()
	return l.Store.Discard(off, n)
}

func (l *limited) Zero(off, n int64) error {
	defer l.enter()()
	return l.Store.Zero(off, n)
}

func (l *limited) Flush() error {
	defer l.enter()()
	return l.Store.Flush()
}
