// SPDX-License-Identifier: Apache-2.0

package display

import (
	"strings"
	"testing"
	"unicode"
	"unicode/utf8"
)

func TestText(t *testing.T) {
	for text, want := range map[string]string{
		"":                         "",
		"fio":                      "fio",
		"köder 1":                  "köder 1",
		"a\tb\nc":                  `a\x09b\x0ac`,
		"\x1b[2K\rpass: no":        `\x1b[2K\x0dpass: no`,
		"\u009b2K":                 `\x9b2K`,
		"a\xffb":                   `a\xffb`,
		"\x7f":                     `\x7f`,
		"a\u202eb":                 `a\u202eb`,
		"a\u2028b":                 `a\u2028b`,
		"\ufffd is valid":          "\ufffd is valid",
		"nqn.2024-01.org.example:": "nqn.2024-01.org.example:",
	} {
		if got := Text(text); got != want {
			t.Errorf("%q: %q, want %q", text, got, want)
		}
	}
}

func TestPlainTextIsNotCopied(t *testing.T) {
	if n := testing.AllocsPerRun(100, func() { Text("kworker/u8:3") }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func FuzzText(f *testing.F) {
	for _, s := range []string{"fio", "\x1b[2K\r", "\xff\xfe", "\u202e", "\U000e0001"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		got := Text(s)
		if !utf8.ValidString(got) || strings.ContainsFunc(got, func(r rune) bool { return !unicode.IsPrint(r) }) {
			t.Errorf("%q: %q", s, got)
		}
	})
}
