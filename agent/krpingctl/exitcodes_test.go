// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/proc"
)

// The table of exit codes in agent/README.md agrees with exitCode for every errno that the module documents.
func TestExitCodesAreDocumented(t *testing.T) {
	documented := map[string]int{}
	for line := range strings.Lines(read(t, "../README.md")) {
		cells := strings.Split(line, "|")
		if len(cells) != 5 {
			continue
		}
		code, err := strconv.Atoi(strings.TrimSpace(cells[1]))
		if err != nil {
			continue
		}
		for _, name := range regexp.MustCompile(`E[A-Z]+`).FindAllString(cells[3], -1) {
			documented[name] = code
		}
	}
	errnos := map[string]unix.Errno{}
	for errno := range unix.Errno(134) {
		errnos[unix.ErrnoName(errno)] = errno
	}
	errnos["EOPNOTSUPP"] = unix.EOPNOTSUPP // ErrnoName calls it ENOTSUP, which has the same number
	names := regexp.MustCompile(`(?m)^\| (E[A-Z, ]+) \|`).FindAllStringSubmatch(read(t, "../../kmod/INTERFACE.md"), -1)
	if len(names) < 10 {
		t.Fatalf("INTERFACE.md has only %d rows of errnos", len(names))
	}
	for _, row := range names {
		for name := range strings.SplitSeq(row[1], ", ") {
			code, found := documented[name]
			if !found {
				t.Errorf("%s: not in agent/README.md", name)
			}
			if got := exitCode(fmt.Errorf("x: %w", &proc.CommandError{Errno: errnos[name]})); got != code {
				t.Errorf("%s: exit code %d, agent/README.md says %d", name, got, code)
			}
			delete(documented, name)
		}
	}
	for name := range documented {
		t.Errorf("%s: in agent/README.md, not in INTERFACE.md", name)
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}
