// SPDX-License-Identifier: Apache-2.0

package kernel

import (
	"context"
	"errors"
	"io"
	"strings"

	"krping/proc"
)

// Log is the kernel's log from a point in time on. The zero Log is empty; users who may not read the
// log get it.
type Log struct{ kmsg *proc.Kmsg }

// LogFromNow returns the log from now on. The caller must close it.
func LogFromNow() Log {
	kmsg, err := proc.FS{}.OpenKmsg(true)
	if err != nil {
		return Log{}
	}
	return Log{kmsg}
}

// LogSoFar returns what the kernel has logged and not yet overwritten.
func LogSoFar() Lines {
	kmsg, err := proc.FS{}.OpenKmsg(false)
	if err != nil {
		return nil
	}
	log := Log{kmsg}
	defer log.Close()
	return log.Lines()
}

// Close closes the log.
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
			break // the lines so far may be sufficient
		}
		lines = append(lines, strings.TrimSpace(r.Text))
	}
	return lines
}

// Lines are messages of the kernel.
type Lines []string

// Find returns the first line that contains one of the texts, or "".
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

// About returns the lines that contain one of the texts, joined, for a cause that is not known better.
func (l Lines) About(texts ...string) string {
	var about []string
	for _, line := range l {
		if (Lines{line}).Find(texts...) != "" {
			about = append(about, line)
		}
	}
	return strings.Join(about, "; ")
}
