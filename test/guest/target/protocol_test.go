// SPDX-License-Identifier: Apache-2.0

//go:build lab

package target

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math"
	"strconv"
	"testing"
	"time"

	"krping/bridge/target"
	"krping/bridge/wire"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

const size = 8 * mib // of the volumes

func TestWelcome(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{})
		got := fakeclient.Connect(t, served.Port, fakeclient.Hello(1)).Welcome
		if got.Epoch == 0 || got.UUID.IsZero() {
			t.Errorf("epoch %d, UUID %s: want neither zero", got.Epoch, got.UUID)
		}
		want := wire.Welcome{Version: wire.Version, UUID: got.UUID, Writer: 1, Caps: wire.CapDiscard, Depth: 4, Capacity: size, Epoch: got.Epoch, BlockSize: 512, MaxData: mib, MaxInline: target.MaxInline, MaxMessage: target.MaxMessage}
		if got != want {
			t.Errorf("got %+v, want %+v", got, want)
		}
	})
}

func TestStatuses(t *testing.T) {
	needs.Test(t, needs.Ends)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{})
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
		checkStatuses(t, c, 0)
		served.WantVolume(t, "violations", "0", "crc_errors", "1", "inflight", "0", "queues", "1")
	})
	t.Run("module with memory", func(t *testing.T) {
		guest.CheckResources(t)
		served := targets.Module.Serve(t, targets.Config{Store: "ram:8M"})
		checkStatuses(t, fakeclient.Connect(t, served.Port, fakeclient.Hello(1)), wire.VolumeVolatile)
		served.WantVolume(t, "violations", "0", "crc_errors", "1", "inflight", "0", "queues", "1")
	})
}

// checkStatuses sends commands of each kind to a volume of zeros.
func checkStatuses(t *testing.T, c *fakeclient.Client, flags uint8) {
	t.Helper()
	if c.Welcome.Flags != flags {
		t.Errorf("flags %#x, want %#x", c.Welcome.Flags, flags)
	}
	data := bytes.Repeat([]byte{0, 1, 0, 2, 0, 0, 0, 3}, 512)
	wrongCRC := fakeclient.Write(2, 4096, data)
	wrongCRC.CRC++
	for _, tc := range []struct {
		name    string
		request wire.Request
		want    wire.Status
	}{
		{"write", fakeclient.Write(1, 0, data), wire.StatusOK},
		{"wrong CRC", wrongCRC, wire.StatusCRC},
		{"at the end", fakeclient.Write(3, size, data), wire.StatusRange},
		{"past the end", fakeclient.Write(4, size-512, data), wire.StatusRange},
		{"largest offset", fakeclient.Write(5, math.MaxUint64-511, data), wire.StatusRange},
		{"offset plus length overflows", fakeclient.Read(6, math.MaxUint64-4095, 4096), wire.StatusRange},
		{"flush", fakeclient.Command(wire.OpFlush, 0, 0), wire.StatusOK},
		{"zeroes past the end", wire.Request{Command: wire.Command{Op: wire.OpWriteZeroes, Length: 2 << 30}}, wire.StatusRange},
		{"discard past the end", wire.Request{Command: wire.Command{Op: wire.OpDiscard, Length: size, Offset: 512}}, wire.StatusRange},
		{"digest past the end", wire.Request{Command: wire.Command{Op: wire.OpDigest, Flags: wire.FlagInline, Length: 16 << 20}}, wire.StatusRange},
	} {
		answer := c.Call(tc.request)[0]
		if answer.Status != tc.want || answer.Tag != tc.request.Tag || tc.want != wire.StatusOK && (answer.Length != 0 || answer.Data != nil) {
			t.Errorf("%s: %+v, want status %d", tc.name, answer, tc.want)
		}
	}
	// Several commands in one message. Nothing of the refused writes is stored.
	for _, a := range c.Call(fakeclient.Read(7, 0, 4096), fakeclient.Read(8, 4096, 4096), fakeclient.KeepAlive()) {
		switch {
		case a.Tag == 7 && (!bytes.Equal(a.Data, data) || a.CRC != wire.CRC32C(data)):
			t.Error("a read returned other data than was written")
		case a.Tag == 8 && !bytes.Equal(a.Data, make([]byte, 4096)):
			t.Error("a write with a wrong CRC was stored")
		case a.Tag == wire.TagKeepAlive && (len(a.Data) != 8 || binary.BigEndian.Uint64(a.Data) != size || a.CRC != 0):
			t.Errorf("KEEP_ALIVE: %+v", a)
		}
	}
	for _, op := range []wire.Op{wire.OpDiscard, wire.OpWriteZeroes} {
		c.Call(fakeclient.Write(9, 4096, data))
		r := fakeclient.Command(op, 0, 8192)
		if op == wire.OpWriteZeroes {
			r.Flags = wire.FlagFUA
		}
		if a := c.Call(r)[0]; a.Status != wire.StatusOK || a.Length != 0 {
			t.Errorf("%v: %+v", op, a)
		}
		if a := c.Call(fakeclient.Read(1, 4096, 4096))[0]; !bytes.Equal(a.Data, make([]byte, 4096)) {
			t.Errorf("there is data after %v", op)
		}
	}
	c.Call(fakeclient.Write(1, 0, data))
	digest := fakeclient.Command(wire.OpDigest, wire.FlagInline, 4096)
	if a := c.Call(digest)[0]; a.Length != 4 || binary.BigEndian.Uint32(a.Data) != wire.CRC32C(data) {
		t.Errorf("digest: %+v", a)
	}
	digest.Flags |= wire.FlagSHA256
	if a := c.Call(digest)[0]; a.Length != 32 {
		t.Errorf("digest: %+v", a)
	}
}

