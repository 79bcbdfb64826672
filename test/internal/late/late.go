// SPDX-License-Identifier: Apache-2.0

// Package late fails tests for what took longer than it may. The lab's machines are emulated, by a host
// that may do other things: such a test gets a second chance in a fresh VM, and its first failure is in
// the summary. What hangs, wrong data and the kernel's complaints get none.
package late

import (
	"testing"
	"time"
)

// Mark is what the lab knows such a failure by, in what the test says.
const Mark = "too late: "

// hang is the limit of a wait from which on what was waited for is not late but hangs.
const hang = time.Minute

// Errorf fails the test and lets it go on.
func Errorf(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Errorf(Mark+format, args...)
}

// Waited ends a test that has waited for something up to the limit.
func Waited(t testing.TB, limit time.Duration, format string, args ...any) {
	t.Helper()
	format = "not within %v: " + format
	if limit < hang {
		format = Mark + format
	}
	t.Fatalf(format, append([]any{limit}, args...)...)
}
