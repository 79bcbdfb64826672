// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"bytes"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/store"
	bridge "krping/bridge/target"
	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/test/guest/internal/guest"
)

// snoop is a target that uses what clients lend it longer than it may.
type snoop struct {
	t      *testing.T
	target *bridge.Target

	mu    sync.Mutex
	uses  func(c *snoopConn, r transport.Remote) // what is done with a key when it was given back, once
	keys  [][]uint32                             // of the commands, by connection
	tries chan error                             // what became of such a use
	reply int                                    // bytes of what it says beside an accept, if it has not so many
}

// snoopConn is a connection of it.
type snoopConn struct {
	*verbs.Conn
	s     *snoop
	index int
	lent  map[uint32]uint64 // addresses by key, under s.mu
}

func (c *snoopConn) Read(p []byte, from transport.Remote) error {
	c.s.mu.Lock()
	c.lent[from.Rkey] = from.Addr
	c.s.keys[c.index] = append(c.s.keys[c.index], from.Rkey)
	c.s.mu.Unlock()
	return c.Conn.Read(p, from)
}

// Send gives the key of a WRITE back, behind which it is worth nothing.
func (c *snoopConn) Send(msg []byte, invalidate uint32) error {
	err := c.Conn.Send(msg, invalidate)
	c.s.mu.Lock()
	addr, lent := c.lent[invalidate]
	use := c.s.uses
	if lent && use != nil {
		c.s.uses = nil
	}
	c.s.mu.Unlock()
	if lent && use != nil && err == nil {
		use(c, transport.Remote{Addr: addr, Rkey: invalidate})
	}
	return err
}

// read uses the key once more.
func (c *snoopConn) read(r transport.Remote) {
	data, err := c.Buffer(4096)
	if err == nil {
		err = c.Conn.Read(data, r)
		c.Free(data)
	}
	c.s.tries <- err
}

func (c *snoopConn) write(r transport.Remote) {
	data, err := c.Buffer(4096)
	if err == nil {
		err = c.Conn.Write(data, r)
		c.Free(data)
	}
	c.s.tries <- err
}

// startSnoop serves vol0 on the port until the end of the test, with a key unless it is "".
func startSnoop(t *testing.T, port int, key string) *snoop {
	t.Helper()
	volume := &bridge.Volume{Name: "vol0", BlockSize: 512}
	if key != "" {
		volume.Key = access.Key(key)
	}
	memory, err := store.Open("mem:", size, false)
	if err != nil {
		t.Fatal(err)
	}
	volume.Store = memory
	tg, err := bridge.New(zerolog.Nop(), nil, volume)
	if err != nil {
		t.Fatal(err)
	}
	s := &snoop{t: t, target: tg, tries: make(chan error, 8)}
	var clients sync.WaitGroup
	listen(t, port, func(r *verbs.Request) { clients.Go(func() { s.serve(r) }) }, func() {
		_ = tg.Close()
		clients.Wait()
	})
	return s
}

func (s *snoop) serve(request *verbs.Request) {
	session, err := s.target.Admit(request.Private, request.Addr())
	if err != nil {
		var refusal interface{ Append([]byte) []byte }
		if errors.As(err, &refusal) {
			request.Reject(refusal.Append(nil))
		}
		return
	}
	s.mu.Lock()
	reply := guest.Fill(session.Private, max(s.reply, len(session.Private)))
	s.mu.Unlock()
	conn, err := request.Accept(reply, verbs.Config{Receives: int(session.Welcome.Depth) + 1, MaxMessage: bridge.MaxMessage, Buffers: 8, MaxData: bridge.MaxData})
	if err != nil {
		return
	}
	s.mu.Lock()
	c := &snoopConn{Conn: conn, s: s, index: len(s.keys), lent: map[uint32]uint64{}}
	s.keys = append(s.keys, nil)
	s.mu.Unlock()
	s.target.Serve(s.t.Context(), session, c)
	conn.Release()
}

// next has the next key that is given back used, and returns what became of it.
func (s *snoop) next(use func(c *snoopConn, r transport.Remote), dev string) error {
	s.t.Helper()
	s.mu.Lock()
	s.uses = use
	s.mu.Unlock()
	guest.MustKrpingctl(s.t, "write", dev, "--size", "256KiB", "--bs", "64KiB", "--direct")
	return guest.Within(s.t, 30*time.Second, "a key is used", s.tries)
}