func TestReadOnlyStatuses(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{ReadOnly: true})
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
		if c.Welcome.Flags != wire.VolumeReadOnly {
			t.Errorf("flags %#x, want %#x", c.Welcome.Flags, wire.VolumeReadOnly)
		}
		for _, r := range []wire.Request{
			fakeclient.Write(1, 0, make([]byte, 512)), fakeclient.Command(wire.OpDiscard, 0, 512), fakeclient.Command(wire.OpWriteZeroes, 0, 512),
		} {
			if a := c.Call(r)[0]; a.Status != wire.StatusReadOnly {
				t.Errorf("%v: %+v", r.Op, a)
			}
		}
		if a := c.Call(fakeclient.Command(wire.OpFlush, 0, 0))[0]; a.Status != wire.StatusOK {
			t.Errorf("flush: %+v", a)
		}
		// The response invalidates the rkey, which this side's device refuses.
		c.Post(withoutMemory(wire.OpWrite))
		c.WantClosed("WRITE to a read-only volume with an unknown rkey")
	})
}

// withoutMemory is a large command with an rkey that no memory region has.
func withoutMemory(op wire.Op) wire.Request {
	return wire.Request{Command: wire.Command{Op: op, Length: mib, Addr: 4096, Rkey: fakeclient.NoKey}}
}

