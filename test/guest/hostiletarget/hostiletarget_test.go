// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package hostiletarget tests the block client inside one VM against a target that breaks the protocol, fails, changes
// and disconnects. The client ends the connection and repeats its I/O; the target cannot access memory that was not
// lent to it.
package hostiletarget

import (
	"context"
	"crypto/rand"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"krping/bridge/wire"
	"krping/proc"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// Sizes in bytes.
const (
	capacity = faketarget.Capacity
	small    = faketarget.Small
	large    = faketarget.Large
)

const noKey = 0xdeadbeef // an rkey that no memory region has

// granting returns a changed welcome.
func granting(change func(w *wire.Welcome)) wire.Welcome {
	w := faketarget.Welcome
	change(&w)
	return w
}

// options returns those of the clients: keep-alive detects an unresponsive target soon.
func options() string {
	return fmt.Sprintf(",queues=1,depth=%d,heartbeat=%d", faketarget.Welcome.Depth, guest.Slow(2*time.Second)/time.Second)
}

// command returns the client's, with more options.
func command(t *testing.T, g *faketarget.Target, more string) string {
	t.Helper()
	return fmt.Sprintf("client,addr=%s,port=%d,block=vol0%s%s", guest.Addr(t), g.Port, options(), more)
}

// attach opens vol0's disk, and stops it at the end of the test without force.
func attach(t *testing.T, g *faketarget.Target, more string) *os.File {
	t.Helper()
	dev := guest.OpenDirect(t, guest.Attach(t, g.Port, options()+more))
	t.Cleanup(func() {
		_ = dev.Close()
		if guest.Session(t, "vol0") != nil {
			stopInTime(t, "")
		}
		isGone(t)
	})
	return dev
}

// stopInTime stops vol0's session, and checks that this takes three seconds at most.
func stopInTime(t *testing.T, options string) {
	t.Helper()
	start := time.Now()
	if err := guest.Command("stop,block=vol0"+options, guest.Limit); err != nil {
		t.Errorf("stop vol0: %v", err)
	}
	if took := time.Since(start); took > guest.Slow(3*time.Second) {
		late.Errorf(t, "stop took %v, want at most 3 s", took)
	}
}

// isGone checks that neither a session nor a disk is left. It stops a session that is, for the next test.
func isGone(t *testing.T) {
	t.Helper()
	if s := guest.Session(t, "vol0"); s != nil {
		t.Errorf("there is a session: %v", s)
		stopInTime(t, ",force")
	}
	if disks, _ := filepath.Glob("/sys/block/krping*"); disks != nil { // fails for bad patterns only
		t.Errorf("there is a disk: %v", disks)
	}
}

// counter returns a counter of the session.
func counter(t *testing.T, key string) int {
	t.Helper()
	n, err := strconv.Atoi(guest.Session(t, "vol0")[key])
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

// ioTime limits I/O during which the client reconnects.
const ioTime = 20 * time.Second

// read reads into a buffer of guest.Aligned.
func read(t *testing.T, dev *os.File, buf []byte, at int64) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := dev.ReadAt(buf, at)
		ended <- err
	}()
	return guest.Within(t, ioTime, "the read ends", ended)
}

func write(t *testing.T, dev *os.File, data []byte) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := dev.WriteAt(data, 0)
		ended <- err
	}()
	return guest.Within(t, ioTime, "the write ends", ended)
}

// random returns memory for direct I/O with random data.
func random(t *testing.T, n int) []byte {
	t.Helper()
	data := guest.Aligned(t, n)
	_, _ = rand.Read(data) // never fails
	return data
}

// kernelLog reads what the module logs from now on.
type kernelLog struct {
	*proc.Kmsg
	logged []string
}

// pause is how long the module takes to be allowed one more line: it logs ten lines of a kind in five seconds.
const pause = 550 * time.Millisecond

var nextLog time.Time

// openLog waits until the module may log that many lines again.
func openLog(t *testing.T, lines int) *kernelLog {
	t.Helper()
	time.Sleep(time.Until(nextLog))
	nextLog = time.Now().Add(time.Duration(lines) * pause)
	fs, err := proc.NewFS("/proc")
	if err != nil {
		t.Fatal(err)
	}
	kmsg, err := fs.OpenKmsg(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kmsg.Close() })
	return &kernelLog{Kmsg: kmsg}
}

// waitFor waits until the module logs a line about vol0 that contains the text.
func (k *kernelLog) waitFor(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guest.Slow(10*time.Second))
	defer cancel()
	for {
		m, err := k.Wait(ctx)
		if err != nil {
			t.Fatalf("the module does not log %q, but:\n%s", text, strings.Join(k.logged, "\n"))
		}
		if m.Subject != "vol0" {
			continue
		}
		if strings.Contains(m.Text, text) {
			return
		}
		k.logged = append(k.logged, m.Text)
	}
}
