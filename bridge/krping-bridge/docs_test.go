// SPDX-License-Identifier: Apache-2.0

package main

import (
	"testing"

	"krping/test/docs"
)

// The commands that the documentation shows exist, with these flags and values.
func TestCommandsInTheDocs(t *testing.T) {
	pages, err := docs.Pages()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range pages {
		for _, c := range page.Commands("krping-bridge") {
			if err := run(t.Context(), append(c.Args, "--help")); err != nil {
				t.Errorf("%s:%d: krping-bridge %v: %v", c.Page, c.Line, c.Args, err)
			}
			checked++
		}
	}
	if checked < 2 {
		t.Errorf("only %d commands found", checked)
	}
	if err := run(t.Context(), []string{"--no-such-flag", "--help"}); err == nil {
		t.Error("an unknown flag is not noticed")
	}
}
