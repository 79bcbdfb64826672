// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"krping/agent/disk/verify"
	"krping/bridge/target"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

var modulePoints = []point{
	{setting: setting{name: "send_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "send_delay", rate: 5, ms: 20}},
	{setting: setting{name: "send_duplicate", rate: 10}, lost: true},
	{setting: setting{name: "send_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "recv_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "recv_duplicate", rate: 10}, lost: true},
	{setting: setting{name: "recv_early", rate: 3}},
	{setting: setting{name: "recv_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "post_fail", rate: 20}, lost: true},
	{setting: setting{name: "reg_refuse", rate: 3}},
	{setting: setting{name: "map_unfit", rate: 3}},
	{setting: setting{name: "alloc_fail", rate: 3}, with: []setting{{name: "disconnect", rate: 50}}, lost: true},
	{setting: setting{name: "keepalive_lost", rate: 1}, idle: true, lost: true},
	{setting: setting{name: "disconnect", rate: 20}, lost: true},
	{setting: setting{name: "target_reject", rate: 3}, with: []setting{{name: "disconnect", rate: 50}}, lost: true},
	{setting: setting{name: "target_recv_drop", rate: 20, gapMS: 5000}, lost: true},
	{setting: setting{name: "target_recv_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "target_send_corrupt", rate: 1, gapMS: 1000}},
	{setting: setting{name: "target_post_fail", rate: 20}, lost: true},
	{setting: setting{name: "target_alloc_fail", rate: 3}},
	{setting: setting{name: "target_keepalive_lost", rate: 1}, idle: true, lost: true},
	{setting: setting{name: "target_store_stall", rate: 10, ms: 300}},
	{setting: setting{name: "target_disconnect", rate: 20}, lost: true},
}

const faults knobs = "/sys/kernel/debug/krping/faults" // of the module

// load replaces the module by the one with fault injection, until the end of the test.
func load(t *testing.T) {
	t.Helper()
	faulty := filepath.Join(filepath.Dir(guest.Module(t))+"-faults", filepath.Base(guest.Module(t)))
	guest.Run(t, "rmmod", "rdma_krping")
	t.Cleanup(func() {
		guest.Run(t, "rmmod", "rdma_krping")
		guest.Run(t, "insmod", guest.Module(t))
	})
	guest.Run(t, "insmod", faulty)
}

// serve makes the module serve a disk as vol0, and attaches it.
func serve(t *testing.T, options string) path {
	t.Helper()
	disk := guest.NullDisk(t, "injected", nil)
	guest.Serve(t, "vol0", port, "backing="+disk)
	return path{faults, guest.Attach(t, port, options), disk}
}

func module(t *testing.T) path {
	t.Helper()
	load(t)
	return serve(t, ",queues=2,depth=32")
}

// A device with lower limits is used within them: a queue that is too large is refused, and large data takes more work
// requests, for which the target's queues grow as far as the limits allow.
func TestSmallDevice(t *testing.T) {
	load(t)
	entries := map[int]int{}
	for small, want := range map[int]error{0: unix.ECONNREFUSED, 1: unix.EINVAL} {
		t.Run(strconv.Itoa(small), func(t *testing.T) {
			faults.set(t, setting{name: "small_device", rate: small})
			defer faults.clear(t, "small_device")
			// Nobody listens: a client whose queue fits the device gets ECONNREFUSED.
			err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,bw,txdepth=1000,count=1", guest.Addr(t), port+1), guest.Limit)
			if !errors.Is(err, want) {
				t.Errorf("a queue of 1000 work requests: %v, want %v", err, want)
			}
			p := serve(t, "")
			entries[small] = largestQueue(t)
			guest.Fio(t, p.dev, "--rw=randwrite", "--bs=1m", "--iodepth=4", "--io_size=32m")
		})
	}
	t.Logf("entries of the largest completion queue: %d, of a small device %d", entries[0], entries[1])
	if entries[1] <= entries[0] {
		t.Error("large data takes no more work requests on a device with smaller ones")
	}
}

// Where memory has no large blocks, messages are in as many pieces as the device allows. Nothing else changes.
func TestFragmentedMemory(t *testing.T) {
	for _, small := range []int{0, 1} {
		t.Run(strconv.Itoa(small), func(t *testing.T) {
			load(t)
			faults.set(t, setting{name: "fragmented", rate: 1})
			faults.set(t, setting{name: "small_device", rate: small})
			p := serve(t, ",queues=2")
			if faults.fired(t, "fragmented") == 0 {
				t.Error("no large block of memory was refused")
			}
			check := func() {
				t.Helper()
				guest.Fio(t, p.dev, "--rw=randrw", "--bsrange=512-128k", "--iodepth=32", "--io_size=8m", "--verify=crc32c")
			}
			check()
			p.set(t, setting{name: "disconnect", rate: 20, gapMS: 1000})
			check()
			p.clear(t, "disconnect")
			if number(t, "reconnects") == 0 {
				t.Error("the session has not reconnected")
			}
			guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "crc_errors", "0")
		})
	}
}

// Clients that fill the memory for connections make the target reject others, and no more: those that are connected move
// large data, and there is room again when a client leaves.
func TestMemoryOfClients(t *testing.T) {
	before := guest.Run(t, "dmesg")
	load(t)
	faults.set(t, setting{name: "target_full", rate: 1})
	if err := guest.Command(guest.ServeCommand(t, "vol0", port, "shared,backing="+guest.NullDisk(t, "injected", nil)), guest.Limit); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { guest.StopServing(t, "vol0") })
	dev := guest.Attach(t, port, ",queues=2,depth=16")
	var clients []*fakeclient.Client
	for {
		hello := fakeclient.Hello(byte(1+len(clients)), func(h *wire.Hello) { h.Depth = 32 })
		c, err := fakeclient.Dial(t, port, hello.Append(nil), fakeclient.Small)
		if err != nil {
			fakeclient.WantRejected(t, "a client that does not fit", err, wire.RejectResources, 0)
			break
		}
		if clients = append(clients, c); len(clients) > 10 {
			t.Fatal("more than 16 MiB are in use")
		}
	}
	// At most 3 s may pass until a command is answered, also on the debug kernel.
	guest.Fio(t, dev, "--rw=randrw", "--bs=256k", "--iodepth=4", "--io_size=8m", "--verify=crc32c")
	if len(clients) < 2 {
		t.Fatalf("%d clients fit", len(clients))
	}
	clients[0].Close()
	guest.Eventually(t, patience, "another client is served", func() bool {
		c, err := fakeclient.Dial(t, port, fakeclient.Hello(99, func(h *wire.Hello) { h.Depth = 16 }).Append(nil), fakeclient.Small)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
	if n := number(t, "reconnects"); n != 0 {
		late.ErrorfIf(t, unansweredSince(t, before), "%d reconnects, want 0", n)
	}
	if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
		t.Error(err)
	}
}

// unansweredSince reports whether the kernel has logged, after what dmesg printed before, that a command or a KEEP_ALIVE
// was not answered in time: in a build with faults after 3 s, which a busy host may need.
func unansweredSince(t *testing.T, before string) bool {
	t.Helper()
	since := strings.TrimPrefix(guest.Run(t, "dmesg"), before)
	return strings.Contains(since, "was not answered in time") || strings.Contains(since, "the target was silent on queue")
}

// largestQueue returns the number of entries of the module's largest completion queue.
func largestQueue(t *testing.T) (largest int) {
	t.Helper()
	for line := range strings.Lines(guest.Run(t, "rdma", "resource", "show", "cq")) {
		_, rest, _ := strings.Cut(line, " cqe ")
		if n, err := strconv.Atoi(strings.SplitN(rest, " ", 2)[0]); err == nil && strings.Contains(line, "[rdma_krping]") {
			largest = max(largest, n)
		}
	}
	if largest == 0 {
		t.Fatal("the module has no completion queue")
	}
	return largest
}

// A session is stopped just when the resolution of its target's address has failed. The address is on a veth pair whose
// other end does not have it.
func TestStopWhileAddressIsUnresolved(t *testing.T) {
	const target = "10.7.0.1"
	load(t)
	guest.Run(t, "ip", "netns", "add", "blue")
	defer guest.Run(t, "ip", "netns", "del", "blue")
	guest.Run(t, "ip", "link", "add", "veth7", "type", "veth", "peer", "name", "eth7", "netns", "blue")
	defer guest.Run(t, "ip", "link", "del", "veth7")
	guest.Run(t, "ip", "-n", "blue", "link", "set", "eth7", "up")
	for _, addr := range []string{target, "10.7.0.9"} {
		guest.Run(t, "ip", "addr", "add", addr+"/24", "dev", "veth7")
	}
	guest.Run(t, "ip", "link", "set", "veth7", "up")
	guest.MustKrpingctl(t, "link", "add", "rxe7", "--netdev", "veth7")
	defer guest.Run(t, "rdma", "link", "del", "rxe7")
	command := func(format string, args ...any) {
		t.Helper()
		if err := guest.Command(fmt.Sprintf(format, args...), guest.Limit); err != nil {
			t.Fatal(err)
		}
	}
	command("server,addr=%s,port=%d,block=vol7,backing=ram:16M", target, port)
	defer command("stop,target,block=vol7")
	command("client,addr=%s,port=%d,block=vol7", target, port)

	guest.Run(t, "ip", "addr", "del", target+"/24", "dev", "veth7")
	guest.Run(t, "ip", "addr", "add", "10.7.0.9/24", "dev", "veth7") // a secondary address is removed with the first
	const point = "resolve_stall"
	faults.set(t, setting{name: point, rate: 1, ms: 3000})
	defer faults.clear(t, point)
	faults.set(t, setting{name: "disconnect", rate: 1})
	ended := make(chan error, 1)
	go func() { ended <- write("/dev/"+guest.Session(t, "vol7")["dev"], 1, 4096) }()
	// The resolution takes a second, and its failure is handled late.
	guest.Eventually(t, patience, "the address cannot be resolved", func() bool { return faults.fired(t, point) > 0 })
	faults.clear(t, "disconnect")
	command("stop,block=vol7,force")
	if err := guest.Within(t, guest.Limit, "the write ends", ended); err == nil {
		t.Error("a write succeeded although its target cannot be reached")
	}
	guest.NoResources(t)
}

// A target that disconnects right after its accept has still sent a welcome: the client reports a lost connection.
func TestTargetDisconnectsAfterAccept(t *testing.T) {
	load(t)
	t.Cleanup(func() { guest.NoResources(t) })
	const point, times = "connect_stall", 50
	faults.set(t, setting{name: point, rate: 1, ms: 50})
	defer faults.clear(t, point)
	faketarget.Listen(t, port+2, func(r *verbs.Request) {
		if conn, err := r.Accept(faketarget.Welcome.Append(nil), verbs.Config{Receives: 5, MaxMessage: 16384}); err == nil {
			// The client's CM may read two messages in the wrong order, and drops a reject before the accept.
			if err := conn.Probe(); err != nil {
				t.Errorf("the client's device does not answer: %v", err)
			}
			conn.Release()
		}
	}, func() {})
	for range times {
		err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,block=vol0,queues=1,depth=4", guest.Addr(t), port+2), guest.Limit)
		if !errors.Is(err, unix.ECONNRESET) {
			t.Errorf("a client of a target that disconnects: %v, want %v", err, unix.ECONNRESET)
		}
	}
	if fired := faults.fired(t, point); fired == 0 {
		t.Error("no welcome was read late")
	}
}

// A ping server whose client disconnects before the accept ends as after a ping.
func TestClientDisconnectsBeforeAccept(t *testing.T) {
	load(t)
	t.Cleanup(func() { guest.NoResources(t) })
	const point = "accept_stall"
	faults.set(t, setting{name: point, rate: 1, ms: 2000})
	defer faults.clear(t, point)
	addr := netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), port+3)
	ended := guest.StartServer(t, fmt.Sprintf("server,addr=%s,port=%d,timeout=100", addr.Addr(), addr.Port()))
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if conn, _, err := verbs.Dial(ctx, addr, nil, verbs.Config{Receives: 2, MaxMessage: 64}); err == nil {
		conn.Release()
		t.Error("the server accepted the client although it stalls")
	}
	if err := guest.Within(t, guest.Slow(20*time.Second), "the server ends", ended); err != nil {
		t.Errorf("the server: %v", err)
	}
}

// A disk keeps the limits of the device on which it was attached. On a device with lower limits it does not reconnect,
// and the log says why.
func TestReconnectOverSmallerDevice(t *testing.T) {
	p := module(t)
	defer p.clear(t, "small_device")
	p.set(t, setting{name: "small_device", rate: 1})
	p.set(t, setting{name: "disconnect", rate: 1})
	ended := make(chan error, 1)
	go func() { ended <- write(p.dev, 1, 4096) }()
	guest.Eventually(t, patience, "the log names the limit", func() bool {
		return strings.Contains(guest.Run(t, "dmesg"), " registers 256 pages ")
	})
	p.clear(t, "disconnect")
	if state := session(t, "state"); state != "reconnecting" {
		t.Errorf("the session is %s", state)
	}
	p.clear(t, "small_device")
	if err := guest.Within(t, patience, "the write ends", ended); err != nil {
		t.Error(err)
	}
}

// Commands on ranges and digests may take longer than reads and writes without the loss of the connection. In this build
// the limit is 3 s.
func TestLongCommands(t *testing.T) {
	p := module(t)
	const stall = "target_store_stall"
	dev, err := os.Open(p.dev)
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	asker, err := verify.NewTarget(dev)
	if err != nil {
		t.Fatal(err)
	}
	for name, do := range map[string]func() error{
		"WRITE_ZEROES": func() error {
			guest.Run(t, "timeout", "60", "blkdiscard", "--force", "--zeroout", "--length", "1MiB", p.dev) // --force: reads nothing
			return nil
		},
		"DIGEST": func() error {
			_, err := asker.SHA256(verify.Range{Length: 1 << 20})
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			fired, logged := p.fired(t, stall), guest.Run(t, "dmesg")
			p.set(t, setting{name: stall, rate: 1, ms: 5000})
			defer p.clear(t, stall)
			if err := do(); err != nil {
				t.Error(err)
			}
			if n, stalls := number(t, "reconnects"), p.fired(t, stall)-fired; n != 0 || stalls != 1 {
				late.ErrorfIf(t, unansweredSince(t, logged), "%d reconnects, %d stalls: want 0, 1", n, stalls)
			}
		})
	}
}

// Memory that does not fit a memory region as it is, as behind bounce buffers, is read and written through a copy.
func TestMemoryThatDoesNotFit(t *testing.T) {
	p := module(t)
	p.set(t, setting{name: "map_unfit", rate: 1})
	defer p.clear(t, "map_unfit")
	dev := guest.OpenDirect(t, p.dev)
	sizes := []int{20 << 10, 20<<10 + 512, 64 << 10, 64<<10 - 512, 1<<20 - 4096}
	for _, size := range sizes {
		want := guest.Aligned(t, size+512)[512:]
		_, _ = rand.Read(want) // never fails
		if _, err := dev.WriteAt(want, 4096); err != nil {
			t.Fatalf("write %d bytes: %v", size, err)
		}
		got := guest.Aligned(t, size+512)[512:]
		if _, err := dev.ReadAt(got, 4096); err != nil || !bytes.Equal(got, want) {
			t.Errorf("read %d bytes: %v, or other data than was written", size, err)
		}
	}
	if n := p.fired(t, "map_unfit"); n < 2*len(sizes) {
		t.Errorf("the memory of %d requests did not fit, want %d or more", n, 2*len(sizes))
	}
	if n := number(t, "errors"); n != 0 {
		t.Errorf("errors=%d", n)
	}
}

// The disk takes the data of a WRITE from its message, which no other message overwrites until then.
func TestDataStaysInItsMessage(t *testing.T) {
	const (
		stall   = "target_store_stall"
		depth   = 8
		stalled = depth / 2
		size    = target.MaxInline
	)
	load(t)
	p := serve(t, fmt.Sprintf(",queues=1,depth=%d", depth))
	dev := guest.OpenDirect(t, p.dev)
	want := guest.Aligned(t, stalled*size)
	_, _ = rand.Read(want) // never fails
	p.set(t, setting{name: stall, rate: 1, ms: 2000})
	ended := make(chan error, 1)
	var writes errgroup.Group
	for i := range stalled {
		writes.Go(func() error {
			_, err := dev.WriteAt(want[i*size:][:size], int64(i*size))
			return err
		})
		guest.Eventually(t, patience, "it stalls", func() bool { return p.fired(t, stall) == i+1 }) // each is alone in its message
	}
	go func() { ended <- writes.Wait() }()
	p.clear(t, stall)
	messages := 0
	for ; len(ended) == 0; messages++ {
		if _, err := dev.WriteAt(guest.Aligned(t, size), int64(len(want))); err != nil {
			t.Fatal(err)
		}
	}
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	if receives := depth + 2; messages <= receives {
		t.Errorf("%d messages came meanwhile, want more than %d, one for each receive", messages, receives)
	}
	got := guest.Aligned(t, len(want))
	if _, err := dev.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read: %v, or other data than was written", err)
	}
	if n := number(t, "reconnects"); n != 0 {
		t.Errorf("%d reconnects, want 0", n)
	}
}

// Inline data that the disk cannot take from its message waits there while the target has no memory. The target answers
// keep-alives meanwhile, and no other message gets into its buffer.
func TestInlineDataWaitsForMemory(t *testing.T) {
	const (
		fault = "target_alloc_fail"
		depth = 32
	)
	load(t)
	faults.set(t, setting{name: "fragmented", rate: 1}) // then the data is not contiguous, nor are the client's receives
	p, logged := serve(t, fmt.Sprintf(",queues=1,depth=%d,heartbeat=1", depth)), guest.Run(t, "dmesg")
	dev := guest.OpenDirect(t, p.dev)
	p.set(t, setting{name: fault, rate: 1})
	defer p.clear(t, fault)
	const waiting = depth - 1
	want := guest.Aligned(t, waiting*target.MaxInline)
	_, _ = rand.Read(want) // never fails
	var writes errgroup.Group
	for i := range waiting {
		writes.Go(func() error {
			at := i * target.MaxInline
			_, err := dev.WriteAt(want[at:][:target.MaxInline], int64(at))
			return err
		})
	}
	guest.Eventually(t, patience, "all writes wait", func() bool { return guest.Volume(t, "vol0")["inflight"] == strconv.Itoa(waiting) })
	began := time.Now()
	for range 2 * depth { // more messages than there are receives
		if _, err := dev.WriteAt(guest.Aligned(t, 4096), int64(len(want))); err != nil {
			t.Fatal(err)
		}
	}
	time.Sleep(time.Until(began.Add(1500 * time.Millisecond))) // more than heartbeat=1, less than a write may take
	p.set(t, setting{name: fault, rate: 2})
	if err := writes.Wait(); err != nil {
		t.Fatal(err)
	}
	got := guest.Aligned(t, len(want))
	if _, err := dev.ReadAt(got, 0); err != nil || !bytes.Equal(got, want) {
		t.Errorf("read: %v, or other data than was written", err)
	}
	guest.Fio(t, p.dev, "--rw=randrw", "--bsrange=4608-16k", "--iodepth=32", "--io_size=8m", "--verify=crc32c")
	guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "crc_errors", "0")
	if n := number(t, "reconnects"); n != 0 {
		late.ErrorfIf(t, unansweredSince(t, logged), "%d reconnects, want 0", n)
	}
}

