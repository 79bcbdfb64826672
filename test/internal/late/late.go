// SPDX-License-Identifier: Apache-2.0

// Package late fails tests that took too long. The lab's VMs are emulated on a host that may be busy, so such
// a test runs once more in a fresh VM, and the summary keeps its first failure. Hangs, wrong data and kernel
// complaints get no second try.
package late

import (
	"testing"
	"time"
)

// Mark begins the message of a late failure. The lab looks for it in the test's output.
const Mark = "too late: "

// hang is the limit above which a missing event is a hang, not late.
const hang = time.Minute

// Errorf fails the test as late and continues it.
func Errorf(t testing.TB, format string, args ...any) {
	t.Helper()
	t.Errorf(Mark+format, args...)
}

// ErrorfIf is Errorf if being late explains the failure, else t.Errorf.
func ErrorfIf(t testing.TB, explained bool, format string, args ...any) {
	t.Helper()
	if explained {
		format = Mark + format
	}
	t.Errorf(format, args...)
}

// Limit returns how long to wait for an event that takes limit at most on a host that does nothing else: twice as
// long, but not as long as a hang.
func Limit(limit time.Duration) time.Duration {
	if limit >= hang {
		return limit
	}
	return min(2*limit, hang-time.Second)
}

// Waited fails and ends a test that has waited for an event until the limit.
func Waited(t testing.TB, limit time.Duration, format string, args ...any) {
	t.Helper()
	format = "not within %v: " + format
	if limit < hang {
		format = Mark + format
	}
	t.Fatalf(format, append([]any{limit}, args...)...)
}
