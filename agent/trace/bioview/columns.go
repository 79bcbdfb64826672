// SPDX-License-Identifier: Apache-2.0

// Package bioview prints traced bios as lines, as percentiles by stage, and as a heat map.
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
	"krping/bridge/display"
)

type column struct {
	name, about string
	width       int                                       // in characters; negative: aligned to the left
	add         func(line []byte, b *biotrace.Bio) []byte // appends the text
}

var columns = []column{
	{"time", "time of submission", -15, func(l []byte, b *biotrace.Bio) []byte { return b.Time.AppendFormat(l, "15:04:05.000000") }},
	number("pid", "submitting process", 7, func(b *biotrace.Bio) uint64 { return uint64(b.PID) }),
	number("tid", "submitting thread", 7, func(b *biotrace.Bio) uint64 { return uint64(b.TID) }),
	text("comm", "name of the thread", -15, func(b *biotrace.Bio) string { return b.Comm }),
	text("cgroup", "cgroup v2 of the thread", -20, func(b *biotrace.Bio) string { return b.CGroup }),
	text("device", "name of the block device, or of the partition", -10, func(b *biotrace.Bio) string { return b.Device }),
	text("op", "operation", -12, func(b *biotrace.Bio) string { return b.Op }),
	text("flags", "SYNC, FUA, PREFLUSH, META, PRIO, RAHEAD", -10, func(b *biotrace.Bio) string { return b.Flags }),
	number("sector", "first sector, of 512 bytes, from the start of the disk", 10, func(b *biotrace.Bio) uint64 { return b.Sector }),
	number("bytes", "size", 8, func(b *biotrace.Bio) uint64 { return uint64(b.Bytes) }),
	stage(biotrace.StageQueue, "time in this stage, in ms"),
	stage(biotrace.StageSend, "time in this stage, in ms"),
	stage(biotrace.StagePeer, "time in this stage, in ms"),
	stage(biotrace.StageFinish, "time in this stage, in ms"),
	deviceStage(),
	stage(biotrace.StageTotal, "time from submission to end, in ms"),
	text("slowest", "stage that took longest", -7, func(b *biotrace.Bio) string { return b.Slowest().String() }),
	number("status", "blk_status_t, 0 is success", 6, func(b *biotrace.Bio) uint64 { return uint64(b.Status) }),
	number("session", "number of the krping session", 7, func(b *biotrace.Bio) uint64 { return uint64(b.Session) }),
	number("hwqueue", "hardware queue", 7, func(b *biotrace.Bio) uint64 { return uint64(b.HWQueue) }),
	{"tag", "tag of the krping command, else of the request", 6, func(l []byte, b *biotrace.Bio) []byte { return fmt.Appendf(l, "0x%04x", b.Tag) }},
	{"crc", "CRC32C of the command's data", 10, func(l []byte, b *biotrace.Bio) []byte { return fmt.Appendf(l, "0x%08x", b.CRC) }},
	number("requeues", "times that the request was requeued", 8, func(b *biotrace.Bio) uint64 { return uint64(b.Requeues) }),
	number("parts", "requests that the bio was split into", 5, func(b *biotrace.Bio) uint64 { return uint64(b.Parts) }),
	text("merged", "yes if it shared a request with other bios", -6, func(b *biotrace.Bio) string {
		if b.Merged {
			return "yes"
		}
		return "-"
	}),
}

func text(name, about string, width int, of func(*biotrace.Bio) string) column {
	return column{name, about, width, func(l []byte, b *biotrace.Bio) []byte { return append(l, display.Text(of(b))...) }}
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

// deviceStage is not named like its stage, as there is a column for the name of the device.
func deviceStage() column {
	c := stage(biotrace.StageDevice, "time from issue to end, in ms: the stage device")
	c.name, c.width = deviceStageName, 9
	return c
}

// DefaultColumns returns the columns that are shown unless others are chosen, for devices with these
// stages.
func DefaultColumns(stages []biotrace.Stage) []string {
	names := []string{"time", "pid", "comm", "device", "op", "flags", "sector", "bytes"}
	for _, s := range stages {
		if s == biotrace.StageDevice {
			names = append(names, deviceStageName)
			continue
		}
		names = append(names, s.String())
	}
	return names
}

const deviceStageName = "device_ms"

// ColumnHelp describes the columns, one per line.
func ColumnHelp() string {
	var text strings.Builder
	for _, c := range columns {
		fmt.Fprintf(&text, "  %-9s %s\n", c.name, c.about)
	}
	return text.String()
}

// Lines prints one line per bio. It avoids allocations, to slow down the traced I/O little.
type Lines struct {
	w       io.Writer
	columns []column
	line    []byte
}

// ColumnNames returns the names of all columns.
func ColumnNames() []string {
	names := make([]string, len(columns))
	for i, c := range columns {
		names[i] = c.name
	}
	return names
}

// NewLines returns Lines that prints the columns with these names to w.
func NewLines(w io.Writer, names []string) (*Lines, error) {
	l := &Lines{w: w}
	for _, name := range names {
		c, ok := find(name)
		if !ok {
			return nil, fmt.Errorf("column %q: must be one of\n%s", name, ColumnHelp())
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

const spaces = "                        " // at least the width of the widest column

// add appends a column and a space.
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
