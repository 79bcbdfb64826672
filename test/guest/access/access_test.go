// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package access tests who may connect, inside one VM: keys, lists of addresses, and what a
// client of one volume or session can do to another, or leaves behind when it goes. Both targets
// are tested in the same way.
package access

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

const (
	secret  = "the-secret-of-vol0-0123456789"
	another = "another-secret-0123456789abcd"
	size    = 8 << 20 // of the volumes
)

var ports atomic.Int32

// nextPort returns one that was not used before: a client of the last test may still come.
func nextPort() int { return 13000 + int(ports.Add(1)) }

func leavesNothing(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { guest.NoResources(t) })
}

// keyFile makes a file with the key.
func keyFile(t *testing.T, key string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(key+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

// commandWith runs a command in a thread that has the key, if it is not "", in its keyring.
func commandWith(description, key, command string) error {
	ended := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the keyring ends with the thread
		if key != "" {
			if _, err := unix.AddKey("logon", description, []byte(key), unix.KEY_SPEC_THREAD_KEYRING); err != nil {
				ended <- err
				return
			}
		}
		ended <- guest.Command(command, guest.Limit)
	}()
	return <-ended
}

// served is a target with the volume vol0.
type served struct {
	port     int
	rejected func() int    // clients, so far
	log      func() string // all that it has said, and with the module what all others have
	stop     func()
}

// A target serves vol0 on the port, of 8 MiB that keep their data, with a key unless it is "", and to the
// addresses unless they are "".
type target struct {
	name  string
	serve func(t *testing.T, port int, key, allow string) served
}

var targets = []target{{"module", serveModule}, {"bridge", serveBridge}}

func serveModule(t *testing.T, port int, key, allow string) served {
	t.Helper()
	args := []string{"server", "--addr", guest.Addr(t), "--port", strconv.Itoa(port), "--block", "vol0", "--backing", guest.RAMDisk(t, 8<<20)}
	if key != "" {
		args = append(args, "--key-file", keyFile(t, key))
	}
	if allow != "" {
		args = append(args, "--allow", allow)
	}
	guest.MustKrpingctl(t, args...)
	stop := func() {
		if guest.Volume(t, "vol0") != nil {
			guest.MustKrpingctl(t, "stop", "--target", "vol0")
		}
	}
	t.Cleanup(stop)
	return served{port, func() int {
		n, err := strconv.Atoi(guest.Volume(t, "vol0")["rejected"])
		if err != nil {
			t.Fatal(err)
		}
		return n
	}, func() string { return guest.Run(t, "dmesg") }, stop}
}

func serveBridge(t *testing.T, port int, key, allow string) served {
	t.Helper()
	args := []string{"--verbose"}
	if key != "" {
		args = append(args, "--key-file", keyFile(t, key))
	}
	if allow != "" {
		args = append(args, "--allow", allow)
	}
	b := guest.StartBridge(t, port, guest.StorePath(t), "8MiB", args...)
	return served{port, func() int { return b.Rejected(t) }, b.Log.String, b.Kill}
}

// onBoth runs a test with each target.
func onBoth(t *testing.T, test func(t *testing.T, target target)) {
	for _, target := range targets {
		t.Run(target.name, func(t *testing.T) {
			leavesNothing(t)
			test(t, target)
		})
	}
}

func clientCommand(t *testing.T, port int, options string) string {
	t.Helper()
	return fmt.Sprintf("client,addr=%s,port=%d,block=vol0%s", guest.Addr(t), port, options)
}

// attach makes the disk of vol0 until the end of the test.
func attach(t *testing.T, port int, args ...string) string {
	t.Helper()
	dev := strings.TrimSpace(guest.MustKrpingctl(t, append([]string{"client", "--addr", guest.Addr(t), "--port", strconv.Itoa(port), "--block", "vol0"}, args...)...))
	t.Cleanup(func() {
		if guest.Session(t, "vol0") != nil {
			guest.MustKrpingctl(t, "stop", "--force", "vol0")
		}
	})
	return dev
}

// writeAndVerify writes test data and compares both ends.
func writeAndVerify(t *testing.T, dev string) {
	t.Helper()
	guest.MustKrpingctl(t, "write", dev, "--size", "1MiB", "--direct")
	guest.MustKrpingctl(t, "verify", dev)
}

// ---- a client in user space ----

// client is a connection to a target.
type client struct {
	*verbs.Conn
	t     *testing.T
	reply []byte
}

var (
	config = verbs.Config{Receives: 6, MaxMessage: 16384, Buffers: 1, MaxData: 4096}
	small  = verbs.Config{Receives: 1, MaxMessage: 64, Buffers: 1, MaxData: 4096} // of a client that is refused
)

func dialRaw(t *testing.T, port int, private []byte, config verbs.Config) (*verbs.Conn, []byte, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	return verbs.Dial(ctx, netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), uint16(port)), private, config)
}

// dial returns a client, or the target's reject.
func dial(t *testing.T, port int, hello wire.Hello, config verbs.Config) (*client, []byte) {
	t.Helper()
	conn, reply, err := dialRaw(t, port, hello.Append(nil), config)
	var rejected *verbs.RejectedError
	if errors.As(err, &rejected) {
		return nil, rejected.Private
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Release)
	return &client{conn, t, reply}, nil
}

