// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/hold"
	"krping/test/internal/needs"
)

// Bytes of a hello.
const (
	helloVersion  = 4
	helloTest     = 5
	helloFlags    = 6
	helloReserved = 7
)

// changedHello is a hello with one changed byte.
func changedHello(at int, value byte) []byte {
	hello := kinds[""].Append(nil)
	hello[at] = value
	return hello
}

func hello(h wire.TestHello) []byte { return h.Append(nil) }

// wantRejected checks that the server rejects a client with a reason.
func wantRejected(t *testing.T, addr netip.AddrPort, private []byte, reason wire.Reason, value uint32) {
	t.Helper()
	_, err := dial(t, addr, private)
	fakeclient.WantRejected(t, "hello", err, reason, value)
}

// badHello is a hello and the reason why it is rejected.
type badHello struct {
	name   string
	hello  []byte
	reason wire.Reason
	value  uint32
}

// badHellos are rejected by each ping server that accepts at most 4096 bytes.
var badHellos = []badHello{
	{"version 0", changedHello(helloVersion, 0), wire.RejectVersion, 1},
	{"version 255", changedHello(helloVersion, 255), wire.RejectVersion, 1},
	{"unknown flag", changedHello(helloFlags, 0x80), wire.RejectInvalid, 0},
	{"all flags", changedHello(helloFlags, 0xff), wire.RejectInvalid, 0},
	{"reserved field", changedHello(helloReserved, 1), wire.RejectInvalid, 0},
	{"unknown test", changedHello(helloTest, 200), wire.RejectTest, uint32(wire.TestPing)},
	{"largest size", hello(wire.TestHello{Size: 0xffffffff, QPs: 1}), wire.RejectTestSize, size},
	{"one byte too many", hello(wire.TestHello{Size: size + 1, QPs: 1}), wire.RejectTestSize, size},
}

func TestBadHellos(t *testing.T) {
	guest.CheckResources(t)
	for _, tc := range append(badHellos,
		badHello{"another test", kinds[",rlat"].Append(nil), wire.RejectTest, uint32(wire.TestPing)},
		badHello{"0 connections", hello(wire.TestHello{Size: size}), wire.RejectQPs, 1},
		badHello{"65535 connections", hello(wire.TestHello{Size: size, QPs: 65535}), wire.RejectQPs, 1},
		badHello{"server_inv", hello(wire.TestHello{Size: size, QPs: 1, ServerInv: true}), wire.RejectServerInv, 0},
		badHello{"duplex", hello(wire.TestHello{Size: size, QPs: 1, Duplex: true}), wire.RejectDuplex, 0},
	) {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, addr := server(t, "")
			wantRejected(t, addr, tc.hello, tc.reason, tc.value)
			w.ends(t, unix.EPROTO)
		})
	}
}

// A client without a hello, or with one that the server does not recognize, is served.
func TestNoHello(t *testing.T) {
	guest.CheckResources(t)
	for name, private := range map[string][]byte{
		"nothing":       nil,
		"cut short":     kinds[""].Append(nil)[:3],
		"another magic": changedHello(0, 0xff),
		"noise":         []byte("\x00\xff\x01\xfe\x02\xfd\x03\xfc\x04\xfb\x05\xfa\x06\xf9\x07\xf8\x08\xf7"),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w, addr := server(t, "")
			p := connect(t, addr, private)
			take(p, pingSteps)
			p.Close()
			w.ends(t, nil)
		})
	}
}

// A server rejects another client while its second of three connections fails. The failure is held up before the
// first connection knows the reason.
func TestRejectWhileAConnectionFails(t *testing.T) {
	needs.Test(t, needs.EBPF)
	guest.CheckResources(t)
	const tries = 5
	for range tries {
		addr := nextAddr(t)
		w := write("server,addr=%s,port=%d,timeout=20,size=%d,bw,qps=3", addr.Addr(), addr.Port(), size)
		mine := wire.TestHello{Test: wire.TestBandwidth, Size: size, QPs: 3, Group: 7}
		other := mine
		other.Group++
		connect(t, addr, mine.Append(nil))
		second := connect(t, addr, mine.Append(nil))
		wantRejected(t, addr, other.Append(nil), wire.RejectBusy, 3)
		failure := hold.Call(t, "krping_conn_fail", 1, 3*time.Second)
		sent := make(chan struct{})
		go func() { // in a thread of its own: its CPU may be held up
			defer close(sent)
			_ = second.Send(make([]byte, 17), 0)
		}()
		guest.Eventually(t, 10*time.Second, "the second connection fails", failure.Began)
		_, err := dial(t, addr, other.Append(nil))
		meanwhile := failure.Holds()
		t.Logf("another client: %v", err)
		guest.EndsWith(t, (<-w.ended).err, ends(unix.EPROTO, unix.ECONNRESET))
		<-sent
		if meanwhile {
			return
		}
	}
	t.Errorf("no other client was rejected while the failure was held up, in %d tries", tries)
}

// Connection attempts of other clients do not keep a client from its second connection.
func TestOtherClientsBetweenConnections(t *testing.T) {
	guest.CheckResources(t)
	const options = ",bw,qps=2"
	other := kinds[options]
	other.Group++
	for i := range 5 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			w, addr := serverWithin(t, 20, options)
			first := connect(t, addr, kinds[options].Append(nil))
			var over atomic.Bool
			var dialling sync.WaitGroup
			for range 3 {
				dialling.Go(func() {
					for !over.Load() {
						if conn, _, err := fakeclient.DialConn(t, int(addr.Port()), other.Append(nil), config); err == nil {
							t.Error("another client was accepted")
							conn.Release()
						}
					}
				})
			}
			time.Sleep(guest.Slow(200 * time.Millisecond))
			second, _, err := fakeclient.DialConn(t, int(addr.Port()), kinds[options].Append(nil), config)
			over.Store(true)
			dialling.Wait()
			if err != nil {
				t.Errorf("the client's second connection: %v", err)
				first.disconnect()
				<-w.ended
				return
			}
			newPeer(t, second)
			first.disconnect()
			w.ends(t, nil)
		})
	}
}

// A server that waits for a client's second connection ends at its timeout, or with an error.
func TestMissingSecondConnection(t *testing.T) {
	guest.CheckResources(t)
	const options = ",bw,qps=2"
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, first *peer, addr netip.AddrPort)
		want error
	}{
		{"no second connection", func(*testing.T, *peer, netip.AddrPort) {}, unix.ETIMEDOUT},
		{"the first disconnects", func(_ *testing.T, first *peer, _ netip.AddrPort) { first.Close() }, unix.ECONNRESET},
		{"the second is of another client", func(t *testing.T, _ *peer, addr netip.AddrPort) {
			other := kinds[options]
			other.Group++
			wantRejected(t, addr, other.Append(nil), wire.RejectBusy, 2)
		}, unix.ETIMEDOUT},
		{"the second has another size", func(t *testing.T, _ *peer, addr netip.AddrPort) {
			other := kinds[options]
			other.Size++
			wantRejected(t, addr, other.Append(nil), wire.RejectTestSize, size)
		}, unix.EPROTO},
		{"the second sends nothing", func(t *testing.T, first *peer, addr netip.AddrPort) {
			connect(t, addr, kinds[options].Append(nil))
			take(first, testSteps)
		}, unix.ETIMEDOUT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			timeout := 2
			if tc.want == unix.EPROTO { // it does not end by its timeout
				timeout = 20
			}
			w, addr := serverWithin(t, timeout, options)
			tc.do(t, connect(t, addr, kinds[options].Append(nil)), addr)
			w.ends(t, tc.want)
		})
	}
}
