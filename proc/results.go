// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Bucket counts operations that took at most Upper and longer than the Upper of the bucket before.
// Its width is at most 1/64 of Upper.
type Bucket struct {
	Upper time.Duration
	Count uint64
}

// Result is the measurement of a ping/pong command: a line of /proc/krping_results
// (kmod/INTERFACE.md).
type Result struct {
	ID     uint64
	PID    int // thread that wrote the command
	Role   Role
	Test   Test
	State  string // connecting, listening, running, done
	Errno  unix.Errno
	Peer   string
	Device string // RDMA device; "" before there is one
	Size   uint32 // bytes per operation
	Count  uint32 // operations requested per connection, 0 for endless

	QPs     uint32
	TxDepth uint32
	Poll    bool
	Duplex  bool

	Ops       uint64        // completed
	Start     time.Duration // start of the first operation, by CLOCK_MONOTONIC
	Elapsed   time.Duration // from Start to the last completion
	Timed     uint64        // operations that were timed
	Min       time.Duration
	Max       time.Duration
	Sum       time.Duration
	Histogram []Bucket // of the timed operations, ascending

	// CPU is the CPU time of the thread since its command began, without that of interrupts and of the device's
	// own threads. Only a Running's result has it.
	CPU time.Duration

	// Verbs; kmod/INTERFACE.md section 1.1
	Verb        string
	QPType      string
	Sent        uint64 // messages
	Received    uint64
	Lost        uint64
	Repeated    uint64
	Reordered   uint64
	Damaged     uint64
	PeakOps     uint64 // most operations a second over 100 ms; 0: not known
	Posts       uint64 // work requests posted
	Completions uint64 // completions polled
}

var errNoResult = errors.New("the module has no result of the command")

// Results returns the results of the last commands, oldest first.
func (f FS) Results() ([]Result, error) {
	data, err := f.read("krping_results")
	if err != nil {
		return nil, err
	}
	return ParseResults(string(data))
}

// ParseResults parses /proc/krping_results. It ignores unknown keys.
func ParseResults(text string) ([]Result, error) {
	var results []Result
	for line := range strings.Lines(text) {
		r, err := parseResult(line)
		if err != nil {
			return nil, fmt.Errorf("result %.100q: %w", line, err)
		}
		results = append(results, r)
	}
	return results, nil
}

func parseResult(line string) (Result, error) {
	var r Result
	for _, field := range strings.Fields(line) {
		key, value, found := strings.Cut(field, "=")
		if !found {
			return r, fmt.Errorf("field %.40q is not key=value", field)
		}
		if err := r.set(key, value); err != nil {
			return r, fmt.Errorf("%s: %w", key, err)
		}
	}
	if r.ID == 0 || r.Test == "" {
		return r, errors.New("has no id or no test")
	}
	return r, nil
}

func (r *Result) set(key, value string) (err error) {
	number := func(bits int) (n uint64) {
		n, err = strconv.ParseUint(value, 10, bits)
		return n
	}
	switch key {
	case "id":
		r.ID = number(64)
	case "pid":
		r.PID = int(number(31))
	case "role":
		r.Role = Role(value)
	case "test":
		r.Test = Test(value)
	case "state":
		r.State = value
	case "error":
		r.Errno = unix.Errno(number(12))
	case "peer":
		r.Peer = value
	case "ibdev":
		r.Device = value
	case "size":
		r.Size = uint32(number(32))
	case "count":
		r.Count = uint32(number(32))
	case "qps":
		r.QPs = uint32(number(32))
	case "txdepth":
		r.TxDepth = uint32(number(32))
	case "poll":
		r.Poll = number(1) == 1
	case "duplex":
		r.Duplex = number(1) == 1
	case "ops":
		r.Ops = number(64)
	case "ns":
		r.Elapsed = time.Duration(number(63))
	case "start_ns":
		r.Start = time.Duration(number(63))
	case "timed":
		r.Timed = number(64)
	case "min_ns":
		r.Min = time.Duration(number(63))
	case "max_ns":
		r.Max = time.Duration(number(63))
	case "sum_ns":
		r.Sum = time.Duration(number(63))
	case "verb":
		r.Verb = value
	case "qp":
		r.QPType = value
	case "sent":
		r.Sent = number(64)
	case "received":
		r.Received = number(64)
	case "lost":
		r.Lost = number(64)
	case "repeated":
		r.Repeated = number(64)
	case "reordered":
		r.Reordered = number(64)
	case "damaged":
		r.Damaged = number(64)
	case "peak_ops":
		r.PeakOps = number(64)
	case "posts":
		r.Posts = number(64)
	case "completions":
		r.Completions = number(64)
	case "hist":
		r.Histogram, err = parseHistogram(value)
	}
	return err
}

func parseHistogram(text string) ([]Bucket, error) {
	if text == "" {
		return nil, nil
	}
	var buckets []Bucket
	last := time.Duration(-1)
	for pair := range strings.SplitSeq(text, ",") {
		upper, count, found := strings.Cut(pair, ":")
		ns, err1 := strconv.ParseUint(upper, 10, 63)
		n, err2 := strconv.ParseUint(count, 10, 64)
		if err := errors.Join(err1, err2); !found || err != nil {
			return nil, fmt.Errorf("bucket %.40q: %w", pair, err)
		}
		if time.Duration(ns) <= last {
			return nil, fmt.Errorf("bucket %.40q: not in ascending order", pair)
		}
		last = time.Duration(ns)
		buckets = append(buckets, Bucket{Upper: last, Count: n})
	}
	return buckets, nil
}