func hello(session byte) wire.Hello {
	return wire.Hello{QueueCount: 2, Depth: 4, Session: wire.SessionID{session}, Volume: "vol0"}
}

// challenge asks for one.
func challenge(t *testing.T, port int, h wire.Hello) *wire.Challenge {
	t.Helper()
	h.Flags = wire.HelloKey
	c, private := dial(t, port, h, small)
	if c != nil {
		t.Fatal("a target with a key takes a client without a proof")
	}
	got, err := wire.DecodeChallenge(private)
	if err != nil {
		t.Fatalf("%v: %x", err, private)
	}
	return got
}

// answer makes of a hello one that answers the challenge.
func answer(h wire.Hello, c *wire.Challenge, key string) (wire.Hello, wire.Transcript) {
	t := wire.Transcript{Hello: h, Volume: h.Volume, Nonce: c.Nonce}
	t.Hello.Flags, t.Hello.Volume, t.Hello.Answer = wire.HelloProof, "", wire.KeyAnswer{Challenge: c.ID}
	_, _ = rand.Read(t.Hello.Answer.Nonce[:])
	t.Hello.Answer.Proof = t.ClientProof([]byte(key))
	return t.Hello, t
}

// connect is what an honest client does.
func connect(t *testing.T, port int, h wire.Hello, key string) *client {
	t.Helper()
	answered, transcript := answer(h, challenge(t, port, h), key)
	c, private := dial(t, port, answered, config)
	if c == nil {
		t.Fatalf("an honest client is refused: %x", private)
	}
	welcome, proof, err := wire.DecodeProvenWelcome(c.reply)
	if err != nil || !proof.Equal(transcript.TargetProof([]byte(key), welcome)) {
		t.Fatalf("the target proves nothing: %v, %x", err, c.reply)
	}
	return c
}

// connectOpen is what an honest client of a volume without a key does.
func connectOpen(t *testing.T, port int, h wire.Hello) *client {
	t.Helper()
	c, private := dial(t, port, h, config)
	if c == nil {
		t.Fatalf("an honest client is refused: %x", private)
	}
	return c
}

// refused checks the reason that a hello is refused for.
func refused(t *testing.T, what string, port int, h wire.Hello, want wire.Reason) {
	t.Helper()
	c, private := dial(t, port, h, small)
	if c != nil {
		t.Errorf("%s: it is served", what)
		return
	}
	reject, err := wire.DecodeReject(private)
	if err != nil || reject.Reason != want {
		t.Errorf("%s: %+v, %v, want reason %d", what, reject, err, want)
	}
}

// send sends a command.
func (c *client) send(r wire.Request) {
	c.t.Helper()
	if err := c.Send(r.Append(nil), 0); err != nil {
		c.t.Fatal(err)
	}
}

// lend returns memory with the data in it that the target may reach.
func (c *client) lend(data []byte) transport.Remote {
	c.t.Helper()
	r, err := c.Lend(len(data))
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := ownMemory(c.t).WriteAt(data, int64(r.Addr)); err != nil {
		c.t.Fatal(err)
	}
	return r
}

// lent returns what is in memory that was lent.
func lent(t *testing.T, r transport.Remote, n int) []byte {
	t.Helper()
	data := make([]byte, n)
	if _, err := ownMemory(t).ReadAt(data, int64(r.Addr)); err != nil {
		t.Fatal(err)
	}
	return data
}

// ownMemory is this process's, until the end of the test.
func ownMemory(t *testing.T) *os.File {
	t.Helper()
	f, err := os.OpenFile("/proc/self/mem", os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = f.Close() })
	return f
}

// call sends a command and returns its answer.
func (c *client) call(r wire.Request) wire.Answer {
	c.t.Helper()
	c.send(r)
	message, err := c.Recv()
	if err != nil {
		c.t.Fatalf("no answer: %v", err)
	}
	answers, err := wire.DecodeAnswers(append([]byte(nil), message.Data...))
	if err != nil || len(answers) != 1 {
		c.t.Fatalf("%d answers, %v", len(answers), err)
	}
	if err := message.Release(); err != nil {
		c.t.Fatal(err)
	}
	return answers[0]
}

func read(offset uint64, n uint32) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpRead, Flags: wire.FlagInline, Tag: 1, Length: n, Offset: offset}}
}

func write(offset uint64, data []byte) wire.Request {
	return wire.Request{Command: wire.Command{Op: wire.OpWrite, Flags: wire.FlagInline, Tag: 2, Length: uint32(len(data)), Offset: offset, CRC: wire.CRC32C(data)}, Data: data}
}

// large is a command whose data is in the client's memory.
func large(op wire.Op, offset uint64, data []byte, memory transport.Remote) wire.Request {
	r := wire.Request{Command: wire.Command{Op: op, Tag: 3, Length: uint32(len(data)), Offset: offset, Addr: memory.Addr, Rkey: memory.Rkey}}
	if op == wire.OpWrite {
		r.CRC = wire.CRC32C(data)
	}
	return r
}

// isServed checks that a connection goes on.
func (c *client) isServed() {
	c.t.Helper()
	if a := c.call(read(0, 512)); a.Status != wire.StatusOK {
		c.t.Errorf("%+v", a)
	}
}

func (c *client) isEnded() {
	c.t.Helper()
	select {
	case <-c.Done():
	case <-time.After(15 * time.Second):
		c.t.Error("the connection goes on")
	}
}
