// SPDX-License-Identifier: Apache-2.0

// Package bioview prints traced bios as lines, as percentiles by stage, and as a heat map.
package bioview

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"krping/agent/trace/biotrace"
	"krping/bridge/display"
)

type column struct {
	name, about string
	width       int                                        // in characters; negative: aligned to the left
	text        func(b *biotrace.Bio) string               // nil if add makes the column
	add         func(l *Lines, width int, b *biotrace.Bio) // appends the column and a space to l.line
}

var columns = []column{
	{"time", "time of submission", -15, nil, (*Lines).addTime},
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
	{"tag", "tag of the krping command, else of the request", 6, nil, func(l *Lines, width int, b *biotrace.Bio) { l.line = fmt.Appendf(l.line, "%#0*x ", width-2, b.Tag) }},
	{"crc", "CRC32C of the command's data", 10, nil, func(l *Lines, width int, b *biotrace.Bio) { l.line = fmt.Appendf(l.line, "%#0*x ", width-2, b.CRC) }},
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
	return column{name, about, width, of, nil}
}

func number(name, about string, width int, of func(*biotrace.Bio) uint64) column {
	return column{name, about, width, nil, func(l *Lines, width int, b *biotrace.Bio) { l.line = appendNumber(l.line, width, of(b)) }}
}

func stage(s biotrace.Stage, about string) column {
	return column{s.String(), about, 8, nil, func(l *Lines, width int, b *biotrace.Bio) {
		d := b.Stage(s)
		if d == 0 {
			l.line = appendAligned(l.line, width, "-")
			return
		}
		l.line = appendThousandths(l.line, width, uint64(d+time.Microsecond/2)/uint64(time.Microsecond))
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

// Lines prints one line per bio. It avoids allocations and remembers texts, to slow down the traced I/O little.
type Lines struct {
	w     io.Writer
	cells []cell
	line  []byte

	second int64  // of the last bio
	clock  []byte // its time of day, up to the fraction
}

// cell is a column, and what it has shown last if it is text: it is mostly the same again.
type cell struct {
	column
	last  string
	shown []byte // last as it is in the line; nil: none yet
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
		l.cells = append(l.cells, cell{column: c})
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
	for _, c := range l.cells {
		l.line = appendAligned(l.line, c.width, strings.ToUpper(c.name))
	}
	return l.end()
}

// Print prints a bio.
func (l *Lines) Print(b *biotrace.Bio) error {
	l.line = l.line[:0]
	for i := range l.cells {
		c := &l.cells[i]
		if c.text != nil {
			l.line = append(l.line, c.textOf(b)...)
			continue
		}
		c.add(l, c.width, b)
	}
	if b.Status != 0 {
		l.line = fmt.Appendf(l.line, "FAILED (status %d)", b.Status)
	}
	return l.end()
}

func (c *cell) textOf(b *biotrace.Bio) []byte {
	if s := c.text(b); s != c.last || c.shown == nil {
		c.last, c.shown = s, appendAligned(c.shown[:0], c.width, display.Text(s))
	}
	return c.shown
}

// addTime adds the time of submission, to the microsecond, which fills its column.
func (l *Lines) addTime(_ int, b *biotrace.Bio) {
	if second := b.Time.Unix(); second != l.second || l.clock == nil {
		l.second, l.clock = second, b.Time.AppendFormat(l.clock[:0], "15:04:05.")
	}
	us := b.Time.Nanosecond() / 1000
	l.line = append(l.line, l.clock...)
	for _, n := range [...]int{us / 10000, us / 100 % 100, us % 100} {
		l.line = append(l.line, pairs[2*n], pairs[2*n+1])
	}
	l.line = append(l.line, ' ')
}

const spaces = "                        " // more than the width of the widest column

// appendAligned appends a text and a space.
func appendAligned(line []byte, width int, text string) []byte {
	missing := max(0, max(width, -width)-len(text))
	if width > 0 {
		line = append(line, spaces[:missing]...)
		missing = 0
	}
	line = append(line, text...)
	return append(line, spaces[:missing+1]...)
}

// appendNumber appends a number and a space.
func appendNumber(line []byte, width int, n uint64) []byte {
	start := len(line)
	line = append(line, spaces[:width+1]...)
	if !putDigits(line[start:start+width], n) {
		line = append(strconv.AppendUint(line[:start], n, 10), ' ')
	}
	return line
}

// appendThousandths appends a number of thousandths, with a decimal point, and a space.
func appendThousandths(line []byte, width int, n uint64) []byte {
	start := len(line)
	line = append(line, spaces[:width+1]...)
	point := start + width - 4
	if !putDigits(line[start:point], n/1000) {
		line = append(strconv.AppendUint(line[:start], n/1000, 10), ".000 "...)
		point = len(line) - 5
	}
	line[point] = '.'
	line[point+1] = byte('0' + n/100%10)
	line[point+2], line[point+3] = pairs[n%100*2], pairs[n%100*2+1]
	return line
}

// pairs are the numbers from 00 to 99.
var pairs = func() (p [200]byte) {
	for i := range 100 {
		p[2*i], p[2*i+1] = byte('0'+i/10), byte('0'+i%10)
	}
	return p
}()

// putDigits writes a number at the end of a field. It returns false if the field has not enough room.
func putDigits(field []byte, n uint64) bool {
	for n >= 10 {
		if len(field) < 2 {
			return false
		}
		field[len(field)-2], field[len(field)-1] = pairs[n%100*2], pairs[n%100*2+1]
		field = field[:len(field)-2]
		if n /= 100; n == 0 {
			return true
		}
	}
	if len(field) == 0 {
		return false
	}
	field[len(field)-1] = byte('0' + n)
	return true
}

func (l *Lines) end() error {
	l.line = append(bytes.TrimRight(l.line, " "), '\n')
	_, err := l.w.Write(l.line)
	return err
}
