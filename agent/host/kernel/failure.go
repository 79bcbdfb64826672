// SPDX-License-Identifier: Apache-2.0

// Package kernel loads kernel modules, and explains failures of the kernel with what it has logged and
// with a fix, as an errno alone seldom suffices.
package kernel

import "errors"

// Failure is an error with its cause and a fix.
type Failure struct {
	What  string // what failed: "cannot load the module nvmet"
	Cause string
	Fix   string // a command, or what to do; alternatives are separated by "; or"
	Err   error  // to be wrapped, for errors.Is; may be nil
}

func (f *Failure) Error() string {
	if f.Cause == "" {
		return f.What
	}
	return f.What + ": " + f.Cause
}

func (f *Failure) Unwrap() error { return f.Err }

// Fix returns the fix of a *Failure in err, or "".
func Fix(err error) string {
	var f *Failure
	if errors.As(err, &f) {
		return f.Fix
	}
	return ""
}
