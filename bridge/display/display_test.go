// SPDX-License-Identifier: Apache-2.0

package display

import (
	"os/exec"
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

// A word is one to the shell, whatever it has.
func TestWord(t *testing.T) {
	for text, want := range map[string]string{
		"/mnt/a_1.b-c":        "/mnt/a_1.b-c",
		"nqn.2024-01.org:a=b": "nqn.2024-01.org:a=b",
		"":                    "''",
		"/mnt/a b":            "'/mnt/a b'",
		"/mnt/$(reboot);`id`": "'/mnt/$(reboot);`id`'",
		"it's":                `'it'\''s'`,
		"köder":               "'köder'",
		`a\b`:                 `'a\b'`,
		"a\x1b[2K\nb'c\\d":    `$'a\x1b[2K\x0ab\'c\\d'`,
		"\x9b1":               `$'\x9b1'`,
		"\u009b1\u202e":       `$'\xc2\x9b1\xe2\x80\xae'`,
	} {
		got := Word(text)
		if got != want || Text(got) != got {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
		if out, err := exec.Command("bash", "-c", "printf %s "+got).Output(); err != nil || string(out) != text {
			t.Errorf("%q: the shell takes %s for %q, %v", text, got, out, err)
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
