// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package faults causes faults of the target and the network under writes that are logged: the store must hold each
// acknowledged write, whatever happened.
package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
	"krping/test/internal/late"
	"krping/test/internal/soak"
)

const (
	port = 9900

	// The documented limits, plus some time for an emulated machine with two slow CPUs: its bridge needs half a
	// second to start.
	resumeLimit = 3 * time.Second
	noticeLimit = 5 * time.Second
	stopLimit   = 2 * time.Second
	remakeLimit = 12 * time.Second // to make a Soft-RoCE device anew that makes no connections any more

	patience = 90 * time.Second // for steps that may wait for a timeout of the fabric
)

var slow = guest.Slow(1500 * time.Millisecond)

// rig is a bridge with a volume in a file, its block device, and a log of the writes to it.
type rig struct {
	t      *testing.T
	rnd    *rand.Rand
	store  string
	size   string
	more   []string // arguments of the bridge
	bridge *guest.Bridge
	dev    string
	log    *acklog.Log
	run    *acklog.Run
	row    *soak.Row
}

func newRig(t *testing.T, size, options string, more ...string) *rig {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	log, err := acklog.NewLog(seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{
		t: t, rnd: rand.New(rand.NewPCG(seed, 0)), store: guest.StorePath(t), size: size, more: more,
		log: log, row: &soak.Row{},
	}
	r.start()
	r.dev = guest.Attach(t, port, options)
	return r
}

// start starts the bridge, or starts it again on the same store.
func (r *rig) start() {
	r.t.Helper()
	r.bridge = guest.StartBridge(r.t, port, r.store, r.size, r.more...)
}

func (r *rig) state() string { return guest.Session(r.t, "vol0")["state"] }

func (r *rig) sleep(from, to time.Duration) {
	time.Sleep(from + time.Duration(r.rnd.Int64N(int64(to-from))))
}

func (r *rig) write(load acklog.Load) {
	r.t.Helper()
	load.Path, load.Limit = r.dev, patience
	if load.Workers == 0 {
		load.Workers = 4
	}
	run, err := load.Start(r.log)
	if err != nil {
		r.t.Fatal(err)
	}
	r.run = run
	r.t.Cleanup(func() { // ends with the device, which has been stopped by then
		if _, err := run.Stop(); err != nil {
			r.t.Log(err)
		}
	})
	r.progress(10)
}

// progress waits until n more writes are acknowledged.
func (r *rig) progress(n int) {
	r.t.Helper()
	want := r.log.Acked() + n
	guest.Eventually(r.t, patience, "I/O makes progress", func() bool { return r.log.Acked() >= want || r.run.Ended() })
	if r.run.Ended() {
		r.fail("the load ended: %v", r.stopped())
	}
}

// stopped stops the load and returns its error.
func (r *rig) stopped() error {
	_, err := r.run.Stop()
	var hung *acklog.HungError
	if errors.As(err, &hung) {
		r.row.Hung++
		err = fmt.Errorf("%w%s", err, guest.BlockedTasks())
	}
	return err
}

func (r *rig) fail(format string, args ...any) {
	r.t.Helper()
	r.t.Fatalf(format+"\nsession: %v", append(args, guest.Session(r.t, "vol0"))...)
}

// check compares the store with the log.
func (r *rig) check(flushed bool) {
	r.t.Helper()
	report, err := r.log.CheckStore(r.store, acklog.Allow{Unflushed: flushed})
	if err != nil {
		r.t.Fatal(err)
	}
	r.row.Lost += report.Lost
	r.row.Corrupt += report.Corrupt
	if err := report.Err(); err != nil {
		r.fail("%v", err)
	}
}

// resumed waits after a fault until I/O makes progress again, and returns how long that took.
func (r *rig) resumed() time.Duration {
	r.t.Helper()
	start, acked := time.Now(), r.log.Acked()
	guest.Eventually(r.t, patience, "the session is live and I/O makes progress", func() bool {
		return r.run.Ended() || r.log.Acked() > acked && r.state() == "live"
	})
	took := time.Since(start)
	r.row.Resumed = max(r.row.Resumed, took)
	if took > resumeLimit+slow {
		late.Errorf(r.t, "I/O resumed after %v, want at most %v", took.Round(time.Millisecond), resumeLimit)
	}
	return took
}
