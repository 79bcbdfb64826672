// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// diskRequests are what a disk has carried out: see Documentation/block/stat.rst of Linux.
type diskRequests struct{ reads, readsMerged, writes, writesMerged int }

func requestsOf(t *testing.T, name string) (r diskRequests) {
	t.Helper()
	text, err := os.ReadFile("/sys/block/" + name + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	fields := strings.Fields(string(text))
	for i, n := range map[int]*int{0: &r.reads, 1: &r.readsMerged, 4: &r.writes, 5: &r.writesMerged} {
		if *n, err = strconv.Atoi(fields[i]); err != nil {
			t.Fatal(err)
		}
	}
	return r
}

// Commands of one message for adjacent blocks are one request of the disk, also of one that takes whole pages only.
func TestAdjacentCommandsShareARequest(t *testing.T) {
	needs.Test(t, needs.Ends)
	disk := guest.NullDisk(t, "nullb3", map[string]string{"virt_boundary": "1"})
	served := targets.Module.Serve(t, targets.Config{Store: disk, Writeback: true})
	c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1, func(h *wire.Hello) { h.Depth = 16 }))
	const commands = 7
	call := func(requests []wire.Request) []wire.Answer {
		t.Helper()
		answers := c.Call(requests...)
		for _, a := range answers {
			if a.Status != wire.StatusOK {
				t.Fatalf("%+v", a)
			}
		}
		return answers
	}
	block := func(i int) []byte { return bytes.Repeat([]byte{byte(i + 1)}, 4096) }
	var reads, writes []wire.Request
	for i := range commands {
		writes = append(writes, fakeclient.Write(uint16(i), uint64(i)*4096, block(i)))
		reads = append(reads, fakeclient.Read(uint16(i), uint64(i)*4096, 4096))
	}
	before := requestsOf(t, "nullb3")
	call(writes)
	for _, a := range call(reads) {
		if !bytes.Equal(a.Data, block(int(a.Tag))) {
			t.Errorf("block %d has other data", a.Tag)
		}
	}
	var got diskRequests
	guest.Eventually(t, guest.Limit, "all commands are counted", func() bool { // a request counts some time after its end
		after := requestsOf(t, "nullb3")
		got = diskRequests{after.reads - before.reads, after.readsMerged - before.readsMerged, after.writes - before.writes, after.writesMerged - before.writesMerged}
		return got.reads+got.readsMerged == commands && got.writes+got.writesMerged == commands
	})
	if want := (diskRequests{1, commands - 1, 1, commands - 1}); got != want {
		t.Errorf("requests of the disk: %+v, want %+v", got, want)
	}
}

// A READ of a bad block fails alone, although the disk got it in one request with its neighbours.
func TestBadBlockFailsAlone(t *testing.T) {
	needs.Test(t, needs.Ends)
	const commands, bad = 7, 3
	first := bad * 4096 / 512
	disk := guest.NullDisk(t, "nullb3", map[string]string{"badblocks": fmt.Sprintf("+%d-%d", first, first+4096/512-1)})
	served := targets.Module.Serve(t, targets.Config{Store: disk})
	c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1, func(h *wire.Hello) { h.Depth = 16 }))
	var reads []wire.Request
	for i := range commands {
		reads = append(reads, fakeclient.Read(uint16(i), uint64(i)*4096, 4096))
	}
	for _, a := range c.Call(reads...) {
		want := wire.StatusOK
		if a.Tag == bad {
			want = wire.StatusIO
		}
		if a.Status != want {
			t.Errorf("block %d: status %d, want %d", a.Tag, a.Status, want)
		}
	}
}
