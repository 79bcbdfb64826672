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
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
	"krping/test/internal/needs"
)

const bridgeTimeout = 10 * time.Second // for each step of a client

// startBridge starts a krping-bridge, and checks that it serves a client.
func startBridge(t *testing.T, addr netip.AddrPort) *guest.Bridge {
	t.Helper()
	b := guest.StartPingBridge(t, int(addr.Port()), "--ping-max-size", fmt.Sprint(size), "--ping-max-connections", fmt.Sprint(maxClients))
	wantAnswers(t, addr)
	return b
}

// wantAnswers checks that the bridge serves a client that keeps to the protocol.
func wantAnswers(t *testing.T, addr netip.AddrPort) {
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

// wantClosedFiles checks that the bridge has about as many open files as before.
func wantClosedFiles(t *testing.T, cmd *exec.Cmd, before int) {
	t.Helper()
	guest.Eventually(t, 2*bridgeTimeout, fmt.Sprintf("the bridge has about %d open files", before), func() bool {
		return openFiles(t, cmd) <= before+3
	})
}

// survives runs hostile clients against a new bridge. Then the bridge must serve a good client, and have closed the
// files of the others.
func survives(t *testing.T, clients func(t *testing.T, addr netip.AddrPort)) *guest.Bridge {
	t.Helper()
	guest.CheckResources(t)
	addr := nextAddr(t)
	b := startBridge(t, addr)
	before := openFiles(t, b.Cmd)
	t.Run("clients", func(t *testing.T) { clients(t, addr) })
	wantAnswers(t, addr)
	wantClosedFiles(t, b.Cmd, before)
	return b
}

// wantClosed checks that the bridge closes the connection.
func (p *peer) wantClosed() {
	p.t.Helper()
	select {
	case <-p.Done():
	case <-time.After(guest.Slow(bridgeTimeout + 5*time.Second)):
		late.Errorf(p.t, "the connection is still open")
	}
}

func TestHostileClientsOfTheBridge(t *testing.T) {
	needs.Test(t, needs.UserSpace)
	survives(t, func(t *testing.T, addr netip.AddrPort) {
		for _, tc := range []struct {
			name, options string
			wrong         []misbehaviour
		}{
			{"ping", "", pingMisbehaviour()},
			{"rlat", ",rlat", lentMisbehaviour()},
			{"bw", ",bw", lentMisbehaviour()},
		} {
			for _, m := range tc.wrong {
				t.Run(tc.name+"/"+m.name, func(t *testing.T) {
					t.Parallel()
					p := connect(t, addr, kinds[tc.options].Append(nil))
					m.do(p)
					p.wantClosed()
				})
			}
		}
	})
}

// TestImmediateDataRepeatedly with the bridge as the server.
func TestImmediateDataToTheBridgeRepeatedly(t *testing.T) {
	needs.Test(t, needs.UserSpace)
	survives(t, func(t *testing.T, addr netip.AddrPort) {
		for i := range 100 {
			t.Run(fmt.Sprint(i), func(t *testing.T) {
				t.Parallel()
				p := connect(t, addr, kinds[",bw"].Append(nil))
				writeMessageLength(p)
				p.wantClosed()
			})
		}
	})
}

func TestBadHellosToTheBridge(t *testing.T) {
	needs.Test(t, needs.UserSpace)
	guest.CheckResources(t)
	addr := nextAddr(t)
	startBridge(t, addr)
	for _, tc := range append(badHellos,
		badHello{"wlat", kinds[",wlat"].Append(nil), wire.RejectTest, uint32(wire.TestPing)},
		badHello{"duplex", kinds[",bw,duplex"].Append(nil), wire.RejectDuplex, 0},
		badHello{"size 0", hello(wire.TestHello{QPs: 1}), wire.RejectTestSize, size},
		badHello{"verbs without its parameters", hello(wire.TestHello{Test: wire.TestVerbs, Size: 64, QPs: 1}), wire.RejectInvalid, 0},
		badHello{"verbs of a large size", wire.VerbsHello{Size: size + 1, QPs: 1, Verb: wire.VerbWrite, QPType: wire.RC, Measure: wire.Bandwidth, TxDepth: 1, Signal: 1}.Append(nil), wire.RejectTestSize, size},
		badHello{"data queue pair of nobody", wire.VerbsHello{Size: 64, QPs: 1, Verb: wire.VerbWrite, QPType: wire.RC, Measure: wire.Bandwidth, TxDepth: 1, Signal: 1, Connection: 1}.Append(nil), wire.RejectInvalid, 0},
	) {
		t.Run(tc.name, func(t *testing.T) { wantRejected(t, addr, tc.hello, tc.reason, tc.value) })
	}
	wantAnswers(t, addr)
}

const maxClients = 256 // of a bridge

// dialTo returns a function for fakeclient.DialMany.
func dialTo(t *testing.T, addr netip.AddrPort, private []byte) func(i int) (*peer, error) {
	return func(int) (*peer, error) { return dial(t, addr, private) }
}

// The bridge rejects clients beyond its limit, until another disconnects.
func TestTooManyClientsOfTheBridge(t *testing.T) {
	needs.Test(t, needs.UserSpace)
	guest.CheckResources(t)
	addr := nextAddr(t)
	startBridge(t, addr)
	private := kinds[",rlat"].Append(nil)
	t.Run("clients", func(t *testing.T) {
		peers := fakeclient.DialMany(t, maxClients+20, func(int) (*peer, error) {
			p, err := dial(t, addr, private)
			if err == nil {
				take(p, testSteps) // so that the bridge does not time out
			}
			return p, err
		}, fakeclient.Busy(maxClients))
		fakeclient.WantAccepted(t, len(peers), maxClients)
		peers[0].disconnect()
		guest.Eventually(t, bridgeTimeout, "another client gets the place", func() bool {
			p, err := dial(t, addr, private)
			if err == nil {
				p.disconnect()
			}
			return err == nil
		})
		for _, p := range peers[1:] {
			p.disconnect()
		}
	})
	wantAnswers(t, addr)
}

// Clients that connect and send nothing: each is rejected, or accepted and disconnected after its timeout. A few of them
// are logged.
func TestManyIdleClientsOfTheBridge(t *testing.T) {
	needs.Test(t, needs.UserSpace)
	var start time.Time
	b := survives(t, func(t *testing.T, addr netip.AddrPort) {
		start = time.Now()
		peers := fakeclient.DialMany(t, maxClients+20, dialTo(t, addr, nil), fakeclient.Busy(maxClients))
		if took := time.Since(start); len(peers) < maxClients || len(peers) > maxClients && took < bridgeTimeout {
			t.Errorf("%d clients were accepted in %v, want %d in each %v", len(peers), took, maxClients, bridgeTimeout)
		}
		for _, p := range peers {
			p.wantClosed()
		}
	})
	lines, limit := strings.Count(b.Log.String(), "ping client has ended"), 10*(int(time.Since(start)/(5*time.Second))+2)
	if lines < 1 || lines > limit {
		t.Errorf("the log has the end of %d clients, want 1 to %d", lines, limit)
	}
}
