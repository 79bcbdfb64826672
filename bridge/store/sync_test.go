// SPDX-License-Identifier: Apache-2.0

package store

import (
	"testing"

	"golang.org/x/sys/unix"
)

// A signal of the Go runtime that interrupts a flush is no failure of the store.
func TestInterruptedCallIsRepeated(t *testing.T) {
	calls := 0
	err := uninterrupted(func() error {
		if calls++; calls < 3 {
			return unix.EINTR
		}
		return unix.EIO
	})
	if err != unix.EIO || calls != 3 {
		t.Errorf("%v after %d calls, want the error of the third", err, calls)
	}
}
