// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostile

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

const bridgeTimeout = 10 * time.Second // of a client's step

// startBridge starts a krping-bridge and waits until it has answered a client.
func startBridge(t *testing.T, addr netip.AddrPort) *exec.Cmd {
	t.Helper()
	cmd := guest.Start(t, guest.Binary(t, "krping-bridge"), "--ping", addr.String(), "--ping-max-size", fmt.Sprint(size))
	guest.Eventually(t, 20*time.Second, "the bridge listens", func() bool {
		return strings.Contains(guest.Run(t, "rdma", "resource", "show", "cm_id"), fmt.Sprintf(":%d ", addr.Port()))
	})
	answers(t, addr)
	return cmd
}

// answers checks that the bridge serves a good client.
func answers(t *testing.T, addr netip.AddrPort) {
	t.Helper()
	if err := guest.Command(fmt.Sprintf("client,addr=%s,port=%d,count=10,validate", addr.Addr(), addr.Port()), guest.Limit); err != nil {
		t.Errorf("a good client: %v", err)
	}
}

func openFiles(t *testing.T, cmd *exec.Cmd) int {
	t.Helper()
	files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", cmd.Process.Pid))
	if err != nil {
		t.Fatalf("the bridge has ended: %v", err)
	}
	return len(files)
}

// closesAll checks that the bridge is left with about as many open files as before.
func closesAll(t *testing.T, cmd *exec.Cmd, before int) {
	t.Helper()
	guest.Eventually(t, 2*bridgeTimeout, fmt.Sprintf("the bridge has about %d open files", before), func() bool {
		return openFiles(t, cmd) <= before+3
	})
}

// isEnded checks that the bridge ends the connection.
func (p *peer) isEnded() {
	p.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(bridgeTimeout + 5*time.Second):
		p.t.Error("the bridge keeps the connection")
	}
}

func TestHostileClientsOfTheBridge(t *testing.T) {
	leavesNothing(t)
	addr := address(t)
	cmd := startBridge(t, addr)
	before := openFiles(t, cmd)
	t.Run("clients", func(t *testing.T) {
		for _, tc := range []struct {
			name, options string
			lies          []lie
		}{
			{"ping", "", pingLies()},
			{"rlat", ",rlat", lentLies()},
			{"bw", ",bw", lentLies()},
		} {
			for _, lie := range tc.lies {
				t.Run(tc.name+"/"+lie.name, func(t *testing.T) {
					t.Parallel()
					p := connect(t, addr, kinds[tc.options].Append(nil))
					lie.do(p)
					p.isEnded()
				})
			}
		}
	})
	answers(t, addr)
	closesAll(t, cmd, before)
}

func TestBadHellosToTheBridge(t *testing.T) {
	leavesNothing(t)
	addr := address(t)
	startBridge(t, addr)
	for _, tc := range append(badHellos,
		badHello{"wlat", kinds[",wlat"].Append(nil), wire.RejectTest, uint32(wire.TestPing)},
		badHello{"duplex", kinds[",bw,duplex"].Append(nil), wire.RejectDuplex, 0},
		badHello{"no byte", hello(wire.TestHello{QPs: 1}), wire.RejectTestSize, size},
	) {
		t.Run(tc.name, func(t *testing.T) { refused(t, addr, tc.hello, tc.reason, tc.value) })
	}
	answers(t, addr)
}

// full checks that no more clients are taken. On a slow kernel some have been lost meanwhile, whose places are free.
func full(t *testing.T, addr netip.AddrPort, private []byte, most uint32) {
	t.Helper()
	for i := 0; i < int(most) && guest.Slow(1) > 1; i++ {
		if _, err := dial(t, addr, private); err != nil {
			break
		}
	}
	refused(t, addr, private, wire.RejectBusy, most)
}

// One more than the bridge takes has to wait until another has ended.
func TestTooManyClientsOfTheBridge(t *testing.T) {
	leavesNothing(t)
	addr := address(t)
	startBridge(t, addr)
	const most = 256
	private := kinds[",rlat"].Append(nil)
	peers := make(chan *peer, most)
	t.Run("clients", func(t *testing.T) {
		var dials errgroup.Group
		dials.SetLimit(8) // the listeners' backlogs are short
		for range most {
			dials.Go(func() error {
				p, err := dial(t, addr, private)
				if err == nil {
					take(p, testSteps) // else it would soon be late
					peers <- p
				}
				return err
			})
		}
		if err := dials.Wait(); err != nil {
			t.Fatal(err)
		}
		full(t, addr, private, most)
		p := <-peers
		p.hangUp()
		guest.Eventually(t, bridgeTimeout, "the place is given to another", func() bool {
			p, err := dial(t, addr, private)
			if err == nil {
				p.hangUp()
			}
			return err == nil
		})
		close(peers)
		for p := range peers {
			p.hangUp()
		}
	})
	answers(t, addr)
}

func TestManySilentClientsOfTheBridge(t *testing.T) {
	leavesNothing(t)
	addr := address(t)
	cmd := startBridge(t, addr)
	before := openFiles(t, cmd)
	t.Run("clients", func(t *testing.T) {
		peers := make(chan *peer, 200)
		var dials errgroup.Group
		dials.SetLimit(8) // the listeners' backlogs are short
		for range cap(peers) {
			dials.Go(func() error {
				p, err := dial(t, addr, nil)
				if err == nil {
					peers <- p
				}
				return err
			})
		}
		if err := dials.Wait(); err != nil {
			t.Fatal(err)
		}
		close(peers)
		for p := range peers {
			p.isEnded()
		}
	})
	answers(t, addr)
	closesAll(t, cmd, before)
}
