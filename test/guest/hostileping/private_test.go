// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"fmt"
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// The longest private data of a connect request, a reject and an accept.
const (
	mostOfRequest = 56
	mostOfReject  = 148
	mostOfAccept  = 196
)

// cutHello returns the reject of a hello that is cut to n bytes, or nil. The transport pads with zeros: the cases are the
// ends of the fields, whose last bytes are zeros in the size and the group.
func cutHello(n int, sized, connections *wire.Reject) *wire.Reject {
	switch {
	case n < 4: // no magic: not taken for a hello
		return nil
	case n < 5:
		return &wire.Reject{Reason: wire.RejectVersion, Value: 1}
	case n < 11:
		return sized
	case n < 14:
		return connections
	}
	return nil
}

// A client with private data of any length is served, or rejected for what is missing.
func TestPrivateDataOfClients(t *testing.T) {
	guest.CheckResources(t)
	bridge := nextAddr(t)
	startBridge(t, bridge)
	noConnection := &wire.Reject{Reason: wire.RejectQPs, Value: 1}
	noByte := &wire.Reject{Reason: wire.RejectTestSize, Value: size}
	meet := func(t *testing.T, addr netip.AddrPort, private []byte, want *wire.Reject) {
		t.Helper()
		if want != nil {
			wantRejected(t, addr, private, want.Reason, want.Value)
			return
		}
		p := connect(t, addr, private)
		take(p, pingSteps)
		p.Close()
	}
	t.Run("clients", func(t *testing.T) {
		for _, n := range guest.Lengths(mostOfRequest) {
			private := guest.Fill(kinds[""].Append(nil), n)
			t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
				t.Parallel()
				want := cutHello(n, noConnection, noConnection)
				w, addr := server(t, "")
				meet(t, addr, private, want)
				if want != nil {
					w.ends(t, unix.EPROTO)
				} else {
					w.ends(t, nil)
				}
				meet(t, bridge, private, cutHello(n, noByte, nil))
			})
		}
	})
	wantAnswers(t, bridge)
}

// A client ignores the private data of the accept, whatever its length.
func TestPrivateDataOfAccepts(t *testing.T) {
	guest.CheckResources(t)
	for _, n := range guest.Lengths(mostOfAccept) {
		t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			t.Parallel()
			w, r := client(t, ",count=1,validate")
			conn, err := r.Accept(guest.Fill(nil, n), config)
			if err != nil {
				t.Fatal(err)
			}
			take(newPeer(t, conn), answerSteps)
			w.ends(t, nil)
		})
	}
}

// A rejected client ends, whatever the length of the private data.
func TestPrivateDataOfRejects(t *testing.T) {
	guest.CheckResources(t)
	reason := (&wire.Reject{Reason: wire.RejectTestSize, Value: 3}).Append(nil)
	for _, n := range guest.Lengths(mostOfReject) {
		t.Run(fmt.Sprintf("%d bytes", n), func(t *testing.T) {
			t.Parallel()
			w, r := client(t, pings)
			r.Reject(guest.Fill(reason, n))
			w.ends(t, unix.ECONNREFUSED)
		})
	}
}
