// SPDX-License-Identifier: Apache-2.0

//go:build lab

package options

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
)

// 500 clients and their servers at the same time leave nothing behind. An emulated VM cannot connect 1000 in the time of
// a test. With -short there are 50.
func TestThousandThreads(t *testing.T) {
	parallel(t, batch) // for what the kernel allocates once and keeps
	before := kernelMemory(t)
	pairs := 500
	if testing.Short() {
		pairs = 50
	}
	parallel(t, pairs)
	grown := 0
	guest.Eventually(t, time.Minute, "the kernel has freed all memory but 1 MiB", func() bool {
		grown = kernelMemory(t) - before
		return grown <= 1024
	})
	t.Logf("%d kB before, %d kB more now", before, grown)
}

const (
	patience = 3 * time.Minute // the machine may be loaded
	batch    = 50              // connections that are set up at the same time; numbers of pairs are multiples of it
)

// parallel runs that many endless pings at the same time and stops them.
func parallel(t *testing.T, pairs int) {
	t.Helper()
	guest.NoThreads(t)
	fs := procFS(t)
	start := time.Now()
	took := func(what string) {
		t.Logf("%d pairs: %s after %v", pairs, what, time.Since(start).Round(100*time.Millisecond))
	}
	begin := func(role proc.Role, i int) *proc.Running {
		r, err := fs.Start(t.Context(), proc.Command{
			Role: role, Addr: netip.MustParseAddr(guest.Addr(t)), Port: uint16(20000 + i), Size: 64, Timeout: time.Hour,
		})
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	var servers, clients []*proc.Running
	for i := range pairs {
		servers = append(servers, begin(proc.Server, i))
	}
	guest.Eventually(t, patience, "the servers listen", func() bool {
		allRun(t, servers)
		return len(guest.Listeners(t)) == pairs
	})
	took("all listen")
	// rxe of 6.12 fails to set up about one connection in a thousand ("rxe_modify_qp: returned err = -22"): the command
	// fails, as it should, and is repeated.
	replaced := 0
	again := func(i int) {
		if replaced++; replaced > 5 {
			t.Fatal("too many commands ended before they were stopped")
		}
		for _, r := range []*proc.Running{clients[i], servers[i]} {
			r.Stop()
			_, err := r.Wait()
			t.Logf("a command ended before it was stopped: %v", err)
		}
		servers[i] = begin(proc.Server, i)
		guest.Eventually(t, patience, "the server listens again", func() bool {
			return guest.Listens(t, 20000+i)
		})
		clients[i] = begin(proc.Client, i)
	}
	for i := range pairs {
		clients = append(clients, begin(proc.Client, i))
		if len(clients)%batch == 0 {
			for j := i + 1 - batch; j <= i; j++ {
				for !giveWay(t, clients[j]) || !giveWay(t, servers[j]) {
					again(j)
				}
			}
		}
	}
	took(fmt.Sprintf("all ping, %d of them at the second try,", replaced))
	threads, err := fs.Threads() // it checks for the nine columns
	if err != nil {
		t.Fatal(err)
	}
	for _, thread := range threads {
		if thread.Device != guest.Device(t) || thread.RecvMsgs == 0 {
			t.Errorf("a thread does not ping: %+v", thread)
		}
	}
	if len(threads) != 2*pairs {
		t.Errorf("%d threads are listed, want %d", len(threads), 2*pairs)
	}

	for i := range pairs {
		clients[i].Stop()
		servers[i].Stop()
	}
	for _, r := range append(clients, servers...) {
		// What comes first: the signal or the end of the peer, between two pings or during one.
		if _, err := r.Wait(); err != nil && !errors.Is(err, unix.EINTR) && !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("%v, want none, EINTR or ECONNRESET", err)
		}
	}
	took("all have ended")
	guest.NoThreads(t)
	for line := range strings.Lines(guest.Run(t, "rdma", "resource", "show", "qp")) {
		if !strings.Contains(line, " type GSI ") && !strings.Contains(line, " type SMI ") {
			t.Errorf("a queue pair is left: %s", line)
		}
	}
}

// allRun fails if a command has ended before it was stopped.
func allRun(t *testing.T, running []*proc.Running) {
	t.Helper()
	for _, r := range running {
		select {
		case <-r.Done():
			_, err := r.Wait()
			t.Fatalf("ended without being stopped: %v", err)
		default:
		}
	}
}

// giveWay waits until the command has pinged, and then lowers the priority of its thread: endless pings leave little time
// to set up more connections. It does not do that earlier, since the set-up holds locks of the kernel. It returns false if
// the command has ended.
func giveWay(t *testing.T, r *proc.Running) (runs bool) {
	t.Helper()
	guest.Eventually(t, patience, "the command runs or ends", func() bool {
		select {
		case <-r.Done():
			return true
		default:
		}
		result, err := r.Result()
		runs = err == nil && result.Ops > 0 && unix.Setpriority(unix.PRIO_PROCESS, r.Thread(), 19) == nil
		return runs
	})
	return runs
}

// kernelMemory returns the kB in kmalloc, vmalloc and per-CPU memory, which drivers use. It leaves out what the kernel keeps
// for itself after many threads: stacks of workers and a pool of vmap areas.
func kernelMemory(t *testing.T) int {
	t.Helper()
	shrink, err := filepath.Glob("/sys/kernel/slab/*/shrink")
	if err != nil || len(shrink) == 0 {
		t.Fatalf("no slab caches to shrink: %v", err)
	}
	for _, path := range shrink { // so that the counts are exact
		_ = os.WriteFile(path, []byte("1"), 0)
	}
	info := meminfo(t)
	return kmallocKB(t) + info["VmallocUsed"] - info["KernelStack"] + info["Percpu"]
}

// kmallocKB sums lines of /proc/slabinfo: name, objects, all objects, size.
func kmallocKB(t *testing.T) int {
	t.Helper()
	sum := 0
	for _, fields := range table(t, "/proc/slabinfo") {
		if strings.HasPrefix(fields[0], "kmalloc-") {
			sum += number(t, fields[1]) * number(t, fields[3])
		}
	}
	if sum == 0 {
		t.Fatal("/proc/slabinfo has no kmalloc caches")
	}
	return sum / 1024
}

func meminfo(t *testing.T) map[string]int {
	t.Helper()
	values := map[string]int{}
	for _, fields := range table(t, "/proc/meminfo") {
		values[strings.TrimSuffix(fields[0], ":")] = number(t, fields[1])
	}
	return values
}

func table(t *testing.T, path string) [][]string {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var rows [][]string
	for line := range strings.Lines(string(data)) {
		rows = append(rows, strings.Fields(line))
	}
	return rows
}

func number(t *testing.T, text string) int {
	t.Helper()
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