// violations returns messages that break the protocol, for a client with a depth of 4.
func violations() map[string][]byte {
	read := func(change func(r *wire.Request)) []byte {
		r := fakeclient.Read(1, 0, 4096)
		change(&r)
		return r.Append(nil)
	}
	command := func(op wire.Op, flags uint8, length uint32) []byte {
		return fakeclient.Command(op, flags, length).Append(nil)
	}
	reads := func(tags ...uint16) (msg []byte) {
		for _, tag := range tags {
			msg = fakeclient.Read(tag, 0, 512).Append(msg)
		}
		return msg
	}
	keepAlive := fakeclient.KeepAlive().Append(nil)
	write := fakeclient.Write(1, 0, make([]byte, 4096)).Append(nil)
	messages := map[string][]byte{
		"empty":                           {},
		"one byte":                        {1},
		"text":                            []byte("GET / HTTP/1.1\r\n\r\n"),
		"noise":                           bytes.Repeat([]byte{0xff, 0x01, 0x7e}, 5000),
		"31 bytes":                        write[:31],
		"a command and a byte":            append(command(wire.OpFlush, 0, 0), 2),
		"the data is a byte short":        write[:len(write)-1],
		"the data is missing":             write[:32],
		"length 0":                        read(func(r *wire.Request) { r.Length = 0 }),
		"length 511":                      read(func(r *wire.Request) { r.Length = 511 }),
		"largest length":                  read(func(r *wire.Request) { r.Length = math.MaxUint32 }),
		"more than max_inline":            read(func(r *wire.Request) { r.Length = target.MaxInline + 512 }),
		"offset 1":                        read(func(r *wire.Request) { r.Offset = 1 }),
		"inline with an rkey":             read(func(r *wire.Request) { r.Rkey = fakeclient.NoKey }),
		"neither inline nor an rkey":      read(func(r *wire.Request) { r.Flags = 0 }),
		"address without an rkey":         read(func(r *wire.Request) { r.Addr = 4096 }),
		"READ with FUA":                   read(func(r *wire.Request) { r.Flags |= wire.FlagFUA }),
		"READ with SHA256":                read(func(r *wire.Request) { r.Flags |= wire.FlagSHA256 }),
		"READ with a CRC":                 read(func(r *wire.Request) { r.CRC = 1 }),
		"READ with the tag of KEEP_ALIVE": read(func(r *wire.Request) { r.Tag = wire.TagKeepAlive }),
		"more than max_data": read(func(r *wire.Request) {
			r.Flags, r.Rkey, r.Length = 0, fakeclient.NoKey, mib+512
		}),
		"FLUSH with a length":          command(wire.OpFlush, 0, 512),
		"inline FLUSH":                 command(wire.OpFlush, wire.FlagInline, 0),
		"inline DISCARD":               command(wire.OpDiscard, wire.FlagInline, 512),
		"DISCARD of more than 2 GiB":   command(wire.OpDiscard, 0, 2<<30+512),
		"DISCARD of 0 bytes":           command(wire.OpDiscard, 0, 0),
		"DIGEST that is not inline":    command(wire.OpDigest, 0, 512),
		"DIGEST of more than 16 MiB":   command(wire.OpDigest, wire.FlagInline, 16<<20+512),
		"KEEP_ALIVE with a length":     command(wire.OpKeepAlive, wire.FlagInline, 512),
		"KEEP_ALIVE with another tag":  command(wire.OpKeepAlive, wire.FlagInline, 0),
		"two KEEP_ALIVEs":              append(keepAlive, keepAlive...),
		"a tag twice":                  reads(1, 1),
		"more commands than the depth": reads(1, 2, 3, 4, 5),
	}
	for _, bad := range []wire.Op{0, 8, 200, 255} {
		messages[fmt.Sprintf("op %d", bad)] = command(bad, wire.FlagInline, 512)
	}
	for bit := 3; bit < 8; bit++ {
		messages[fmt.Sprintf("flag 0x%x", 1<<bit)] = read(func(r *wire.Request) { r.Flags |= 1 << bit })
	}
	return messages
}

// A violation of the protocol ends its connection, and no other.
func TestViolations(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{Shared: true})
		good := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
		messages := violations()
		for name, msg := range messages {
			t.Run(name, func(t *testing.T) {
				c := fakeclient.Connect(t, served.Port, fakeclient.Hello(2))
				c.PostMessage(msg)
				c.WantClosed(name)
			})
		}
		served.WantVolume(t, "violations", strconv.Itoa(len(messages)))
		refusedByDevice(t, served, good)
		good.WantServed()
		verify(t, guest.Attach(t, served.Port, ""))
	})
}

