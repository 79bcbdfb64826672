// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"bytes"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/bridge/transport"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/faketarget"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

const denial = "remote access error"

// use is what a target does with an rkey after the response, which invalidates it.
type use func(c *faketarget.Conn, r transport.Remote) error

func readMemory(c *faketarget.Conn, r transport.Remote) error {
	_, err := c.Get(r, faketarget.Small)
	return err
}

func writeMemory(c *faketarget.Conn, r transport.Remote) error {
	return c.Put(r, make([]byte, faketarget.Small))
}

// useAfterResponse makes a target use the rkey of the next large write after the response, and returns the error.
func useAfterResponse(t *testing.T, g *faketarget.Target, dev string, use use) error {
	t.Helper()
	defer g.Behave()
	used := make(chan error, 1)
	g.Misbehave(faketarget.Misbehaviour{Op: wire.OpWrite, N: faketarget.Large, Do: func(c *faketarget.Conn, r wire.Request) bool {
		c.Answer(r)
		used <- use(c, faketarget.Remote(r))
		return true
	}})
	guest.MustKrpingctl(t, "write", dev, "--size", "256KiB", "--bs", "64KiB", "--direct")
	return guest.Within(t, 30*time.Second, "the rkey is used", used)
}

// wantDenied checks that the client's device refuses a use of an rkey. The client disconnects then: if the target sees
// the disconnect before the refusal, it is tried again.
func wantDenied(t *testing.T, what string, g *faketarget.Target, dev string, use use) {
	t.Helper()
	var err error
	for range 5 {
		err = useAfterResponse(t, g, dev, use)
		guest.SessionBecomes(t, "live")
		if err == nil || !strings.Contains(err.Error(), "RDMA_CM_EVENT_DISCONNECTED") {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), denial) {
		t.Errorf("%s: %v, want a %s", what, err, denial)
	}
}

// An rkey opens the memory of one command. After the response it is useless, on its connection and on others, and
// each command has another rkey.
func TestRkeysAreForOneCommand(t *testing.T) {
	guest.CheckResources(t)
	g := faketarget.Start(t, secret)
	dev := attach(t, g.Port, "--key-file", targets.KeyFile(t, secret), "--queues", "1")
	var rkeys []uint32
	g.Misbehave(faketarget.Misbehaviour{Op: wire.OpWrite, N: faketarget.Large, Do: func(c *faketarget.Conn, r wire.Request) bool {
		rkeys = append(rkeys, r.Rkey)
		c.Answer(r)
		return false
	}})
	guest.MustKrpingctl(t, "write", dev, "--size", "1MiB", "--bs", "32KiB", "--direct")
	g.Behave()
	if len(rkeys) < 32 {
		t.Fatalf("%d rkeys of 32 writes", len(rkeys))
	}
	slices.Sort(rkeys)
	if n := len(slices.Compact(slices.Clone(rkeys))); n != len(rkeys) {
		t.Errorf("%d rkeys for %d commands", n, len(rkeys))
	}

	var old transport.Remote
	wantDenied(t, "RDMA READ after the response", g, dev, func(c *faketarget.Conn, r transport.Remote) error {
		old = r
		return readMemory(c, r)
	})
	wantDenied(t, "RDMA WRITE after the response", g, dev, writeMemory)
	wantDenied(t, "rkey of an earlier connection", g, dev, func(c *faketarget.Conn, _ transport.Remote) error { return readMemory(c, old) })
	guest.MustKrpingctl(t, "verify", dev)
}

// A valid rkey works on the connection of the client that lent the memory, and on no other. With another client's
// rkey a target neither reads nor writes that client's memory.
func TestRkeysOfOtherClients(t *testing.T) {
	targets.Each(t, func(t *testing.T, target targets.Target) {
		s := serve(t, target, "")
		stored, own := bytes.Repeat([]byte("stored--"), 512), bytes.Repeat([]byte("owner's-"), 512)
		owner := fakeclient.Connect(t, s.Port, fakeclient.Hello(1))
		owner.Call(fakeclient.Write(2, 0, stored))
		memory := owner.LendData(own)
		for _, op := range []wire.Op{wire.OpRead, wire.OpWrite} {
			denied := func() bool {
				before := strings.Count(s.Log(), denial)
				intruder := fakeclient.Connect(t, s.Port, fakeclient.Hello(2))
				intruder.Post(fakeclient.Large(op, 0, own, memory))
				intruder.WantClosed("another client's rkey")
				for end := time.Now().Add(guest.Slow(time.Second)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					if strings.Count(s.Log(), denial) > before {
						return true
					}
				}
				return false
			}
			tries := 1 // the intruder's disconnect may overtake the denial
			for ; tries < 5 && !denied(); tries++ {
			}
			if tries == 5 {
				t.Errorf("%v: the target does not log a %s", op, denial)
			}
			if !bytes.Equal(owner.Lent(memory, len(own)), own) {
				t.Errorf("%v: the owner's memory has changed", op)
			}
			if a := owner.Call(fakeclient.Read(1, 0, 4096))[0]; a.Status != wire.StatusOK || !bytes.Equal(a.Data, stored) {
				t.Errorf("%v: the volume has changed: %+v", op, a.Response)
			}
		}
		owner.Post(fakeclient.Large(wire.OpRead, 0, own, memory)) // on the owner's connection it is still valid
		guest.Eventually(t, 5*time.Second, "the owner gets the data", func() bool { return bytes.Equal(owner.Lent(memory, len(own)), stored) })
	})
}
