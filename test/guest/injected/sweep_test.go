// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package injected injects faults into the client, the module's target (kmod/lib/fault.h) and the bridge (package
// bridge/fault) under writes that are logged: the store must hold each acknowledged write.
package injected

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/disk/rawio"
	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
	"krping/test/internal/late"
	"krping/test/internal/soak"
)

const (
	port     = 9970
	patience = 90 * time.Second
)

// the least number of times that a fault happens.
const times = 3

// knobs is the directory with the files that control the faults of a program.
type knobs string

// setting is that of a fault; fields that are not set are 0.
type setting struct {
	name            string
	rate, gapMS, ms int
}

func (k knobs) write(t *testing.T, fault, knob string, value int) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(k), fault, knob), []byte(strconv.Itoa(value)), 0); err != nil {
		t.Fatal(err)
	}
}

// set writes the rate last, and clear clears only the rate: a fault never happens without its gap.
func (k knobs) set(t *testing.T, s setting) {
	t.Helper()
	k.write(t, s.name, "ms", s.ms)
	k.write(t, s.name, "gap_ms", s.gapMS)
	k.write(t, s.name, "rate", s.rate)
}

func (k knobs) clear(t *testing.T, name string) {
	t.Helper()
	k.write(t, name, "rate", 0)
}

func (k knobs) fired(t *testing.T, name string) int {
	t.Helper()
	return guest.Number(t, filepath.Join(string(k), name, "fired"))
}

// limit restricts faults to the session or volume of a name; "" is all.
func (k knobs) limit(t *testing.T, session string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(string(k), "session"), []byte(session+"\n"), 0); err != nil {
		t.Fatal(err)
	}
}

// A point is a fault and how it is provoked. Corrupt data is sent a second time, which must succeed: so that fault has a
// gap.
type point struct {
	setting
	with []setting // needed to reach the fault
	idle bool      // happens only without I/O
	lost bool      // costs the connection
}

// targets are the two targets, each with a client of the module.
var targets = []struct {
	name         string
	start        func(t *testing.T) path
	points       []point
	short, stall string // faults of the store
}{
	{"module", module, modulePoints, "target_store_short", "target_store_stall"},
	{"bridge", bridge, bridgePoints, "store_short", "store_stall"},
}

func TestFaults(t *testing.T) {
	for _, target := range targets {
		t.Run(target.name, func(t *testing.T) { target.start(t).sweepAll(t, target.points) })
	}
}

func TestShortReads(t *testing.T) {
	for _, target := range targets {
		t.Run(target.name, func(t *testing.T) { target.start(t).shortReads(t, target.short) })
	}
}

func TestNewSession(t *testing.T) {
	for _, target := range targets {
		t.Run(target.name, func(t *testing.T) { target.start(t).newSession(t, target.stall) })
	}
}

// A path is a device and the faults between it and its store.
type path struct {
	knobs
	dev, store string
}

func session(t *testing.T, key string) string { return guest.Session(t, "vol0")[key] }

