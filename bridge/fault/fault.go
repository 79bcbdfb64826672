// SPDX-License-Identifier: Apache-2.0

// Package fault injects faults into the bridge for tests. Only builds with the tag faults use it.
//
// Each fault has a directory with the same files as the module's faults (kmod/lib/fault.h):
//
//	rate	inject the fault at every n-th opportunity; 0, the default, never
//	gap_ms	shortest time between two injections
//	ms	duration, for faults that delay
//	fired	number of injections so far
//
// The file session next to the directories limits all faults to the volume of that name. A verbs test has none.
package fault

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Point is the name of a fault.
type Point string

// The faults. Those of a connection may happen to each of its messages or RDMA operations.
const (
	Reject        Point = "reject"         // a client is rejected
	RecvDrop      Point = "recv_drop"      // a message of commands is ignored
	RecvDelay     Point = "recv_delay"     // it is processed late (ms)
	RecvCorrupt   Point = "recv_corrupt"   // a bit of data from an RDMA READ is flipped
	SendDrop      Point = "send_drop"      // a message of responses is not sent
	SendDuplicate Point = "send_duplicate" // it is sent twice
	SendCorrupt   Point = "send_corrupt"   // a bit of a READ's data is flipped after its CRC was computed
	PostFail      Point = "post_fail"      // a work request cannot be posted
	RegRefuse     Point = "reg_refuse"     // no registered memory for data is available
	KeepAliveLost Point = "keepalive_lost" // a KEEP_ALIVE is not answered
	Disconnect    Point = "disconnect"     // the connection is lost
	StoreStall    Point = "store_stall"    // the store is slow (ms)
	StoreShort    Point = "store_short"    // the store returns too little
	StoreRefresh  Point = "store_refresh"  // the store cannot read its size
	VerbsCorrupt  Point = "verbs_corrupt"  // a bit of each message in memory of a verbs test is flipped
)

var points = []Point{
	Reject, RecvDrop, RecvDelay, RecvCorrupt, SendDrop, SendDuplicate, SendCorrupt, PostFail, RegRefuse,
	KeepAliveLost, Disconnect, StoreStall, StoreShort, StoreRefresh, VerbsCorrupt,
}

// Faults injects the faults that the files in its directory ask for.
type Faults struct {
	dir   string
	mu    sync.Mutex
	state map[Point]*state
}

type state struct {
	asked, fired int // opportunities and injections
	last         time.Time
}

// New creates the files in a directory. All faults are off.
func New(dir string) (*Faults, error) {
	f := &Faults{dir: dir, state: map[Point]*state{}}
	for _, p := range points {
		f.state[p] = &state{}
		if err := os.MkdirAll(filepath.Join(dir, string(p)), 0o755); err != nil {
			return nil, err
		}
		for _, knob := range []string{"rate", "gap_ms", "ms", "fired"} {
			if err := os.WriteFile(f.path(p, knob), []byte("0\n"), 0o644); err != nil {
				return nil, err
			}
		}
	}
	return f, os.WriteFile(filepath.Join(dir, "session"), []byte("\n"), 0o644)
}

func (f *Faults) path(p Point, knob string) string { return filepath.Join(f.dir, string(p), knob) }

// knob reads a number from a file each time it is called: tests have few I/Os.
func (f *Faults) knob(p Point, name string) int {
	n, err := strconv.Atoi(read(f.path(p, name)))
	if err != nil {
		return 0 // the file is being written
	}
	return n
}

func read(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

// happens reports whether to inject a fault at this opportunity.
func (f *Faults) happens(p Point, volume string) bool {
	rate := f.knob(p, "rate")
	if rate <= 0 {
		return false
	}
	if only := read(filepath.Join(f.dir, "session")); only != "" && only != volume {
		return false
	}
	gap := time.Duration(f.knob(p, "gap_ms")) * time.Millisecond
	f.mu.Lock()
	defer f.mu.Unlock()
	s := f.state[p]
	if s.asked++; s.asked%rate != 0 || time.Since(s.last) < gap {
		return false
	}
	s.fired++
	s.last = time.Now()
	f.show(p, s.fired)
	return true
}

// show writes the number of injections. A reader never sees half of it.
func (f *Faults) show(p Point, fired int) {
	path := f.path(p, "fired")
	if os.WriteFile(path+".new", []byte(strconv.Itoa(fired)+"\n"), 0o644) == nil {
		_ = os.Rename(path+".new", path)
	}
}

// delay sleeps if the fault happens. It reads the duration first: a test may set it to 0 as soon as
// the counter has changed.
func (f *Faults) delay(p Point, volume string) {
	ms := f.knob(p, "ms")
	if f.happens(p, volume) {
		time.Sleep(time.Duration(ms) * time.Millisecond)
	}
}

func (f *Faults) corrupt(p Point, volume string, data []byte) {
	if f.happens(p, volume) {
		data[0] ^= 1
	}
}

func injected(p Point) error { return fmt.Errorf("injected fault %s", p) }
