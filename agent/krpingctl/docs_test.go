// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"

	"krping/test/docs"
)

// The commands that the documentation shows exist, with these flags and values.
func TestCommandsInTheDocs(t *testing.T) {
	docs.CheckCommands(t, "krpingctl", 20, func(args []string) error { return run(t.Context(), args, io.Discard) })
}
