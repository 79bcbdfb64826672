// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nomem

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/acklog"
)

const port = 9950

// attach makes a small session, so that few allocations are repeated.
func attach(t *testing.T, more string) string {
	t.Helper()
	return fmt.Sprintf("client,addr=%s,port=%d,block=vol0,queues=1,depth=2,timeout=60%s", guest.Addr(t), port, more)
}

// A client that gets no memory while it starts fails and leaves nothing behind, or copes without it.
func TestAttach(t *testing.T) {
	for _, mode := range []string{"", ",mode=tap,backing=ram:4M"} {
		t.Run(mode, func(t *testing.T) {
			setUp(t)
			guest.StartBridge(t, port, guest.StorePath(t), "4MiB")
			sweep(t, func(n int) bool {
				failed, err := failNthOf(t, n, attach(t, mode))
				if err != nil {
					nothingLeft(t, n, err)
					return failed
				}
				if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
					t.Errorf("allocation %d failed, then the stop did: %v", n, err)
				}
				return failed
			})
		})
	}
}

// A stop succeeds even without memory.
func TestStop(t *testing.T) {
	setUp(t)
	guest.StartBridge(t, port, guest.StorePath(t), "4MiB")
	sweep(t, func(n int) bool {
		guest.Attach(t, port, ",queues=1,depth=2")
		failed, err := failNthOf(t, n, "stop,block=vol0")
		if err != nil {
			if err := guest.Command("stop,block=vol0,force", guest.Limit); err != nil {
				t.Errorf("allocation %d failed, then the second stop did: %v", n, err)
			}
		}
		nothingLeft(t, n, err)
		return failed
	})
}

// The start and stop of a volume.
func TestServe(t *testing.T) {
	setUp(t)
	serve := guest.ServeCommand(t, "vol0", port, "backing=ram:1M")
	for _, test := range []string{"serve", "stop"} {
		t.Run(test, func(t *testing.T) {
			sweep(t, func(n int) bool {
				begin, end := n, 1<<20
				if test == "stop" {
					begin, end = end, begin
				}
				failed, err := failNthOf(t, begin, serve)
				if err != nil {
					if guest.Volume(t, "vol0") != nil {
						t.Errorf("allocation %d failed: %v, but there is a volume", n, err)
					}
					return failed
				}
				failedToo, err := failNthOf(t, end, "stop,target,block=vol0")
				if err == nil {
					return failed || failedToo
				}
				if err := guest.Command("stop,target,block=vol0", guest.Limit); err != nil {
					t.Errorf("allocation %d failed, then the second stop did: %v", n, err)
				}
				return failed || failedToo
			})
		})
	}
}

// Pings and measurements of a client.
func TestPing(t *testing.T) {
	for _, test := range []string{"validate", "rlat", "bw,txdepth=4"} {
		t.Run(test, func(t *testing.T) {
			setUp(t)
			sweep(t, func(n int) bool {
				server := guest.StartServer(t, fmt.Sprintf("server,addr=%s,port=%d,size=8192,timeout=2,%s", guest.Addr(t), port, test))
				failed, err := failNthOf(t, n, fmt.Sprintf("client,addr=%s,port=%d,count=3,size=8192,timeout=2,%s", guest.Addr(t), port, test))
				if err != nil && !failed {
					t.Errorf("no allocation failed, but the command did: %v", err)
				}
				if err != nil { // the server may still wait for its client
					_ = guest.Command(fmt.Sprintf("client,addr=%s,port=%d,count=1,size=8192,timeout=2,%s", guest.Addr(t), port, test), guest.Limit)
				}
				<-server
				guest.NoThreads(t)
				return failed
			})
		})
	}
}

// target serves the volume of a load.
type target struct {
	name  string
	start func(t *testing.T, store string) (kill func())
}

