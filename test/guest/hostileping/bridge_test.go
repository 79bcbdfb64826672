// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"krping/bridge/wire"
	"krping/test/guest/internal/crowd"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

const bridgeTimeout = 10 * time.Second // of a client's step

// startBridge starts a krping-bridge and waits until it has answered a client.
func startBridge(t *testing.T, addr netip.AddrPort) *guest.Bridge {
	t.Helper()
	b := guest.StartPingBridge(t, int(addr.Port()), "--ping-max-size", fmt.Sprint(size))
	answers(t, addr)
	return b
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

// outlives has a new bridge meet clients, after which it serves a good one and has closed what was theirs.
func outlives(t *testing.T, clients func(t *testing.T, addr netip.AddrPort)) *guest.Bridge {
	t.Helper()
	leavesNothing(t)
	addr := address(t)
	b := startBridge(t, addr)
	before := openFiles(t, b.Cmd)
	t.Run("clients", func(t *testing.T) { clients(t, addr) })
	answers(t, addr)
	closesAll(t, b.Cmd, before)
	return b
}

// isEnded checks that the bridge ends the connection.
func (p *peer) isEnded() {
	p.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(guest.Slow(bridgeTimeout + 5*time.Second)):
		late.Errorf(p.t, "the bridge keeps the connection")
	}
}

func TestHostileClientsOfTheBridge(t *testing.T) {
	outlives(t, func(t *testing.T, addr netip.AddrPort) {
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
}

// As of a server in the kernel, a memory region of whose peer rxe may not let go of.
func TestImmediateDataToTheBridgeAgainAndAgain(t *testing.T) {
	outlives(t, func(t *testing.T, addr netip.AddrPort) {
		for i := range 100 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				p := connect(t, addr, kinds[",bw"].Append(nil))
				writeMessageLength(p)
				p.isEnded()
			})
		}
	})
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

const most = 256 // clients of the bridge

// dialTo is for a crowd.
func dialTo(t *testing.T, addr netip.AddrPort, private []byte) func(i int) (*peer, error) {
	return func(int) (*peer, error) { return dial(t, addr, private) }
}

// More than the bridge takes have to wait until another has ended.
func TestTooManyClientsOfTheBridge(t *testing.T) {
	leavesNothing(t)
	addr := address(t)
	startBridge(t, addr)
	private := kinds[",rlat"].Append(nil)
	t.Run("clients", func(t *testing.T) {
		peers := crowd.Dial(t, most+20, func(int) (*peer, error) {
			p, err := dial(t, addr, private)
			if err == nil {
				take(p, testSteps) // else it would soon be late
			}
			return p, err
		}, crowd.Busy(most))
		crowd.Filled(t, len(peers), most)
		peers[0].hangUp()
		guest.Eventually(t, bridgeTimeout, "the place is given to another", func() bool {
			p, err := dial(t, addr, private)
			if err == nil {
				p.hangUp()
			}
			return err == nil
		})
		for _, p := range peers[1:] {
			p.hangUp()
		}
	})
	answers(t, addr)
}

// As many as there are, which say nothing: each is refused, or taken and soon ended for another. The log has a few of
// them, not each.
func TestManySilentClientsOfTheBridge(t *testing.T) {
	var start time.Time
	b := outlives(t, func(t *testing.T, addr netip.AddrPort) {
		start = time.Now()
		peers := crowd.Dial(t, most+20, dialTo(t, addr, nil), crowd.Busy(most))
		if took := time.Since(start); len(peers) < most || len(peers) > most && took < bridgeTimeout {
			t.Errorf("%d clients were taken in %v, want %d each %v", len(peers), took, most, bridgeTimeout)
		}
		for _, p := range peers {
			p.isEnded()
		}
	})
	lines, limit := strings.Count(b.Log.String(), "ping client has ended"), 10*(int(time.Since(start)/(5*time.Second))+2)
	if lines < 1 || lines > limit {
		t.Errorf("the ends of %d clients are in the log, want 1 to %d", lines, limit)
	}
}
