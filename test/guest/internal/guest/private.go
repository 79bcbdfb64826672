// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"bytes"
	"testing"
)

// Lengths returns the lengths of private data from 0 to most; with -short every 17th.
func Lengths(most int) []int {
	step := 1
	if testing.Short() {
		step = 17
	}
	var all []int
	for n := 0; n < most; n += step {
		all = append(all, n)
	}
	return append(all, most)
}

// Fill returns b cut or extended to n bytes; the extension is 0xa5.
func Fill(b []byte, n int) []byte {
	return append(bytes.Clone(b), bytes.Repeat([]byte{0xa5}, n)...)[:n]
}