var targets = []target{
	{"bridge", func(t *testing.T, store string) func() {
		return guest.StartBridge(t, port, store, "16MiB").Kill
	}},
	{"kernel", func(t *testing.T, store string) func() {
		disk := loopOf(t, store)
		insist(t, guest.ServeCommand(t, "vol0", port, "backing="+disk+",uuid=123e4567-e89b-12d3-a456-426614174000")) // a loop device has none
		served := true
		end := func() {
			if served {
				served = false
				insist(t, "stop,target,block=vol0")
				guest.Run(t, "losetup", "-d", disk)
			}
		}
		t.Cleanup(end)
		return end
	}},
}

// insist repeats a command until there is memory for it.
func insist(t *testing.T, command string) {
	t.Helper()
	guest.Eventually(t, 20*time.Second, command, func() bool {
		err := guest.Command(command, guest.Limit)
		if err != nil && !errors.Is(err, unix.ENOMEM) {
			t.Fatalf("%s: %v", command, err)
		}
		return err == nil
	})
}

func loopOf(t *testing.T, store string) string {
	t.Helper()
	guest.Run(t, "sh", "-c", "modprobe loop; test -e "+store+" || truncate -s 16M "+store)
	out := guest.Run(t, "losetup", "-f", "--show", "--direct-io=off", store)
	return out[:len(out)-1]
}

const patience = time.Minute

// loads are the disks of TestLoad: volumes of both targets, and a tap, whose local disk is in memory.
var loads = []struct {
	target target
	mode   string // and its backing
	needs  bool   // allocates memory under load: a client of a bridge has allocated all that it needs
}{
	{targets[0], "", false},
	{targets[1], "", true},
	{targets[0], ",mode=tap,backing=ram:16M", true},
}

// failing makes a percentage of the module's allocations fail while do runs. If the load needs memory, it continues until
// one of the first kind has failed: otherwise the phase would prove nothing.
func failing(t *testing.T, percent int, some bool, when string, do func(), injectors ...string) {
	t.Helper()
	failOurs(t, percent, injectors...)
	do()
	if some {
		guest.Eventually(t, patience, "an allocation fails "+when, func() bool { return failed(t, injectors[0]) > 0 })
	}
	stop(t)
	for _, injector := range injectors {
		t.Logf("%d%% %s: %d of %s", percent, when, failed(t, injector), injector)
	}
}

// Allocations fail at random while the target is removed and brought back. I/O makes progress when there is memory again,
// and all acknowledged writes are kept.
func TestLoad(t *testing.T) {
	for _, test := range loads {
		t.Run(test.target.name+test.mode, func(t *testing.T) {
			setUp(t)
			seed := uint64(time.Now().UnixNano())
			t.Logf("seed %d", seed)
			rnd := rand.New(rand.NewPCG(seed, 0))
			log, err := acklog.NewLog(seed, nil)
			if err != nil {
				t.Fatal(err)
			}
			store := guest.StorePath(t)
			kill := test.target.start(t, store)
			dev := guest.Attach(t, port, ",queues=2,depth=16"+test.mode)
			load := acklog.Load{Path: dev, Limit: guest.Slow(patience), Workers: 4, FsyncOne: 10, ReadOne: 4}
			run, err := load.Start(log)
			if err != nil {
				t.Fatal(err)
			}
			session := func(key, value, when string) {
				t.Helper()
				guest.Eventually(t, patience, key+" is "+value+" "+when, func() bool { return guest.Session(t, "vol0")[key] == value })
			}
			progress := func(when string) {
				t.Helper()
				want := log.Acked() + 20
				guest.Eventually(t, patience, "I/O makes progress "+when, func() bool { return log.Acked() >= want || run.Ended() })
				if run.Ended() {
					_, err := run.Stop()
					t.Fatalf("the load ended %s: %v; session: %v", when, err, guest.Session(t, "vol0"))
				}
				session("state", "live", when)
			}
			for _, percent := range []int{1, 5, 20, 60} {
				progress("before")
				failing(t, percent, test.needs, "under load", func() {
					time.Sleep(guest.Slow(time.Second) + time.Duration(rnd.Int64N(int64(time.Second))))
				}, "failslab", "fail_page_alloc")
				progress(fmt.Sprintf("after %d%% failed", percent))

				failing(t, percent, true, "when the target goes", func() {
					kill()
					time.Sleep(time.Second)
				}, "failslab", "fail_page_alloc")
				failing(t, percent, true, "without the target", func() {}, "fail_page_alloc")
				kill = test.target.start(t, store)
				failing(t, percent, false, "while it connects again", func() { time.Sleep(guest.Slow(time.Second)) }, "failslab", "fail_page_alloc")
				progress(fmt.Sprintf("after a loss of the target with %d%% failing", percent))
				t.Logf("%d%%: %d writes acknowledged, session %v", percent, log.Acked(), guest.Session(t, "vol0"))
			}
			if _, err := run.Stop(); err != nil {
				t.Error(err)
			}
			check := func(store string) {
				t.Helper()
				report, err := log.CheckStore(store, acklog.Allow{})
				if err != nil {
					t.Fatal(err)
				}
				if err := report.Err(); err != nil {
					t.Errorf("%s: %v", store, err)
				}
			}
			if test.mode != "" {
				check(dev)
			}
			failOurs(t, 20, "failslab", "fail_page_alloc")
			insist(t, "stop,block=vol0,force")
			stop(t)
			kill()
			if test.mode == "" { // a tap may drop a copy, and logs that
				check(store)
			}
		})
	}
}

