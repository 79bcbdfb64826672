// SPDX-License-Identifier: Apache-2.0

// Package kernel loads modules, keeps what the kernel logs meanwhile, and carries the
// explanation of what it refuses: an errno alone seldom says why.
package kernel

import "errors"

// Failure is an error with its cause and what mends it, as a finding of doctor has them.
type Failure struct {
	What  string // was tried, and how it ended
	Cause string
	Fix   string // a command, or what to do; alternatives after "; or"
	Err   error  // of its kind, for errors.Is; may be nil
}

func (f *Failure) Error() string {
	if f.Cause == "" {
		return f.What
	}
	return f.What + ": " + f.Cause
}

func (f *Failure) Unwrap() error { return f.Err }

// Fix returns what mends an error, or "".
func Fix(err error) string {
	var f *Failure
	if errors.As(err, &f) {
		return f.Fix
	}
	return ""
}