// refusedByDevice checks requests that an RDMA device refuses: they are no violations of the protocol, and end the
// connection too.
func refusedByDevice(t *testing.T, served *targets.Served, other *fakeclient.Client) {
	t.Helper()
	const large = 64 << 10
	memory := other.LendData(make([]byte, large))
	lent := func(op wire.Op) []byte { return fakeclient.Large(op, 0, make([]byte, large), memory).Append(nil) }
	config := fakeclient.Config
	config.MaxMessage = int(other.Welcome.MaxMessage) + 1
	for _, tc := range []struct {
		name       string
		msg        []byte
		invalidate uint32
	}{
		{"WRITE with an unknown rkey", withoutMemory(wire.OpWrite).Append(nil), 0},
		{"READ with an unknown rkey", withoutMemory(wire.OpRead).Append(nil), 0},
		{"WRITE with another client's rkey", lent(wire.OpWrite), 0},
		{"READ with another client's rkey", lent(wire.OpRead), 0},
		{"message longer than max_message", make([]byte, config.MaxMessage), 0},
		{"SEND_WITH_INV of an unknown rkey", fakeclient.Command(wire.OpFlush, 0, 0).Append(nil), fakeclient.NoKey},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c, err := fakeclient.Dial(t, served.Port, fakeclient.Hello(2).Append(nil), config)
			if err != nil {
				t.Fatal(err)
			}
			if err := c.Send(tc.msg, tc.invalidate); err != nil {
				t.Fatal(err)
			}
			c.WantClosed(tc.name)
		})
	}
	if got := other.Lent(memory, large); !bytes.Equal(got, make([]byte, large)) {
		t.Error("another client's memory was changed")
	}
}

func TestRejectedHellos(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{Shared: true})
		hello := func(change func(h *wire.Hello)) []byte { return fakeclient.Hello(1, change).Append(nil) }
		at := func(i int, value byte) []byte {
			h := fakeclient.Hello(1).Append(nil)
			h[i] = value
			return h
		}
		rejects := []struct {
			name   string
			hello  []byte
			reason wire.Reason
			value  uint32
		}{
			{"none", nil, wire.RejectMagic, 0},
			{"garbage", bytes.Repeat([]byte{0xa5}, wire.HelloSize), wire.RejectMagic, 0},
			{"wrong magic", at(3, 0), wire.RejectMagic, 0},
			{"version 0", at(4, 0), wire.RejectVersion, 2},
			{"version 3", at(4, 3), wire.RejectVersion, 2},
			{"unknown flag", at(5, 0x40), wire.RejectInvalid, 0},
			{"name as a digest", at(5, 0x10), wire.RejectVolume, 0},
			{"answers a challenge, and has a digest", at(5, 0x12), wire.RejectInvalid, 0},
			{"asks for a challenge and answers one", at(5, 3), wire.RejectInvalid, 0},
			{"reads only and takes over", at(5, 0x0c), wire.RejectInvalid, 0},
			{"key for a volume without a key", at(5, 1), wire.RejectNoKey, 0},
			{"answer without a challenge", at(5, 2), wire.RejectStale, 0},
			{"queue index out of range", at(7, 2), wire.RejectInvalid, 0},
			{"no queue", at(9, 0), wire.RejectInvalid, 0},
			{"depth 0", at(11, 0), wire.RejectInvalid, 0},
			{"session of zeros", at(12, 0), wire.RejectInvalid, 0},
			{"no name", hello(func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("") }), wire.RejectInvalid, 0},
			{"name with an empty part", hello(func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("a//b") }), wire.RejectInvalid, 0},
			{"name with ..", hello(func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("a/..") }), wire.RejectInvalid, 0},
			{"name without a NUL", append(hello(func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("abcdefghijklmnopqrstuvwxyz0") })[:55], 'x'), wire.RejectInvalid, 0},
			{"unknown volume", hello(func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("nosuch") }), wire.RejectVolume, 0},
			{"unknown volume with a slash", hello(func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("a/b") }), wire.RejectVolume, 0},
			{"unknown volume with a long name", hello(func(h *wire.Hello) { h.Volume = wire.VolumeIDOf("pvc-123e4567-e89b-12d3-a456-426614174000") }), wire.RejectVolume, 0},
			{"65 queues", at(9, 65), wire.RejectQueues, target.MaxQueues},
			{"1000 queues", hello(func(h *wire.Hello) { h.QueueCount = 1000 }), wire.RejectQueues, target.MaxQueues},
		}
		for _, tc := range rejects {
			_, err := fakeclient.Dial(t, served.Port, tc.hello, fakeclient.Small)
			fakeclient.WantRejected(t, tc.name, err, tc.reason, tc.value)
		}
		if n := served.Rejected(); n != len(rejects) {
			t.Errorf("%d rejected clients are counted, want %d", n, len(rejects))
		}
		served.WantVolume(t, "connections", "0", "queues", "0")
		fakeclient.Connect(t, served.Port, fakeclient.Hello(1)).WantServed()
	})
}