// A host that has run for long may have no four free pages next to each other, least of all while it writes out memory to
// this disk. A target is served, a session connects again, and another one is made. Two pages are what Soft-RoCE needs for
// a queue pair on this kernel, whose locks are large.
func TestFragmented(t *testing.T) {
	for _, target := range targets {
		t.Run(target.name, func(t *testing.T) {
			setUp(t)
			store := guest.StorePath(t)
			kill := target.start(t, store)
			dev := guest.Attach(t, port, ",queues=2,depth=16")
			set(t, "fail_page_alloc", "min-order", "2")
			failOurs(t, 100, "fail_page_alloc")
			kill()
			guest.SessionBecomes(t, "reconnecting")
			kill = target.start(t, store)
			guest.SessionBecomes(t, "live")
			for range 2 {
				guest.Fio(t, dev, "--rw=randrw", "--bsrange=512-128k", "--iodepth=16", "--io_size=4m", "--verify=crc32c")
				insist(t, "stop,block=vol0")
				dev = guest.Attach(t, port, ",queues=2,depth=16")
			}
			if n := failed(t, "fail_page_alloc"); n == 0 {
				t.Error("no large block of memory was refused")
			} else {
				t.Logf("%d large blocks of memory were refused", n)
			}
			insist(t, "stop,block=vol0")
			kill()
		})
	}
}

// A module that gets no memory in its init function is not loaded, and leaves nothing behind. Its own allocations are among
// the last of the load.
func TestLoadModule(t *testing.T) {
	setUp(t)
	guest.NoThreads(t)
	guest.Run(t, "rmmod", "rdma_krping")
	t.Cleanup(func() {
		if _, err := os.Stat("/proc/krping"); err != nil {
			guest.Run(t, "insmod", guest.Module(t))
		}
	})
	load := func(n int) (missing int, err error) {
		f, err := os.Open(guest.Module(t))
		if err != nil {
			t.Fatal(err)
		}
		defer f.Close()
		missing, err = failNth(t, n, func() error { return unix.FinitModule(int(f.Fd()), "", 0) })
		if err == nil {
			guest.Run(t, "rmmod", "rdma_krping")
		}
		return missing, err
	}
	const many = 1 << 20
	missing, err := load(many)
	if err != nil {
		t.Fatal(err)
	}
	refused := 0
	for n := many - missing; n > max(0, many-missing-100); n-- {
		if _, err := load(n); err != nil {
			refused++
		}
	}
	t.Logf("%d of the last 100 of %d allocations are needed", refused, many-missing)
	if refused == 0 {
		t.Error("no failed allocation prevented the load of the module")
	}
}
