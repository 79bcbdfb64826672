// SPDX-License-Identifier: Apache-2.0

//go:build man

package main

import (
	"io"

	"krping/scripts/pack/man"
)

// With this tag, the program writes its manual pages.
func main() { man.Main(newRoot(&program{out: io.Discard}), version) }
