// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package bridge tests krping-bridge inside one VM against clients that do what the
// module's client does not.
package bridge

import (
	"bytes"
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/target"
	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/crowd"
	"krping/test/guest/internal/guest"
)

var config = verbs.Config{Receives: 64, MaxMessage: 8 * (32 + 4096), Buffers: 1, MaxData: 1 << 20}

func dial(t *testing.T, addr string, private []byte) (*verbs.Conn, wire.Welcome, error) {
	t.Helper()
	return dialWith(t, addr, private, config)
}

func dialWith(t *testing.T, addr string, private []byte, config verbs.Config) (*verbs.Conn, wire.Welcome, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	conn, reply, err := verbs.Dial(ctx, netip.MustParseAddrPort(addr), private, config)
	if err != nil {
		return nil, wire.Welcome{}, err
	}
	t.Cleanup(conn.Release)
	welcome, err := wire.DecodeWelcome(reply)
	return conn, welcome, err
}

func hello(session byte) wire.Hello {
	return wire.Hello{QueueCount: 1, Depth: 8, Session: wire.SessionID{session}, Volume: "vol0"}
}

func connect(t *testing.T, addr string, session byte) *verbs.Conn {
	t.Helper()
	return connectWith(t, addr, session, config)
}

func connectWith(t *testing.T, addr string, session byte, config verbs.Config) *verbs.Conn {
	t.Helper()
	conn, _, err := dialWith(t, addr, hello(session).Append(nil), config)
	if err != nil {
		t.Fatal(err)
	}
	return conn
}

// ask sends a message and returns the answers of the next one.
func ask(t *testing.T, conn *verbs.Conn, msg []byte) []wire.Answer {
	t.Helper()
	if err := conn.Send(msg, 0); err != nil {
		t.Fatal(err)
	}
	got := make(chan transport.Message, 1)
	go func() {
		if m, err := conn.Recv(); err == nil {
			got <- m
		}
	}()
	m := guest.Within(t, 10*time.Second, "there is an answer", got)
	answers, err := wire.DecodeAnswers(bytes.Clone(m.Data))
	if err != nil {
		t.Fatal(err)
	}
	if err := m.Release(); err != nil {
		t.Fatal(err)
	}
	return answers
}

func read(tag uint16) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpRead, Flags: wire.FlagInline, Tag: tag, Length: 4096}}
}

func start(t *testing.T) *guest.Bridge {
	t.Helper()
	return guest.StartBridge(t, 9950, guest.StorePath(t), "16MiB")
}

func serves(t *testing.T, addr string) {
	t.Helper()
	if !answers(t, connect(t, addr, 99)) {
		t.Error("a good client is not served")
	}
}

func answers(t *testing.T, conn *verbs.Conn) bool {
	t.Helper()
	a := ask(t, conn, read(1).Append(nil))
	return len(a) == 1 && a[0].Status == wire.StatusOK && len(a[0].Data) == 4096
}

func TestHandshake(t *testing.T) {
	b := start(t)
	_, w, err := dial(t, b.Addr, hello(1).Append(nil))
	if err != nil {
		t.Fatal(err)
	}
	if w.Depth != 8 || w.Capacity != 16<<20 || w.BlockSize != 512 || w.MaxInline != 4096 || w.MaxMessage != 8*(32+4096) || w.MaxData != 1<<20 || w.Epoch == 0 || w.Flags != 0 {
		t.Errorf("%+v", w)
	}
	for name, tc := range map[string]struct {
		private []byte
		want    wire.Reason
	}{
		"nothing":        {nil, wire.RejectMagic},
		"garbage":        {bytes.Repeat([]byte{0xa5}, 56), wire.RejectMagic},
		"version":        {append([]byte{0x4b, 0x52, 0x50, 0x42, 9}, make([]byte, 51)...), wire.RejectVersion},
		"unknown volume": {wire.Hello{QueueCount: 1, Depth: 1, Volume: "nosuch"}.Append(nil), wire.RejectVolume},
		"queues":         {wire.Hello{QueueCount: 1000, Depth: 1, Volume: "vol0"}.Append(nil), wire.RejectQueues},
	} {
		_, _, err := dial(t, b.Addr, tc.private)
		var rejected *verbs.RejectedError
		if !errors.As(err, &rejected) {
			t.Errorf("%s: %v, want a reject", name, err)
			continue
		}
		if reject, err := wire.DecodeReject(rejected.Private); err != nil || reject.Reason != tc.want {
			t.Errorf("%s: %+v, %v, want reason %d", name, reject, err, tc.want)
		}
	}
	serves(t, b.Addr)
}

