// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"io"
	"strings"

	"krping/proc"
)

// Log is what the kernel logs from a moment on. The zero Log, of a user who may not read it,
// has nothing.
type Log struct{ kmsg *proc.Kmsg }

// LogFromNow begins at the log's end.
func LogFromNow() Log {
	kmsg, err := proc.FS{}.OpenKmsg(true)
	if err != nil {
		return Log{}
	}
	return Log{kmsg}
}

// Close ends it.
func (l Log) Close() {
	if l.kmsg != nil {
		_ = l.kmsg.Close()
	}
}

// Lines returns what was logged since the last call, without times.
func (l Log) Lines() Lines {
	var lines Lines
	for l.kmsg != nil {
		r, err := l.kmsg.NextRecord(context.Background())
		if errors.Is(err, io.EOF) || err != nil {
			break // what was read may still explain something
		}
		lines = append(lines, strings.TrimSpace(r.Text))
	}
	return lines
}

// Lines are messages of the kernel.
type Lines []string

// Find returns the first that has one of the texts, or "".
func (l Lines) Find(texts ...string) string {
	for _, line := range l {
		for _, text := range texts {
			if strings.Contains(line, text) {
				return line
			}
		}
	}
	return ""
}

// About joins those that have one of the texts, as a cause that nothing better is known for.
func (l Lines) About(texts ...string) string {
	var about []string
	for _, line := range l {
		if (Lines{line}).Find(texts...) != "" {
			about = append(about, line)
		}
	}
	return strings.Join(about, "; ")
}
