// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"errors"
	"net/netip"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/verbs"
	"krping/bridge/wire"
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

// strange is a hello with one byte that is not right.
func strange(at int, value byte) []byte {
	hello := kinds[""].Append(nil)
	hello[at] = value
	return hello
}

func hello(h wire.TestHello) []byte { return h.Append(nil) }

// refused checks that the server rejects a client, and what it gives as a reason.
func refused(t *testing.T, addr netip.AddrPort, private []byte, reason wire.Reason, value uint32) {
	t.Helper()
	_, err := dial(t, addr, private)
	var rejected *verbs.RejectedError
	if !errors.As(err, &rejected) {
		t.Fatalf("%v, want a reject", err)
	}
	reject, err := wire.DecodeReject(rejected.Private)
	if err != nil || reject.Reason != reason || reject.Value != value {
		t.Errorf("%+v, %v, want reason %d, value %d", reject, err, reason, value)
	}
}

// A hello is refused, and with what reason.
type badHello struct {
	name   string
	hello  []byte
	reason wire.Reason
	value  uint32
}

// badHellos are what no server of pings takes that takes 4096 bytes.
var badHellos = []badHello{
	{"version 0", strange(helloVersion, 0), wire.RejectVersion, 1},
	{"version 255", strange(helloVersion, 255), wire.RejectVersion, 1},
	{"a flag that does not exist", strange(helloFlags, 0x80), wire.RejectInvalid, 0},
	{"all flags", strange(helloFlags, 0xff), wire.RejectInvalid, 0},
	{"the reserved field", strange(helloReserved, 1), wire.RejectInvalid, 0},
	{"a test that does not exist", strange(helloTest, 200), wire.RejectTest, uint32(wire.TestPing)},
	{"size of 4 GiB less one", hello(wire.TestHello{Size: 0xffffffff, QPs: 1}), wire.RejectTestSize, size},
	{"one byte too many", hello(wire.TestHello{Size: size + 1, QPs: 1}), wire.RejectTestSize, size},
}

func TestBadHellos(t *testing.T) {
	leavesNothing(t)
	for _, tc := range append(badHellos,
		badHello{"another test", kinds[",rlat"].Append(nil), wire.RejectTest, uint32(wire.TestPing)},
		badHello{"no connection", hello(wire.TestHello{Size: size}), wire.RejectQPs, 1},
		badHello{"65535 connections", hello(wire.TestHello{Size: size, QPs: 65535}), wire.RejectQPs, 1},
		badHello{"server_inv", hello(wire.TestHello{Size: size, QPs: 1, ServerInv: true}), wire.RejectServerInv, 0},
		badHello{"duplex", hello(wire.TestHello{Size: size, QPs: 1, Duplex: true}), wire.RejectDuplex, 0},
	) {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, addr := server(t, "")
			refused(t, addr, tc.hello, tc.reason, tc.value)
			w.ends(t, unix.EPROTO)
		})
	}
}

// A client that says nothing of its test, or nothing that a server understands, is served.
func TestNoHello(t *testing.T) {
	leavesNothing(t)
	for name, private := range map[string][]byte{
		"nothing":       nil,
		"cut":           kinds[""].Append(nil)[:3],
		"another magic": strange(0, 0xff),
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

// A server that waits for a client's third connection, refuses other clients meanwhile, and loses the
// second: who tells of that is held before the first one knows why.
func TestRefusesWhileAConnectionFails(t *testing.T) {
	needs.Test(t, needs.EBPF)
	leavesNothing(t)
	const tries = 5
	for range tries {
		addr := address(t)
		w := write("server,addr=%s,port=%d,timeout=20,size=%d,bw,qps=3", addr.Addr(), addr.Port(), size)
		mine := wire.TestHello{Test: wire.TestBandwidth, Size: size, QPs: 3, Group: 7}
		other := mine
		other.Group++
		connect(t, addr, mine.Append(nil))
		second := connect(t, addr, mine.Append(nil))
		refused(t, addr, other.Append(nil), wire.RejectBusy, 3)
		teller := hold.Call(t, "krping_conn_fail", 1, 3*time.Second)
		sent := make(chan struct{})
		go func() { // by a thread of its own: its CPU may be what is held
			defer close(sent)
			_ = second.Send(make([]byte, 17), 0)
		}()
		guest.Eventually(t, 10*time.Second, "the second connection fails", teller.Began)
		_, err := dial(t, addr, other.Append(nil))
		meanwhile := teller.Holds()
		t.Logf("another client: %v", err)
		guest.EndsWith(t, (<-w.ended).err, ends(unix.EPROTO, unix.ECONNRESET))
		<-sent
		if meanwhile {
			return
		}
	}
	t.Errorf("no other client was refused before the first connection knew why, in %d tries", tries)
}

// Others that knock all the time do not keep a client from its second connection.
func TestStrangersBetweenConnections(t *testing.T) {
	leavesNothing(t)
	const options = ",bw,qps=2"
	stranger := kinds[options]
	stranger.Group++
	for i := range 5 {
		t.Run(strconv.Itoa(i), func(t *testing.T) {
			w, addr := server(t, options)
			first := connect(t, addr, kinds[options].Append(nil))
			var over atomic.Bool
			var knocking sync.WaitGroup
			for range 3 {
				knocking.Go(func() {
					for !over.Load() {
						if conn, _, err := verbs.Dial(t.Context(), addr, stranger.Append(nil), config); err == nil {
							t.Error("a stranger is taken")
							conn.Release()
						}
					}
				})
			}
			time.Sleep(guest.Slow(200 * time.Millisecond))
			second, _, err := verbs.Dial(t.Context(), addr, kinds[options].Append(nil), config)
			over.Store(true)
			knocking.Wait()
			if err != nil {
				t.Errorf("the client's second connection: %v", err)
				first.hangUp()
				<-w.ended
				return
			}
			newPeer(t, second)
			first.hangUp()
			w.ends(t, nil)
		})
	}
}

// A server that waits for a client's second connection is not kept by the first.
func TestHalfAClient(t *testing.T) {
	leavesNothing(t)
	const options = ",bw,qps=2"
	for _, tc := range []struct {
		name string
		do   func(t *testing.T, first *peer, addr netip.AddrPort)
		want error
	}{
		{"no second connection", func(*testing.T, *peer, netip.AddrPort) {}, unix.ETIMEDOUT},
		{"the first hangs up", func(_ *testing.T, first *peer, _ netip.AddrPort) { first.Close() }, unix.ECONNRESET},
		{"the second is another client's", func(t *testing.T, _ *peer, addr netip.AddrPort) {
			other := kinds[options]
			other.Group++
			refused(t, addr, other.Append(nil), wire.RejectBusy, 2)
		}, unix.ETIMEDOUT},
		{"the second is of another size", func(t *testing.T, _ *peer, addr netip.AddrPort) {
			other := kinds[options]
			other.Size++
			refused(t, addr, other.Append(nil), wire.RejectTestSize, size)
		}, unix.EPROTO},
		{"the second says nothing", func(t *testing.T, first *peer, addr netip.AddrPort) {
			connect(t, addr, kinds[options].Append(nil))
			take(first, testSteps)
		}, unix.ETIMEDOUT},
	} {
		t.Run(tc.name, func(t *testing.T) {
			t.Parallel()
			w, addr := server(t, options)
			tc.do(t, connect(t, addr, kinds[options].Append(nil)), addr)
			w.ends(t, tc.want)
		})
	}
}