const largeSize = 64 << 10

// large is a command whose data is in the client's memory.
func large(op wire.Op, memory transport.Remote) []byte {
	return wire.Request{Command: wire.Command{Op: op, Tag: 1, Length: largeSize, Addr: memory.Addr, Rkey: memory.Rkey}}.Append(nil)
}

func isEnded(t *testing.T, what string, conn *verbs.Conn) {
	t.Helper()
	select {
	case <-conn.Done():
	case <-time.After(15 * time.Second):
		t.Errorf("%s: the connection goes on", what)
	}
}

func TestGarbageEndsItsConnectionOnly(t *testing.T) {
	b := start(t)
	good := connect(t, b.Addr, 1)
	lent, err := good.Lend(largeSize)
	if err != nil {
		t.Fatal(err)
	}
	noMemory := transport.Remote{Addr: 4096, Rkey: 0xdeadbeef}
	longer := config
	longer.MaxMessage++
	for name, msg := range map[string][]byte{
		"text":            []byte("GET / HTTP/1.1\r\n\r\n"),
		"nothing":         {},
		"one byte":        {0},
		"noise":           bytes.Repeat([]byte{0xff, 0x01, 0x7e}, 5000),
		"cut command":     read(1).Append(nil)[:31],
		"unknown op":      append([]byte{200}, make([]byte, 31)...),
		"inline data cut": wire.Request{Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Length: 4096}}.Append(nil),
		"tag twice":       append(read(5).Append(nil), read(5).Append(nil)...),
		"over its depth":  bytes.Repeat(wire.Request{Command: wire.Command{Op: wire.OpFlush}}.Append(nil), 9),
		"READ to memory with a key that nobody has":   large(wire.OpRead, noMemory),
		"WRITE of memory with a key that nobody has":  large(wire.OpWrite, noMemory),
		"READ to memory with another client's key":    large(wire.OpRead, lent),
		"WRITE of memory with another client's key":   large(wire.OpWrite, lent),
		"a message longer than any that is agreed on": make([]byte, config.MaxMessage+1),
	} {
		conn := connectWith(t, b.Addr, 2, longer)
		if err := conn.Send(msg, 0); err != nil {
			t.Fatal(err)
		}
		isEnded(t, name, conn)
	}
	conn := connect(t, b.Addr, 2)
	if err := conn.Send(read(1).Append(nil), noMemory.Rkey); err != nil {
		t.Fatal(err)
	}
	isEnded(t, "invalidates a key that nobody has", conn)
	if a := ask(t, good, read(1).Append(nil)); len(a) != 1 || a[0].Status != wire.StatusOK {
		t.Errorf("another connection: %+v", a)
	}
	if b.Cmd.ProcessState != nil {
		t.Error("the bridge has ended")
	}
}

func TestWrongCRCIsNotStored(t *testing.T) {
	b := start(t)
	conn := connect(t, b.Addr, 1)
	data := bytes.Repeat([]byte{7}, 4096)
	w := wire.Request{Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Length: 4096, CRC: wire.CRC32C(data) ^ 1}, Data: data}
	if a := ask(t, conn, w.Append(nil)); len(a) != 1 || a[0].Status != wire.StatusCRC {
		t.Errorf("write: %+v", a)
	}
	if a := ask(t, conn, read(1).Append(nil)); !bytes.Equal(a[0].Data, make([]byte, 4096)) {
		t.Error("the data was stored")
	}
}

