// SPDX-License-Identifier: Apache-2.0

//go:build !amd64

package lab

// tscKHz returns 0: here an emulated CPU has a counter of its own.
func tscKHz() uint64 { return 0 }