// denied checks that the client's device refuses a use of a key. The client disconnects then: if that is seen before
// the refusal, it says nothing, and a key is used once more.
func (s *snoop) denied(what string, use func(c *snoopConn, r transport.Remote), dev string) {
	s.t.Helper()
	var err error
	for range 5 {
		err = s.next(use, dev)
		guest.SessionBecomes(s.t, "live")
		if err == nil || !strings.Contains(err.Error(), "RDMA_CM_EVENT_DISCONNECTED") {
			break
		}
	}
	if err == nil || !strings.Contains(err.Error(), "remote access error") {
		s.t.Errorf("%s: %v, want a remote access error", what, err)
	}
}

// A key opens the memory of one command: behind its response it is worth nothing, neither there
// nor on another connection; and the next command has another.
func TestKeysAreForOneCommand(t *testing.T) {
	leavesNothing(t)
	port := nextPort()
	s := startSnoop(t, port, secret)
	dev := attach(t, port, "--key-file", keyFile(t, secret), "--queues", "1")
	guest.MustKrpingctl(t, "write", dev, "--size", "2MiB", "--bs", "64KiB", "--direct")
	s.mu.Lock()
	keys := slices.Clone(s.keys[0])
	s.mu.Unlock()
	if len(keys) < 32 {
		t.Fatalf("%d keys of 32 writes", len(keys))
	}
	slices.Sort(keys)
	if n := len(slices.Compact(slices.Clone(keys))); n != len(keys) {
		t.Errorf("%d keys for %d commands", n, len(keys))
	}

	var old transport.Remote
	for name, use := range map[string]func(c *snoopConn, r transport.Remote){
		"an RDMA READ":  func(c *snoopConn, r transport.Remote) { old = r; c.read(r) },
		"an RDMA WRITE": func(c *snoopConn, r transport.Remote) { c.write(r) },
	} {
		s.denied(name+" behind the response", use, dev)
	}
	s.denied("a key of another connection", func(c *snoopConn, _ transport.Remote) { c.read(old) }, dev)
	guest.MustKrpingctl(t, "verify", dev)
}

// A key that is valid opens its memory to the connection of who has lent it, to no other: what it gets by another
// client's the target does not get, nor does it fill it.
func TestLiveKeysOfOthers(t *testing.T) {
	const denial = "remote access error"
	onBoth(t, func(t *testing.T, target target) {
		port := nextPort()
		s := target.serve(t, port, "", "")
		stored, own := bytes.Repeat([]byte("stored--"), 512), bytes.Repeat([]byte("owner's-"), 512)
		owner := connectOpen(t, port, hello(1))
		owner.call(write(0, stored))
		memory := owner.lend(own)
		for _, op := range []wire.Op{wire.OpRead, wire.OpWrite} {
			denied := func() bool {
				before := strings.Count(s.log(), denial)
				intruder := connectOpen(t, port, hello(2))
				intruder.send(large(op, 0, own, memory))
				intruder.isEnded()
				for end := time.Now().Add(guest.Slow(time.Second)); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					if strings.Count(s.log(), denial) > before {
						return true
					}
				}
				return false
			}
			tries := 1 // the intruder's disconnect may overtake the denial
			for ; tries < 5 && !denied(); tries++ {
			}
			if tries == 5 {
				t.Errorf("%v: the target says nothing of a %s", op, denial)
			}
			if !bytes.Equal(lent(t, memory, len(own)), own) {
				t.Errorf("%v: the owner's memory is not what it was", op)
			}
			if a := owner.call(read(0, 4096)); a.Status != wire.StatusOK || !bytes.Equal(a.Data, stored) {
				t.Errorf("%v: the volume is not what it was: %+v", op, a.Response)
			}
		}
		// To its owner's connection it is valid still.
		owner.send(large(wire.OpRead, 0, own, memory))
		guest.Eventually(t, 5*time.Second, "the owner gets the data", func() bool { return bytes.Equal(lent(t, memory, len(own)), stored) })
	})
}
