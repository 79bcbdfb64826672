// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package lifecycle loads and unloads the module, attaches and stops sessions, and removes devices and callers, many times
// and at inconvenient moments.
package lifecycle

import (
	"bytes"
	"crypto/rand"
	"errors"
	"fmt"
	"testing"
	"time"

	mathrand "math/rand/v2"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
	"krping/test/internal/soak"
)

const port = 9960

// cycles returns how many times a cycle is repeated: more with -soak.
func cycles(t *testing.T, few, many int) int {
	t.Helper()
	if soak.Duration(t) > 0 {
		return many
	}
	return few
}

// The module is loaded, a disk attached, written, read and stopped, and the module unloaded. Neither memory nor RDMA
// resources are left.
func TestLoadAndUnload(t *testing.T) {
	guest.StartBridge(t, port, guest.StorePath(t), "16MiB")
	resources := guest.Resources(t) // those of the bridge
	data, read := guest.Aligned(t, 64<<10), guest.Aligned(t, 64<<10)
	cycle := func(t *testing.T) {
		guest.Run(t, "rmmod", "rdma_krping")
		guest.Run(t, "insmod", guest.Module(t))
		dev := guest.OpenDirect(t, guest.Attach(t, port, ",depth=16"))
		_, _ = rand.Read(data) // never fails
		if _, err := dev.WriteAt(data, 4096); err != nil {
			t.Fatal(err)
		}
		if _, err := dev.ReadAt(read, 4096); err != nil {
			t.Fatal(err)
		}
		if !bytes.Equal(data, read) {
			t.Fatal("the device returned other data than was written")
		}
		if err := dev.Close(); err != nil {
			t.Fatal(err)
		}
		stop(t, "vol0", "")
		guest.SameResources(t, resources)
	}
	for range 5 { // for what the kernel allocates once
		cycle(t)
	}
	n, before, start := cycles(t, 20, 1000), guest.Slab(t), time.Now()
	for range n {
		t.Run("", cycle)
		if t.Failed() {
			return
		}
	}
	guest.NoSlabGrowth(t, before, n)
	t.Logf("%d cycles of %v", n, (time.Since(start) / time.Duration(n)).Round(time.Millisecond))
}

func stop(t *testing.T, name, options string) {
	t.Helper()
	if err := guest.Command("stop,block="+name+options, guest.Limit); err != nil {
		t.Errorf("stop %s: %v", name, err)
	}
}

// A disk is attached, written, and stopped by force during the writes, many times, while another disk is written all the
// time. All acknowledged writes are kept.
func TestAttachAndDetachUnderLoad(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := mathrand.New(mathrand.NewPCG(seed, 0))
	store, other := guest.StorePath(t), t.TempDir()+"/vol1.img"
	guest.CreateStore(t, other, "4MiB")
	guest.StartBridge(t, port, store, "16MiB", "--volume", "vol1=file:"+other)
	steady := newLog(t, seed)
	dev := guest.Attach(t, port, ",queues=2,depth=32,heartbeat=0") // a slow machine is not a loss
	run := write(t, steady, dev)
	attach := fmt.Sprintf("client,addr=%s,port=%d,block=vol1,queues=2,depth=16", guest.Addr(t), port)
	come := newLog(t, seed+1)
	n := cycles(t, 20, 200)
	for range n {
		if err := guest.Command(attach, guest.Limit); err != nil {
			t.Fatalf("attach vol1: %v", err)
		}
		cut := write(t, come, "/dev/"+guest.Session(t, "vol1")["dev"])
		time.Sleep(time.Duration(rnd.Int64N(int64(300 * time.Millisecond))))
		stop(t, "vol1", ",force")
		guest.Within(t, 20*time.Second, "I/O ends when vol1 stops", cut.Done())
		if _, err := cut.Stop(); errors.As(err, new(*acklog.HungError)) {
			t.Fatalf("%v%s", err, guest.BlockedTasks())
		}
		check(t, come, other)
	}
	if _, err := run.Stop(); err != nil {
		t.Errorf("the writer of vol0 got %v%s", err, guest.BlockedTasks())
	}
	check(t, steady, store)
	t.Logf("attached and stopped %d times during %d acknowledged writes, and %d to the other disk", n, come.Acked(), steady.Acked())
	if s := guest.Session(t, "vol0"); s["errors"] != "0" || s["reconnects"] != "0" {
		t.Errorf("vol0 was disturbed: %v", s)
	}
	if come.Acked() == 0 {
		t.Error("nothing was written to vol1")
	}
}

// A volume is started and stopped while its RDMA device is removed and added.
func TestServeWhileDeviceIsRemoved(t *testing.T) {
	stopped := make(chan bool)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			guest.RemoveDevice(t)
			guest.AddDevice(t)
			select {
			case <-stopped:
				return
			default:
			}
		}
	}()
	served, refused := 0, 0
	for range cycles(t, 30, 300) {
		switch err := guest.Command(guest.ServeCommand(t, "vol2", port+1, "backing=ram:1M"), guest.Limit); {
		case err == nil:
			served++
			stop(t, "vol2", ",target")
		case errors.Is(err, unix.EADDRNOTAVAIL):
			refused++
		default:
			t.Errorf("serve: %v, want success or EADDRNOTAVAIL", err)
		}
	}
	close(stopped)
	<-ended
	t.Logf("served %d times, refused %d times", served, refused)
}

func newLog(t *testing.T, seed uint64) *acklog.Log {
	t.Helper()
	log, err := acklog.NewLog(seed, nil)
	if err != nil {
		t.Fatal(err)
	}
	return log
}

func write(t *testing.T, log *acklog.Log, dev string) *acklog.Run {
	t.Helper()
	run, err := acklog.Load{Path: dev, Workers: 4, FsyncOne: 20, ReadOne: 4, Limit: guest.Slow(time.Minute)}.Start(log)
	if err != nil {
		t.Fatal(err)
	}
	return run
}

func check(t *testing.T, log *acklog.Log, store string) {
	t.Helper()
	report, err := log.CheckStore(store, acklog.Allow{})
	if err != nil {
		t.Fatal(err)
	}
	if err := report.Err(); err != nil {
		t.Fatal(err)
	}
}
