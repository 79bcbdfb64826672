// SPDX-License-Identifier: Apache-2.0

//go:build lab

package lifecycle

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// A new neighbour on a veth pair answers within the call that asks for it, before ib_core waits for the answer. The client
// continues nevertheless and sends its connect request, which nobody receives. If a neighbour does not answer, the log
// says so.
func TestUnknownNeighbour(t *testing.T) {
	guest.Run(t, "ip", "netns", "add", "blue")
	defer guest.Run(t, "ip", "netns", "del", "blue")
	guest.Run(t, "ip", "link", "add", "veth7", "type", "veth", "peer", "name", "eth7", "netns", "blue")
	defer guest.Run(t, "ip", "link", "del", "veth7")
	guest.Run(t, "ip", "addr", "add", "10.6.0.1/24", "dev", "veth7")
	guest.Run(t, "ip", "link", "set", "veth7", "up")
	guest.Run(t, "ip", "-n", "blue", "addr", "add", "10.6.0.2/24", "dev", "eth7")
	guest.Run(t, "ip", "-n", "blue", "link", "set", "eth7", "up")
	guest.MustKrpingctl(t, "link", "add", "rxe7", "--netdev", "veth7")
	defer guest.Run(t, "rdma", "link", "del", "rxe7")

	connect := func(addr string) (sent int) {
		t.Helper()
		const counter = "/sys/class/infiniband/rxe7/ports/1/hw_counters/sent_pkts"
		before := guest.Number(t, counter)
		err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,count=1,timeout=3", addr, port), guest.Limit)
		if !errors.Is(err, unix.ETIMEDOUT) {
			t.Errorf("%s: %v, want %v", addr, err, unix.ETIMEDOUT)
		}
		return guest.Number(t, counter) - before
	}
	// This one first: the other call's last message, which cancels its request, may leave after the call has returned.
	if sent := connect("10.6.0.3"); sent != 0 {
		t.Errorf("%d packets were sent to the neighbour that did not answer", sent)
	}
	if connect("10.6.0.2") == 0 {
		t.Error("no connect request was sent to the neighbour that answered")
	}
	if log := guest.Run(t, "dmesg"); !strings.Contains(log, "the address does not answer") {
		t.Error("the log does not say that the address does not answer")
	}
}