// Large commands that share messages get their memory regions anew when a message is lost, late or repeated, or cannot be
// posted.
func TestFaultsOfSharedMessages(t *testing.T) {
	p := module(t)
	// The writes need some 16 messages.
	for _, s := range []setting{
		{name: "send_drop", rate: 5, gapMS: 5000},
		{name: "send_delay", rate: 5, ms: 20},
		{name: "send_duplicate", rate: 5, gapMS: 500},
		{name: "post_fail", rate: 5, gapMS: 500},
		{name: "reg_refuse", rate: 3},
		{name: "recv_drop", rate: 50, gapMS: 5000},
		{name: "recv_early", rate: 3},
		{name: "disconnect", rate: 5, gapMS: 500},
	} {
		t.Run(s.name, func(t *testing.T) {
			fired := p.fired(t, s.name)
			p.set(t, s)
			defer p.clear(t, s.name)
			guest.Fio(t, p.dev, "--rw=randwrite", "--bs=64k", "--io_size=32m", "--size=32m", "--iodepth=32", "--iodepth_batch=32",
				"--iodepth_batch_complete_min=32")
			if p.fired(t, s.name) == fired {
				t.Error("it never happened")
			}
		})
	}
	guest.WantFields(t, guest.Session(t, "vol0"), "errors", "0", "crc_errors", "0", "inflight", "0")
}
