// SPDX-License-Identifier: Apache-2.0

// Package bioview shows traced bios: a line each, summed up, or as a heat map.
package bioview

import (
	"bytes"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"krping/agent/trace/biotrace"
)

// column is something that a line can show.
type column struct {
	name, about string
	width       int                                       // negative: to the left
	add         func(line []byte, b *biotrace.Bio) []byte // appends its text
}

var columns = []column{
	{"time", "of the submit", -15, func(l []byte, b *biotrace.Bio) []byte { return b.Time.AppendFormat(l, "15:04:05.000000") }},
	number("pid", "process that submitted", 7, func(b *biotrace.Bio) uint64 { return uint64(b.PID) }),
	number("tid", "thread that submitted", 7, func(b *biotrace.Bio) uint64 { return uint64(b.TID) }),
	text("comm", "its name", -15, func(b *biotrace.Bio) string { return b.Comm }),
	text("cgroup", "its cgroup", -20, func(b *biotrace.Bio) string { return b.CGroup }),
	text("device", "", -10, func(b *biotrace.Bio) string { return b.Device }),
	text("op", "operation", -12, func(b *biotrace.Bio) string { return b.Op }),
	text("flags", "SYNC, FUA and so on", -10, func(b *biotrace.Bio) string { return b.Flags }),
	number("sector", "of 512 bytes", 10, func(b *biotrace.Bio) uint64 { return b.Sector }),
	number("bytes", "", 8, func(b *biotrace.Bio) uint64 { return uint64(b.Bytes) }),
	stage(biotrace.StageQueue, "ms from the submit until its request was issued"),
	stage(biotrace.StageSend, "ms from there until its command was in a message"),
	stage(biotrace.StagePeer, "ms from there until the response"),
	stage(biotrace.StageFinish, "ms from there until it ended"),
	stage(biotrace.StageDevice, "ms from the issue until it ended"),
	stage(biotrace.StageTotal, "ms from the submit until it ended"),
	text("slowest", "the stage that took longest", -7, func(b *biotrace.Bio) string { return b.Slowest().String() }),
	number("status", "blk_status_t, 0 is success", 6, func(b *biotrace.Bio) uint64 { return uint64(b.Status) }),
	number("session", "of the module", 7, func(b *biotrace.Bio) uint64 { return uint64(b.Session) }),
	number("hwqueue", "hardware queue", 7, func(b *biotrace.Bio) uint64 { return uint64(b.HWQueue) }),
	{"tag", "of the command or request", 6, func(l []byte, b *biotrace.Bio) []byte { return fmt.Appendf(l, "0x%04x", b.Tag) }},
	{"crc", "CRC32C of the command's data", 10, func(l []byte, b *biotrace.Bio) []byte { return fmt.Appendf(l, "0x%08x", b.CRC) }},
	number("requeues", "times that its request went back", 8, func(b *biotrace.Bio) uint64 { return uint64(b.Requeues) }),
	number("parts", "requests that it was split into", 5, func(b *biotrace.Bio) uint64 { return uint64(b.Parts) }),
	text("merged", "with others, into one request", -6, func(b *biotrace.Bio) string {
		if b.Merged {
			return "yes"
		}
		return "-"
	}),
}

func text(name, about string, width int, of func(*biotrace.Bio) string) column {
	return column{name, about, width, func(l []byte, b *biotrace.Bio) []byte { return append(l, of(b)...) }}
}

func number(name, about string, width int, of func(*biotrace.Bio) uint64) column {
	return column{name, about, width, func(l []byte, b *biotrace.Bio) []byte { return strconv.AppendUint(l, of(b), 10) }}
}

func stage(s biotrace.Stage, about string) column {
	return column{s.String(), about, 8, func(l []byte, b *biotrace.Bio) []byte {
		d := b.Stage(s)
		if d == 0 {
			return append(l, '-')
		}
		us := uint64(d.Round(time.Microsecond) / time.Microsecond)
		l = append(strconv.AppendUint(l, us/1000, 10), '.')
		return append(l, byte('0'+us/100%10), byte('0'+us/10%10), byte('0'+us%10))
	}}
}

// DefaultColumns are those that Columns are chosen from by name.
var DefaultColumns = []string{"time", "pid", "comm", "device", "op", "flags", "sector", "bytes", "queue", "send", "peer", "finish", "total"}

// ColumnHelp names the columns, one a line.
func ColumnHelp() string {
	var text strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&text, "  %-9s %s\n", c.name, c.about)
	}
	return text.String()
}

// Lines prints a line a bio. It is written so that it costs the traced I/O little.
type Lines struct {
	w       io.Writer
	columns []column
	line    []byte
}

// NewLines prints the columns of these names.
func NewLines(w io.Writer, names []string) (*Lines, error) {
	l := &Lines{w: w}
	for _, name := range names {
		c, ok := find(name)
		if !ok {
			return nil, fmt.Errorf("column %q is unknown; known are:\n%s", name, ColumnHelp())
		}
		l.columns = append(l.columns, c)
	}
	return l, nil
}

func find(name string) (column, bool) {
	for _, c := range columns {
		if strings.EqualFold(c.name, name) {
			return c, true
		}
	}
	return column{}, false
}

// Header prints the names of the columns.
func (l *Lines) Header() error {
	l.line = l.line[:0]
	for _, c := range l.columns {
		l.add(c.width, func(line []byte) []byte { return append(line, strings.ToUpper(c.name)...) })
	}
	return l.end()
}

// Print prints a bio.
func (l *Lines) Print(b *biotrace.Bio) error {
	l.line = l.line[:0]
	for _, c := range l.columns {
		l.add(c.width, func(line []byte) []byte { return c.add(line, b) })
	}
	if b.Status != 0 {
		l.line = fmt.Appendf(l.line, "FAILED (status %d)", b.Status)
	}
	return l.end()
}

const spaces = "                        " // as many as the widest column has

// add appends a column and a space behind it.
func (l *Lines) add(width int, text func([]byte) []byte) {
	start := len(l.line)
	l.line = text(l.line)
	missing := max(width, -width) - (len(l.line) - start)
	if missing > 0 {
		at := start
		if width < 0 {
			at = len(l.line)
		}
		l.line = slices.Insert(l.line, at, []byte(spaces[:missing])...)
	}
	l.line = append(l.line, ' ')
}

func (l *Lines) end() error {
	_, err := l.w.Write(append(bytes.TrimRight(l.line, " "), '\n'))
	return err
}
