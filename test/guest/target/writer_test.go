// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

// The module counts a session as a writer with its first command. One that ends before that leaves the volume to the
// writer before, which keeps its number, and takes none: a client that comes back after a restart of the target would
// think that somebody has written since.
func TestUnservedWriter(t *testing.T) {
	needs.Test(t, needs.Ends)
	served := targets.Module.ServeNew(t, size, targets.Config{})
	attach := func(session byte, number uint32, uses bool) {
		t.Helper()
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(session))
		if c.Welcome.Writer != number {
			t.Errorf("session %d is writer number %d, want %d", session, c.Welcome.Writer, number)
		}
		if uses {
			c.WantServed()
		}
		c.Close()
		guest.Eventually(t, guest.Limit, "the connection is gone", func() bool { return guest.Volume(t, "vol0")["queues"] == "0" })
	}
	attach(1, 1, false)
	attach(1, 1, false)
	attach(2, 1, true)
	attach(3, 2, false)
	attach(2, 1, true)
	attach(4, 2, true)
	attach(2, 3, false)
	attach(4, 2, true)
}

// hosts are clients of a volume at two addresses.
type hosts struct {
	t          *testing.T
	port       int
	one, other netip.Addr
}

// twoHosts waits until clients can connect from a second address.
func twoHosts(t *testing.T, port int) hosts {
	t.Helper()
	h := hosts{t, port, netip.MustParseAddr(guest.Addr(t)), netip.MustParseAddr("192.168.77.201")}
	guest.AddAddress(t, h.other.String()+"/24")
	guest.Eventually(t, 20*time.Second, "the second address can be used", func() bool {
		_, err := fakeclient.DialFrom(t, h.other, port, nil, fakeclient.Small)
		var rejected *verbs.RejectedError
		return errors.As(err, &rejected) // for want of a hello
	})
	return h
}

// attach connects a session, which must become the writer of that number, or no writer, and uses the volume.
func (h hosts) attach(addr netip.Addr, session byte, flags uint8, number uint32) *fakeclient.Client {
	h.t.Helper()
	hello := fakeclient.Hello(session, func(h *wire.Hello) { h.Flags = flags })
	c, err := fakeclient.DialFrom(h.t, addr, h.port, hello.Append(nil), fakeclient.Config)
	if err != nil {
		h.t.Fatalf("session %d: %v", session, err)
	}
	if c.Welcome.Writer != number {
		h.t.Errorf("session %d is writer number %d, want %d", session, c.Welcome.Writer, number)
	}
	c.WantServed()
	return c
}

// refused checks that a session may not write because a client at another address does.
func (h hosts) refused(addr netip.Addr, session byte, holder netip.Addr) {
	h.t.Helper()
	_, err := fakeclient.DialFrom(h.t, addr, h.port, fakeclient.Hello(session).Append(nil), fakeclient.Small)
	var rejected *verbs.RejectedError
	if !errors.As(err, &rejected) {
		h.t.Fatalf("session %d beside a writer: %v, want a reject", session, err)
	}
	if inUse, err := wire.DecodeInUse(rejected.Private); err != nil || inUse.Holder != holder {
		h.t.Errorf("session %d: %+v, %v, want the writer %s", session, inUse, err, holder)
	}
}

// bye ends a session in good order.
func bye(c *fakeclient.Client) {
	r := fakeclient.KeepAlive()
	r.Flags |= wire.FlagBye
	c.Call(r)
	c.Close()
}

// A client at another address cannot write while the writer is connected, nor soon after its loss. Once the writer has
// said that it ends, it can.
func TestSecondWriter(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{})
		h := twoHosts(t, served.Port)
		first := h.attach(h.one, 1, 0, 1)
		h.refused(h.other, 2, h.one)
		reader := h.attach(h.other, 3, wire.HelloReadOnly, 0)
		if a := reader.Call(fakeclient.Write(1, 0, make([]byte, 512)))[0]; a.Status != wire.StatusReadOnly {
			t.Errorf("write of a reader: %+v", a)
		}
		reader.Close()
		first.Close()
		served.WantVolume(t, "queues", "0", "writer", h.one.String())
		h.refused(h.other, 2, h.one)
		first = h.attach(h.one, 1, 0, 1)
		taken := h.attach(h.other, 2, wire.HelloTakeOver, 2)
		first.WantClosed("the connection of the writer that was replaced")
		h.refused(h.one, 1, h.other)
		bye(taken)
		last := h.attach(h.one, 1, 0, 3) // its client learns from the number that another has written
		h.attach(h.one, 4, 0, 4)         // its host was restarted
		last.WantClosed("the connection of the session before the restart")
	})
}

// After a restart of the target two clients try to come back. One may write, and the other learns of it. The bridge keeps
// the last writer with the file; the module knows none.
func TestWritersAfterRestart(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{})
		h := twoHosts(t, served.Port)
		var stranger uint32 = 1 // number of a session other than the last writer's
		if served.Bridge != nil {
			stranger = 2
		}
		bye(h.attach(h.other, 2, 0, 1))
		before := h.attach(h.one, 1, 0, 2)
		served.Stop()
		served = served.Again(t)
		again := h.attach(h.one, 1, 0, 1)
		if again.Welcome.Epoch == before.Welcome.Epoch {
			t.Error("the epoch is the one before the restart")
		}
		h.refused(h.other, 2, h.one)
		served.Stop()
		served.Again(t)
		taken := h.attach(h.other, 2, 0, stranger)
		h.refused(h.one, 1, h.other)
		bye(taken)
		h.attach(h.one, 1, 0, stranger+1) // its client expects 1
	})
}

// The numbers of writers begin again with an epoch that a failed flush has begun: the writer has number 1.
func TestWriterOfNewEpoch(t *testing.T) {
	needs.Test(t, needs.Ends)
	disk, fail := guest.Flaky(t, guest.NullDisk(t, "nullb1", map[string]string{"cache_size": "1"}), 16*mib)
	served := targets.Module.Serve(t, targets.Config{Store: disk, Writeback: true})
	connect := func(session byte, number uint32) *fakeclient.Client {
		t.Helper()
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(session))
		if c.Welcome.Writer != number {
			t.Errorf("session %d is writer number %d, want %d", session, c.Welcome.Writer, number)
		}
		c.WantServed()
		return c
	}
	bye(connect(1, 1))
	writer := connect(2, 2)
	fail(true)
	if a := writer.Call(fakeclient.Command(wire.OpFlush, 0, 0))[0]; a.Status != wire.StatusIO {
		t.Errorf("FLUSH: %+v", a)
	}
	fail(false)
	writer.Close()
	again := connect(2, 1)
	if again.Welcome.Epoch == writer.Welcome.Epoch {
		t.Error("the epoch did not change after a failed flush")
	}
	bye(again)
	connect(1, 2) // its client expects 1 in a new epoch, and learns that another has written
}
