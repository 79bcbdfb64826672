// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"os"
	"testing"
	"time"
)

// Write is a write that may wait for its target.
type Write struct {
	t     testing.TB
	ended chan error
}

// StartWrite starts to write data of Aligned to the beginning of a device.
func StartWrite(t testing.TB, dev *os.File, data []byte) *Write {
	w := &Write{t, make(chan error, 1)}
	go func() {
		_, err := dev.WriteAt(data, 0)
		w.ended <- err
	}()
	return w
}

// Waits fails if the write ends within d.
func (w *Write) Waits(d time.Duration) {
	w.t.Helper()
	select {
	case err := <-w.ended:
		w.t.Fatalf("the write did not wait for the target, but ended: %v", err)
	case <-time.After(d):
	}
}

// Succeeds waits for the end of the write, at most limit, and fails if it had an error.
func (w *Write) Succeeds(limit time.Duration) {
	w.t.Helper()
	if err := Within(w.t, limit, "the write ends", w.ended); err != nil {
		w.t.Errorf("write: %v", err)
	}
}

// Fails waits for the end of the write, at most limit, and fails if it had no error.
func (w *Write) Fails(limit time.Duration) {
	w.t.Helper()
	if err := Within(w.t, limit, "the write ends", w.ended); err == nil {
		w.t.Error("the write succeeded although its target did not answer")
	}
}