// A second connection of a session's queue takes the place of the first.
func TestFence(t *testing.T) {
	b := start(t)
	old := connect(t, b.Addr, 1)
	fresh := connect(t, b.Addr, 1)
	select {
	case <-old.Done():
	case <-time.After(10 * time.Second):
		t.Error("the old connection is still open")
	}
	if a := ask(t, fresh, read(1).Append(nil)); a[0].Status != wire.StatusOK {
		t.Errorf("%+v", a)
	}
}

func TestManyConnectionsAndDisconnects(t *testing.T) {
	b := start(t)
	for i := range 50 {
		conn, _, err := dial(t, b.Addr, hello(byte(i)).Append(nil))
		if err != nil {
			t.Fatal(err)
		}
		if i%2 == 0 { // in the middle of an operation
			if err := conn.Send(read(1).Append(nil), 0); err != nil {
				t.Fatal(err)
			}
		}
		conn.Close()
	}
	serves(t, b.Addr)
}

// Silent clients take what there is, are refused then, and keep no good one that finds a place waiting.
func TestManySilentClients(t *testing.T) {
	t.Cleanup(func() { guest.NoResources(t) })
	b := start(t)
	silent := verbs.Config{Receives: 2, MaxMessage: 64, Buffers: 1, MaxData: 4096}
	const most = target.MaxConnections
	taken := crowd.Dial(t, crowd.Size(), func(i int) (*verbs.Conn, error) {
		h := hello(byte(i))
		h.Depth, h.Session[1] = 1, byte(i>>8)
		conn, _, err := dialWith(t, b.Addr, h.Append(nil), silent)
		return conn, err
	}, crowd.Busy(most))
	crowd.Filled(t, len(taken), most)
	if n := b.Rejected(t); n != crowd.Size()-len(taken) {
		t.Errorf("%d clients were rejected, want %d", n, crowd.Size()-len(taken))
	}
	taken[0].Close()
	guest.Eventually(t, 10*time.Second, "the place is given to another", func() bool {
		conn, _, err := dial(t, b.Addr, hello(99).Append(nil))
		return err == nil && answers(t, conn)
	})
}

func TestTermination(t *testing.T) {
	b := start(t)
	conn := connect(t, b.Addr, 1)
	guest.Signal(t, b.Cmd, unix.SIGTERM)
	if err := b.Cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	select {
	case <-conn.Done():
	case <-time.After(10 * time.Second):
		t.Error("the connection is still open")
	}
}

func TestBadCommandLines(t *testing.T) {
	b := start(t)
	program := guest.Binary(t, "krping-bridge")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--store", "mem:", "--size", "1MiB"}, "--listen ADDR:PORT is needed"},
		{nil, "--ping ADDR:PORT"},
		{[]string{"--ping", "nowhere"}, "192.168.77.1:9999"},
		{[]string{"--ping", b.Addr}, "port is in use"},
		{[]string{"--ping", "192.168.77.1:9990", "--ping-max-size", "0"}, "2MiB"},
		{[]string{"--listen", b.Addr, "--store", "mem:", "--size", "1MiB"}, "port is in use"},
		{[]string{"--listen", "1.2.3.4:9", "--store", "mem:", "--size", "1MiB"}, "krpingctl link add"},
		{[]string{"--listen", "nowhere", "--store", "mem:", "--size", "1MiB"}, "192.168.77.1:9999"},
		{[]string{"--listen", b.Addr}, "--store file:PATH"},
		{[]string{"--listen", b.Addr, "--store", "mem:", "--size", "lots"}, "64MiB"},
		{[]string{"--listen", b.Addr, "--store", "mem:", "--size", "1000"}, "multiple of the block size"},
		{[]string{"--listen", b.Addr, "--volume", "a=mem:,colour=red"}, "block-size"},
		{[]string{"--listen", b.Addr, "--volume", "a b=mem:,size=1MiB"}, "letters"},
		{[]string{"--listen", b.Addr, "--store", "file:/nosuch/vol", "--size", "1MiB"}, "no such file"},
	} {
		out, err := guest.TryRun(append([]string{program}, tc.args...)...)
		if err == nil || !bytes.Contains([]byte(out), []byte(tc.want)) {
			t.Errorf("%q: %v, want %q in %s", tc.args, err, tc.want, out)
		}
	}
}
