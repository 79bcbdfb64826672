// SPDX-License-Identifier: Apache-2.0

package acklog

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"krping/agent/disk/rawio"
)

// Violation is a block with wrong contents.
type Violation struct {
	Offset int64
	Lost   bool   // it holds something older than its last acknowledged write; otherwise it is corrupt
	What   string // what it holds and what it should hold
}

func (v Violation) String() string {
	kind := "corrupt"
	if v.Lost {
		kind = "lost"
	}
	return fmt.Sprintf("block at %d: %s: %s", v.Offset, kind, v.What)
}

// Report is the result of a check.
type Report struct {
	Writes, Acked int
	Blocks        int // checked
	Lost, Corrupt int // blocks
	First         []Violation
}

// maxShown is how many violations a report describes.
const maxShown = 10

// Err describes the violations, or returns nil.
func (r Report) Err() error {
	if r.Lost+r.Corrupt == 0 {
		return nil
	}
	lines := []string{fmt.Sprintf("of %d acknowledged writes: %d blocks lost, %d corrupt", r.Acked, r.Lost, r.Corrupt)}
	for _, v := range r.First {
		lines = append(lines, v.String())
	}
	return errors.New(strings.Join(lines, "\n\t"))
}

// Allow relaxes the check for stores that a host's failure may have damaged.
type Allow struct {
	Unflushed bool // acknowledged writes that no fsync has covered may be lost
	Torn      bool // a write that was not acknowledged may end within a block
}

// Check compares a store with the log. The store was all zeros before the first write.
func Check(store io.ReaderAt, size int64, l *Log, allow Allow) (Report, error) {
	writes := l.Writes()
	report := Report{Writes: len(writes)}
	last := make([]uint64, size/Block) // number of the last acknowledged write, 0 for none
	for _, w := range writes {
		if w.Offset < 0 || w.Offset+w.Length > size {
			return report, fmt.Errorf("write %d of %d bytes at %d is outside the store of %d bytes", w.Seq, w.Length, w.Offset, size)
		}
		if !w.Acked || allow.Unflushed && !w.Flushed {
			continue
		}
		report.Acked++
		for at := w.Offset; at < w.Offset+w.Length; at += Block {
			last[at/Block] = w.Seq
		}
	}
	const step = 1 << 20
	buf, err := rawio.Buffer(step)
	if err != nil {
		return report, err
	}
	defer rawio.Free(buf)
	for at := int64(0); at < size; at += step {
		data := buf[:min(step, size-at)]
		if _, err := store.ReadAt(data, at); err != nil && !errors.Is(err, io.EOF) {
			return report, fmt.Errorf("read the store at %d: %w", at, err)
		}
		for i := 0; i+Block <= len(data); i += Block {
			offset := at + int64(i)
			report.Blocks++
			v := judge(data[i:i+Block], offset, l.seed, last[offset/Block], writes)
			if v != nil && !(allow.Torn && torn(data[i:i+Block], offset, l.seed, last[offset/Block], writes)) {
				report.add(*v)
			}
		}
		clear(data)
	}
	return report, nil
}

func (r *Report) add(v Violation) {
	if v.Lost {
		r.Lost++
	} else {
		r.Corrupt++
	}
	if len(r.First) < maxShown {
		r.First = append(r.First, v)
	}
}

// judge returns what is wrong with a block, given its last acknowledged write, or nil.
func judge(block []byte, offset int64, seed, last uint64, writes []Write) *Violation {
	c := inspect(block)
	want := "the zeros from before, or a write that was not acknowledged"
	if last > 0 {
		w := writes[last-1]
		want = fmt.Sprintf("write %d (%d bytes at %d) or a later one", last, w.Length, w.Offset)
	}
	violation := func(lost bool, format string, args ...any) *Violation {
		return &Violation{Offset: offset, Lost: lost, What: fmt.Sprintf(format, args...) + ", not " + want}
	}
	switch {
	case c.blank && last == 0:
		return nil
	case c.blank:
		return violation(true, "zeros")
	case !c.signed:
		return violation(false, "data of no write, beginning with % x", block[:16])
	case !c.whole:
		return violation(false, "parts of write %d for offset %d mixed with other data", c.seq, c.offset)
	case c.seed != seed:
		return violation(false, "a write of another log, with seed %d", c.seed)
	case c.offset != offset:
		return violation(false, "write %d's block for offset %d", c.seq, c.offset)
	case c.seq == 0 || c.seq > uint64(len(writes)) || !writes[c.seq-1].covers(offset):
		return violation(false, "write %d, which did not begin there", c.seq)
	case c.seq < last:
		return violation(true, "write %d", c.seq)
	}
	return nil
}

// torn reports whether a block is part old data and part a write that was not acknowledged.
func torn(block []byte, offset int64, seed, last uint64, writes []Write) bool {
	var may [][]byte
	if last == 0 {
		may = append(may, make([]byte, Block))
	}
	for _, w := range writes[max(last, 1)-1:] {
		if !w.covers(offset) {
			continue
		}
		content := make([]byte, Block)
		fill(content, seed, w.Seq, offset)
		may = append(may, content)
	}
	for i, newer := range may {
		for _, older := range may[:i] { // the newer one was not acknowledged, or it would be last
			if cut(block, newer, older) || cut(block, older, newer) {
				return true
			}
		}
	}
	return false
}

// cut reports whether a block begins with one content and ends with another.
func cut(block, begins, ends []byte) bool {
	at := 0
	for at < Block && block[at] == begins[at] {
		at++
	}
	return bytes.Equal(block[at:], ends[at:])
}

// CheckFile checks a file or device against a log file.
func CheckFile(store, log string, allow Allow) (Report, error) {
	records, err := os.Open(log)
	if err != nil {
		return Report{}, fmt.Errorf("open the log: %w", err)
	}
	defer records.Close()
	l, err := ReadLog(records)
	if err != nil {
		return Report{}, err
	}
	return l.CheckStore(store, allow)
}

// CheckStore checks a file or device, bypassing the page cache.
func (l *Log) CheckStore(store string, allow Allow) (Report, error) {
	f, err := rawio.Open(store, os.O_RDONLY, true)
	if err != nil {
		return Report{}, fmt.Errorf("open the store: %w", err)
	}
	defer f.Close()
	return Check(f, f.Size, l, allow)
}
