// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"

	"krping/agent/trace/biotrace"
)

// The verdict is inconclusive if bios were lost.
func TestSlowVerdict(t *testing.T) {
	lost := biotrace.Lost{Events: []uint64{0, 0}, Bios: []uint64{0, 2}, Stages: []uint64{0, 0}}
	for _, c := range []struct {
		slow, pending int
		lost          biotrace.Lost
		want          string
		pass          bool
	}{
		{0, 0, biotrace.Lost{}, "pass: none of 100 bios took 1s or longer", true},
		{2, 0, biotrace.Lost{}, "fail: 2 of 100 bios took 1s or longer, and 0 more have not ended", false},
		{0, 1, biotrace.Lost{}, "and 1 more have not ended in that time", false},
		{0, 0, lost, "inconclusive: none of the 100 bios that were traced took 1s or longer, but some were lost: 2 bios", false},
		{1, 0, lost, "fail: 1 of 100", false},
	} {
		text, err := slowVerdict{time.Second, 100, c.slow, c.pending, c.lost}.judge()
		if err != nil {
			text = err.Error()
		}
		if (err == nil) != c.pass || !strings.Contains(text, c.want) {
			t.Errorf("%+v: %q, want %q", c, text, c.want)
		}
	}
}
