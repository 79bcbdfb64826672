// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
	"time"
)

// Messages may quote what others have sent, and their times have milliseconds.
func TestLog(t *testing.T) {
	for range 20 {
		var out strings.Builder
		log := newLogger(&out, false)
		log.Warn().Str("comm", "\x1b[2K\r").Msg("the target says \x1b[2K\rok\nand\tmore")
		const want = ` WRN the target says \x1b[2K\x0dok` + "\n" + `and  more comm="\x1b[2K\r"` + "\n"
		when, text := out.String()[:len("15:04:05.000")], out.String()[len("15:04:05.000"):]
		if text != want {
			t.Fatalf("%q, want %q", text, want)
		}
		if !strings.HasSuffix(when, ".000") {
			return
		}
		time.Sleep(time.Millisecond)
	}
	t.Error("all times end in .000")
}