// A new connection of a session's queue replaces the old one, and no other.
func TestFencing(t *testing.T) {
	needs.Test(t, needs.Ends)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{Shared: true})
		old := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
		other := fakeclient.Connect(t, served.Port, fakeclient.Hello(1, func(h *wire.Hello) { h.QueueIndex = 1 }))
		old.Post(fakeclient.Command(wire.OpDigest, wire.FlagInline, size))
		c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
		old.WantClosed("the old connection")
		for _, c := range []*fakeclient.Client{c, other} {
			c.WantServed()
		}
		served.WantVolume(t, "queues", "2", "connections", "3")
	})
}

// Clients that connect and disconnect, every second one with a command in flight.
func TestConnectAndDisconnectRepeatedly(t *testing.T) {
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{Shared: true})
		for i := range 50 {
			c := fakeclient.Connect(t, served.Port, fakeclient.Hello(byte(1+i)))
			if i%2 == 0 {
				c.Post(fakeclient.Read(1, 0, 4096))
			}
			c.Close()
		}
		fakeclient.Connect(t, served.Port, fakeclient.Hello(99)).WantServed()
	})
}

// Clients that connect and send nothing take all places of their address, and later ones are rejected. As soon as one
// disconnects, another client is served; and the target stops in spite of them.
func TestManyIdleClients(t *testing.T) {
	needs.Test(t, needs.Once)
	targets.Each(t, func(t *testing.T, g targets.Target) {
		served := g.ServeNew(t, size, targets.Config{Shared: true})
		private := func(i int) []byte {
			return fakeclient.Hello(0, func(h *wire.Hello) { h.Depth, h.Session = 1, wire.SessionID{byte(i), byte(i >> 8), 1} }).Append(nil)
		}
		dial := func(i int) (*fakeclient.Client, error) {
			return fakeclient.Dial(t, served.Port, private(i), fakeclient.Small)
		}
		accepted := fakeclient.DialMany(t, fakeclient.Many(), dial, fakeclient.Busy(target.MaxPeerConnections))
		fakeclient.WantAccepted(t, len(accepted), target.MaxPeerConnections)
		rejected := fakeclient.Many() - len(accepted)
		if n := served.Rejected(); n != rejected {
			t.Errorf("%d rejected clients are counted, want %d", n, rejected)
		}
		served.WantVolume(t, "queues", strconv.Itoa(target.MaxPeerConnections), "connections", strconv.Itoa(len(accepted)))
		again, err := dial(7)
		if err != nil {
			t.Fatalf("a client that reconnects: %v", err)
		}
		again.Close()
		guest.Eventually(t, 10*time.Second, "another client gets the place", func() bool {
			c, err := fakeclient.Dial(t, served.Port, fakeclient.Hello(99).Append(nil), fakeclient.Config)
			if err != nil {
				return false
			}
			c.WantServed()
			c.Close()
			return true
		})
		if served.Bridge == nil {
			guest.Eventually(t, 10*time.Second, "there is a place", func() bool {
				return guest.Volume(t, "vol0")["queues"] != strconv.Itoa(target.MaxPeerConnections)
			})
			verify(t, guest.Attach(t, served.Port, ",queues=1"))
			if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
				t.Error(err)
			}
			start := time.Now()
			if err := guest.Command("stop,target,block=vol0", guest.Limit); err != nil {
				t.Error(err)
			}
			t.Logf("stopped after %v", time.Since(start)) // it disconnects the idle clients
		}
	})
}
