// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// inFlight returns how many reads and writes a disk has begun and not ended.
func inFlight(t *testing.T, disk string) (reads, writes int) {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("/sys/block", filepath.Base(disk), "inflight"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := fmt.Sscan(string(text), &reads, &writes); err != nil {
		t.Fatal(err)
	}
	return reads, writes
}

// However many commands that take long a client sends, the module carries out four digests and 16 others at a time. The
// two do not wait for each other, and other commands wait for neither.
func TestLongCommandsAreLimited(t *testing.T) {
	needs.Test(t, needs.Ends)
	const (
		each            = 60    // digests, and as many zeroes
		digests, ranges = 4, 16 // at a time
		volume          = 16 * mib
		part            = 4 * mib // of the disk; it stalls
	)
	disk, stall := guest.PartStalling(t, guest.NullDisk(t, "limited", nil), volume, part)
	served := targets.Module.Serve(t, targets.Config{Store: disk})
	hello := fakeclient.Hello(1, func(h *wire.Hello) { h.Depth = 2*each + 1 })
	config := fakeclient.Config
	config.Receives = int(hello.Depth) + 1
	c, err := fakeclient.Dial(t, served.Port, hello.Append(nil), config)
	if err != nil {
		t.Fatal(err)
	}
	stall(true)
	defer stall(false) // before the volume is stopped
	sent := 0
	send := func(op wire.Op, flags uint8, n int) {
		t.Helper()
		var requests []wire.Request
		for range n {
			r := fakeclient.Command(op, flags, 4096)
			r.Tag = uint16(sent)
			requests, sent = append(requests, r), sent+1
		}
		c.Post(requests...)
	}
	// One by one: if the kernel is slow to make threads for them, it gives one thread all commands that wait.
	for range digests {
		send(wire.OpDigest, wire.FlagInline, 1)
		guest.Eventually(t, 10*time.Second, "a digest is carried out", func() bool { reads, _ := inFlight(t, disk); return reads == sent })
	}
	for range ranges {
		send(wire.OpWriteZeroes, 0, 1)
		guest.Eventually(t, 10*time.Second, "zeroes are written", func() bool { _, writes := inFlight(t, disk); return writes == sent-digests })
	}
	send(wire.OpDigest, wire.FlagInline, each-digests)
	send(wire.OpWriteZeroes, 0, each-ranges)
	guest.Eventually(t, 10*time.Second, "all commands are in flight", func() bool {
		return guest.Volume(t, "vol0")["inflight"] == strconv.Itoa(2*each)
	})
	for range 10 { // none of the others begins
		time.Sleep(20 * time.Millisecond)
		if d, r := inFlight(t, disk); d != digests || r != ranges {
			t.Fatalf("%d digests and %d zeroes are being carried out, want %d and %d", d, r, digests, ranges)
		}
	}
	write := fakeclient.Write(2*each, part, make([]byte, 4096))
	if a := c.Call(write)[0]; a.Tag != write.Tag || a.Status != wire.StatusOK {
		t.Errorf("a write beside them: %+v", a)
	}
	stall(false)
	for _, a := range c.Answers(sent) {
		if a.Status != wire.StatusOK {
			t.Errorf("%+v", a)
		}
	}
	served.WantVolume(t, "inflight", "0", "digests", strconv.Itoa(each), "zeroes", strconv.Itoa(each), "errors", "0")
}

// A client has as many messages unanswered as it has promised, and a KEEP_ALIVE. The target takes all of them, each time.
func TestFewMessagesAreTaken(t *testing.T) {
	needs.Test(t, needs.Ends)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		disk, stall := guest.Stalling(t, guest.NullDisk(t, "few", nil), size)
		served := g.Serve(t, targets.Config{Store: disk})
		hello := fakeclient.Hello(1, func(h *wire.Hello) { h.Depth, h.Flags = 2*wire.FewMessages, wire.HelloFew })
		config := fakeclient.Config
		config.Receives = int(hello.Depth) + 1
		c, err := fakeclient.Dial(t, served.Port, hello.Append(nil), config)
		if err != nil {
			t.Fatal(err)
		}
		defer stall(false) // before the volume is stopped
		for range 3 {
			stall(true)
			for i := range uint16(wire.FewMessages) {
				c.Post(fakeclient.Write(2*i, 0, make([]byte, 4096)), fakeclient.Read(2*i+1, 4096, 4096))
			}
			c.Call(fakeclient.KeepAlive()) // which comes after all of them
			stall(false)
			for _, a := range c.Answers(int(hello.Depth)) {
				if a.Status != wire.StatusOK {
					t.Errorf("%+v", a)
				}
			}
		}
		served.WantVolume(t, "inflight", "0", "errors", "0", "violations", "0")
	})
}
