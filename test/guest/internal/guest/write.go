// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"os"
	"testing"
	"time"
)

// Write is one that may take long: its target is away, or silent.
type Write struct {
	t     testing.TB
	ended chan error
}

// StartWrite begins to write data, which is Aligned, to the beginning of a device.
func StartWrite(t testing.TB, dev *os.File, data []byte) *Write {
	w := &Write{t, make(chan error, 1)}
	go func() {
		_, err := dev.WriteAt(data, 0)
		w.ended <- err
	}()
	return w
}

// Waits fails if the write ends within so long.
func (w *Write) Waits(d time.Duration) {
	w.t.Helper()
	select {
	case err := <-w.ended:
		w.t.Fatalf("the write ended although it has to wait: %v", err)
	case <-time.After(d):
	}
}

// Succeeds waits until the write has ended, at most so long, and fails if it did with an error.
func (w *Write) Succeeds(limit time.Duration) {
	w.t.Helper()
	if err := Within(w.t, limit, "the write ends", w.ended); err != nil {
		w.t.Errorf("write: %v", err)
	}
}

// Fails waits until the write has ended, at most so long, and fails if it did without an error.
func (w *Write) Fails(limit time.Duration) {
	w.t.Helper()
	if err := Within(w.t, limit, "the write ends", w.ended); err == nil {
		w.t.Error("the write succeeded although its target did not answer")
	}
}
