// SPDX-License-Identifier: Apache-2.0

// Package display makes text of others safe to print: names of processes, and what a peer sends. Such
// text may contain sequences that move the cursor, hide a line or add a false one.
package display

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
)

// Text returns s with everything escaped that is not printed as itself: control characters as \xNN,
// invalid UTF-8 as well, and invisible characters such as those that change the direction of writing
// as \uNNNN. A text without them is returned as it is.
func Text(s string) string {
	for i, r := range s {
		if !printed(s[i:], r) {
			return escape(s, i)
		}
	}
	return s
}

// Lines is Text for a text of several lines, which stay lines. Tabs become spaces.
func Lines(s string) string {
	lines := strings.Split(s, "\n")
	for i, line := range lines {
		lines[i] = Text(strings.ReplaceAll(line, "\t", "  "))
	}
	return strings.Join(lines, "\n")
}

// Word returns s as a word of a command for bash, quoted if that is needed, and safe to print.
func Word(s string) string {
	switch {
	case s != "" && !strings.ContainsFunc(s, special):
		return s
	case Text(s) == s:
		return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'"
	}
	var b strings.Builder
	for i, r := range s {
		switch {
		case r == '\\' || r == '\'':
			b.WriteString(`\` + string(r))
		case printed(s[i:], r):
			b.WriteRune(r)
		default:
			_, size := utf8.DecodeRuneInString(s[i:])
			for _, c := range []byte(s[i : i+size]) {
				fmt.Fprintf(&b, `\x%02x`, c)
			}
		}
	}
	return "$'" + b.String() + "'"
}

// special reports whether a shell may take r for something else than itself.
func special(r rune) bool {
	return r >= utf8.RuneSelf || !unicode.IsLetter(r) && !unicode.IsDigit(r) && !strings.ContainsRune("/._-:=@%+,", r)
}

// printed reports whether r, with which s begins, is printed as itself.
func printed(s string, r rune) bool {
	if r < utf8.RuneSelf {
		return ' ' <= r && r < 0x7f
	}
	if r == utf8.RuneError {
		_, size := utf8.DecodeRuneInString(s)
		return size > 1
	}
	return unicode.IsPrint(r)
}

// escape is Text for a text whose first character to be escaped is at byte start.
func escape(s string, start int) string {
	var b strings.Builder
	b.WriteString(s[:start])
	for i, r := range s[start:] {
		rest := s[start+i:]
		switch {
		case printed(rest, r):
			b.WriteRune(r)
		case r < 0x100:
			fmt.Fprintf(&b, `\x%02x`, r)
		case r == utf8.RuneError:
			fmt.Fprintf(&b, `\x%02x`, rest[0])
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}
