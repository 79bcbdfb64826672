// SPDX-License-Identifier: Apache-2.0

// Package fault injects faults into the bridge, for tests. Only the build with the tag faults
// has it.
//
// Each fault has a directory with the same files as the module's faults (kmod/lib/fault.h):
//
//	rate	inject the fault at every n-th opportunity; 0, the default, never
//	gap_ms	shortest time between two injections
//	ms	duration, for faults that delay
//	fired	number of injections so far
//
// The file session next to the directories limits all faults to the volume of that name.
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

// A Point is where a fault happens.
type Point string

// The points. Those of the connection see each message or RDMA operation of it.
const (
	Reject        Point = "reject"         // a client is rejected
	RecvDrop      Point = "recv_drop"      // a message of commands is not looked at
	RecvDelay     Point = "recv_delay"     // it is looked at later (ms)
	RecvCorrupt   Point = "recv_corrupt"   // a bit of data is wrong that an RDMA READ has fetched
	SendDrop      Point = "send_drop"      // a message of responses is not sent
	SendDuplicate Point = "send_duplicate" // it is sent twice
	SendCorrupt   Point = "send_corrupt"   // a bit of a READ's data is wrong behind its CRC
	PostFail      Point = "post_fail"      // a work request cannot be posted
	RegRefuse     Point = "reg_refuse"     // there is no registered memory for data
	KeepAliveLost Point = "keepalive_lost" // a KEEP_ALIVE is not answered
	Disconnect    Point = "disconnect"     // the connection is lost
	StoreStall    Point = "store_stall"    // the store takes its time (ms)
	StoreShort    Point = "store_short"    // the store returns less than was asked for
	StoreRefresh  Point = "store_refresh"  // the store cannot say its size
)

var points = []Point{
	Reject, RecvDrop, RecvDelay, RecvCorrupt, SendDrop, SendDuplicate, SendCorrupt, PostFail, RegRefuse,
	KeepAliveLost, Disconnect, StoreStall, StoreShort, StoreRefresh,
}

// Faults are the points and their knobs.
type Faults struct {
	dir   string
	mu    sync.Mutex
	state map[Point]*state
}

type state struct {
	asked, fired int
	last         time.Time
}

// New makes the knobs in a directory.
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

// knob reads a file again each time that it is asked: a test has few I/Os.
func (f *Faults) knob(p Point, name string) int {
	n, err := strconv.Atoi(read(f.path(p, name)))
	if err != nil {
		return 0 // being written
	}
	return n
}

func read(path string) string {
	data, _ := os.ReadFile(path)
	return strings.TrimSpace(string(data))
}

// happens says whether it does now.
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

// show writes the counter so that who reads it never finds half of it.
func (f *Faults) show(p Point, fired int) {
	path := f.path(p, "fired")
	if os.WriteFile(path+".new", []byte(strconv.Itoa(fired)+"\n"), 0o644) == nil {
		_ = os.Rename(path+".new", path)
	}
}

// delay takes the time as it is before the counter tells a test, which may then set it to 0.
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

func failed(p Point) error { return fmt.Errorf("fault %s", p) }