func number(t *testing.T, key string) int {
	t.Helper()
	n, err := strconv.Atoi(session(t, key))
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

// sweepAll provokes one fault after another. The writer sees none of them, and nothing is lost.
func (p path) sweepAll(t *testing.T, points []point) {
	t.Helper()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	acked, err := acklog.NewLog(seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	var table soak.Table
	t.Cleanup(func() { fmt.Print(table.String()) })
	for _, at := range points {
		t.Run(at.name, func(t *testing.T) { p.sweep(t, at, acked, table.Row(at.name)) })
	}
	if n := number(t, "errors"); n != 0 {
		t.Errorf("errors=%d: %v", n, guest.Session(t, "vol0"))
	}
}

// sweep writes while the fault happens, and checks the store.
func (p path) sweep(t *testing.T, at point, acked *acklog.Log, row *soak.Row) {
	before, reconnects, fired := acked.Acked(), number(t, "reconnects"), p.fired(t, at.name)
	logged := guest.Run(t, "dmesg")
	run, err := acklog.Load{Path: p.dev, Workers: 4, FsyncOne: 50, ReadOne: 3, MaxLength: 64 << 10, Limit: patience}.Start(acked)
	if err != nil {
		t.Fatal(err)
	}
	stop := func() error {
		_, err := run.Stop()
		return err
	}
	defer stop() //nolint:errcheck // of a test that has failed
	for _, s := range append(at.with, at.setting) {
		p.set(t, s)
		defer p.clear(t, s.name)
	}
	if at.idle {
		if err := stop(); err != nil {
			t.Fatalf("the writer got %v", err)
		}
	}
	enough := times
	if at.idle || testing.Short() {
		enough = 1
	}
	guest.Eventually(t, patience, fmt.Sprintf("%s happens %d times", at.name, enough), func() bool {
		return !at.idle && run.Ended() || p.fired(t, at.name)-fired >= enough
	})
	if at.lost {
		guest.Eventually(t, patience, "the connection is lost", func() bool {
			return number(t, "reconnects") > reconnects || at.idle && session(t, "state") == "reconnecting"
		})
	}
	for _, s := range append(at.with, at.setting) {
		p.clear(t, s.name)
	}
	over, went := time.Now(), acked.Acked()
	guest.Eventually(t, patience, "the session is live", func() bool { return session(t, "state") == "live" })
	if !at.idle {
		guest.Eventually(t, patience, "I/O makes progress", func() bool { return acked.Acked() > went+10 || run.Ended() })
		row.Resumed = max(row.Resumed, time.Since(over))
		if err := stop(); err != nil {
			if errors.As(err, new(*acklog.HungError)) {
				row.Hung++
				err = fmt.Errorf("%w%s", err, guest.BlockedTasks())
			}
			t.Fatalf("the writer got %v; session: %v", err, guest.Session(t, "vol0"))
		}
	}
	row.Times += p.fired(t, at.name) - fired
	row.Acked += acked.Acked() - before
	if got := number(t, "reconnects") - reconnects; at.lost != (got > 0) {
		late.ErrorfIf(t, unansweredSince(t, logged), "the connection was lost %d times", got)
	}
	p.lookAnew(t)
	report, err := acked.CheckStore(p.store, acklog.Allow{})
	if err != nil {
		t.Fatal(err)
	}
	row.Lost, row.Corrupt = row.Lost+report.Lost, row.Corrupt+report.Corrupt
	if err := report.Err(); err != nil {
		t.Error(err)
	}
}

// lookAnew drops cached data of the store, so that it is read again.
func (p path) lookAnew(t *testing.T) {
	t.Helper()
	if strings.HasPrefix(p.store, "/dev/") {
		guest.Run(t, "blockdev", "--flushbufs", p.store)
	}
}

// write writes n bytes of a value to the beginning of a device.
func write(dev string, value byte, n int) error {
	device, err := rawio.Open(dev, os.O_WRONLY, true)
	if err != nil {
		return err
	}
	defer device.Close()
	buf, err := rawio.Buffer(n)
	if err != nil {
		return err
	}
	copy(buf, bytes.Repeat([]byte{value}, n))
	_, err = unix.Pwrite(int(device.Fd()), buf, 0)
	return err
}

// newSession stops a client while the store still carries out one of its writes, and starts another: what that one writes
// to the same place must be there in the end.
func (p path) newSession(t *testing.T, stall string) {
	t.Helper()
	const bytesOf = 4096
	fired := p.fired(t, stall)
	p.set(t, setting{name: stall, rate: 1, ms: 6000})
	old := make(chan error, 1)
	go func() { old <- write(p.dev, 1, bytesOf) }()
	guest.Eventually(t, patience, "the store carries out the write", func() bool { return p.fired(t, stall) > fired })
	p.clear(t, stall)
	began := time.Now()
	if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
		t.Fatal(err)
	}
	if err := <-old; err == nil {
		t.Error("the write of the stopped client succeeded")
	}
	if err := write(guest.Attach(t, port, ""), 2, bytesOf); err != nil {
		t.Fatal(err)
	}
	time.Sleep(time.Until(began.Add(8 * time.Second))) // the old write has ended by now
	p.lookAnew(t)
	store, err := os.Open(p.store)
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	buf := make([]byte, bytesOf)
	if _, err := io.ReadFull(store, buf); err != nil {
		t.Fatal(err)
	}
	if buf[0] != 2 {
		t.Errorf("in the end the store has the write of session %d: an acknowledged write was lost", buf[0])
	}
}

// shortReads makes the store return less than was asked for. The read fails and does not return other data. Sessions of
// another name have no faults.
func (p path) shortReads(t *testing.T, name string) {
	t.Helper()
	guest.Run(t, guest.Binary(t, "krpingctl"), "write", p.dev, "--direct", "--size", "1MiB", "--bs", "64KiB")
	device, err := rawio.Open(p.dev, os.O_RDONLY, true)
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	buf, err := rawio.Buffer(16 << 10)
	if err != nil {
		t.Fatal(err)
	}
	read := func() (failed int) {
		t.Helper()
		for i := range 60 {
			n, err := unix.Pread(int(device.Fd()), buf, int64(i%60)<<14)
			switch {
			case err == unix.EIO:
				failed++
			case err != nil || n != len(buf):
				t.Fatalf("%d bytes, %v", n, err)
			}
		}
		return failed
	}
	p.set(t, setting{name: name, rate: 10})
	for session, want := range map[string]bool{"other": false, "vol0": true, "": true} {
		p.limit(t, session)
		if got := read(); (got > 0) != want {
			t.Errorf("faults of %q: %d reads of 60 failed", session, got)
		}
	}
	p.clear(t, name)
	if got := read(); got != 0 {
		t.Errorf("%d reads failed without a fault", got)
	}
}
