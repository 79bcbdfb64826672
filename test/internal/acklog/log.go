// SPDX-License-Identifier: Apache-2.0

// Package acklog writes to a device under test, records outside of it which writes were acknowledged, and
// checks the store behind the device against that record.
//
// A write gets a number when it begins. It may be acknowledged, may fail, or may never end. A block of the
// store must hold its last acknowledged write or one that began later; Allow permits more.
package acklog

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
)

// Write is a write that has begun.
type Write struct {
	Seq     uint64 // from 1, in the order in which they began
	Offset  int64
	Length  int64
	Acked   bool
	Flushed bool // acknowledged before an fsync that succeeded
}

func (w Write) covers(offset int64) bool { return offset >= w.Offset && offset < w.Offset+w.Length }

// Log records the writes to one device.
type Log struct {
	mu      sync.Mutex
	seed    uint64
	writes  []Write // writes[i].Seq == i+1
	flushes map[int][]uint64
	acked   int
	unsure  []uint64 // acknowledged, not flushed
	begun   int      // flushes
	out     io.Writer
}

// NewLog returns an empty log. If out is not nil, each record is written there before the
// call that makes it returns: a write's beginning before it is sent.
func NewLog(seed uint64, out io.Writer) (*Log, error) {
	l := &Log{seed: seed, out: out, flushes: map[int][]uint64{}}
	return l, l.print("seed %d\n", seed)
}

func (l *Log) print(format string, args ...any) error {
	if l.out == nil {
		return nil
	}
	if _, err := fmt.Fprintf(l.out, format, args...); err != nil {
		return fmt.Errorf("write the log: %w", err)
	}
	return nil
}

func (l *Log) begin(offset, length int64) (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	w := Write{Seq: uint64(len(l.writes)) + 1, Offset: offset, Length: length}
	l.writes = append(l.writes, w)
	return w.Seq, l.print("begin %d %d %d\n", w.Seq, offset, length)
}

func (l *Log) ack(seq uint64) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.writes[seq-1].Acked = true
	l.acked++
	l.unsure = append(l.unsure, seq)
	return l.print("ack %d\n", seq)
}

func (l *Log) beginFlush() (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begun++
	l.flushes[l.begun] = l.unsure[:len(l.unsure):len(l.unsure)]
	return l.begun, l.print("flush %d\n", l.begun)
}

func (l *Log) flushed(flush int) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, seq := range l.flushes[flush] {
		l.writes[seq-1].Flushed = true
	}
	delete(l.flushes, flush)
	unsure := l.unsure
	l.unsure = nil
	for _, seq := range unsure {
		if !l.writes[seq-1].Flushed {
			l.unsure = append(l.unsure, seq)
		}
	}
	return l.print("flushed %d\n", flush)
}

// Writes returns all writes begun so far, in order.
func (l *Log) Writes() []Write {
	l.mu.Lock()
	defer l.mu.Unlock()
	return append([]Write(nil), l.writes...)
}

// Acked returns how many writes were acknowledged so far.
func (l *Log) Acked() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.acked
}

// OpenLog continues the log in a file, or begins one.
func OpenLog(path string, seed uint64) (*Log, *os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, nil, fmt.Errorf("open the log: %w", err)
	}
	l, err := openLog(f, seed)
	if err != nil {
		_ = f.Close()
		return nil, nil, fmt.Errorf("%s: %w", path, err)
	}
	return l, f, nil
}

func openLog(f *os.File, seed uint64) (*Log, error) {
	data, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	if len(data) == 0 {
		return NewLog(seed, f)
	}
	if err := f.Truncate(int64(bytes.LastIndexByte(data, '\n') + 1)); err != nil {
		return nil, err
	}
	l, err := ReadLog(bytes.NewReader(data))
	if err != nil {
		return nil, err
	}
	l.out = f
	return l, nil
}

// ReadLog reads a log. It ignores an incomplete last line: the writer was killed.
func ReadLog(r io.Reader) (*Log, error) {
	lines := bufio.NewReader(r)
	var l *Log
	for n := 1; ; n++ {
		line, err := lines.ReadString('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, fmt.Errorf("read the log: %w", err)
		}
		if l, err = l.replay(strings.TrimSuffix(line, "\n")); err != nil {
			return nil, fmt.Errorf("log, line %d: %w", n, err)
		}
	}
	if l == nil {
		return nil, errors.New("the log is empty")
	}
	return l, nil
}

func (l *Log) replay(line string) (*Log, error) {
	kind, values, _ := strings.Cut(line, " ")
	var v [3]uint64
	want := map[string]int{"seed": 1, "begin": 3, "ack": 1, "flush": 1, "flushed": 1}[kind]
	if n, _ := fmt.Sscan(values, &v[0], &v[1], &v[2]); n != want || n == 0 {
		return nil, fmt.Errorf("%q: not a record", line)
	}
	if (l == nil) != (kind == "seed") {
		return nil, fmt.Errorf("%q: the first line must be the seed, and no other may be", line)
	}
	switch kind {
	case "seed":
		return NewLog(v[0], nil)
	case "begin":
		if seq, _ := l.begin(int64(v[1]), int64(v[2])); seq != v[0] {
			return nil, fmt.Errorf("write %d begins after %d", v[0], seq-1)
		}
	case "ack":
		if v[0] == 0 || v[0] > uint64(len(l.writes)) {
			return nil, fmt.Errorf("write %d never began", v[0])
		}
		_ = l.ack(v[0]) // prints nothing
	case "flush":
		if flush, _ := l.beginFlush(); uint64(flush) != v[0] {
			return nil, fmt.Errorf("flush %d follows %d", v[0], flush-1)
		}
	case "flushed":
		_ = l.flushed(int(v[0]))
	}
	return l, nil
}
