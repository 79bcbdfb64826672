// SPDX-License-Identifier: Apache-2.0

package uuid

import (
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	const text = "123e4567-e89b-42d3-a456-426614174000"
	for _, good := range []string{text, strings.ToUpper(text)} {
		if u, err := Parse(good); err != nil || u.String() != text {
			t.Errorf("%s: %s, %v", good, u, err)
		}
	}
	for _, bad := range []string{
		"", "0", text[1:], text + "0", text + "-", strings.ReplaceAll(text, "-", ""), "{" + text + "}",
		strings.Replace(text, "1", "g", 1), strings.Replace(text, "-", "0", 1), "00000000-0000-0000-0000-000000000000",
	} {
		if u, err := Parse(bad); err == nil || !u.IsZero() {
			t.Errorf("%q: %s, %v, want an error", bad, u, err)
		}
	}
}

func TestNew(t *testing.T) {
	a, b := New(), New()
	if a == b || a.IsZero() || a.String()[14] != '4' || !strings.ContainsRune("89ab", rune(a.String()[19])) {
		t.Errorf("%s, %s", a, b)
	}
}

// The UUIDs of block devices must not change with the program's version.
func TestFromName(t *testing.T) {
	if u := FromName("wwid naa.5000c500a1b2c3d4"); u.String() != "9ece4bbe-bd44-830e-9632-c38b4d234b6b" {
		t.Errorf("%s", u)
	}
	if FromName("a") == FromName("b") {
		t.Error("two names have one UUID")
	}
}
