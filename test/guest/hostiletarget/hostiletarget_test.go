// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package hostiletarget tests the block client inside one VM against a target that lies, fails, changes and hangs up: the
// connection ends, I/O does not, and no memory is touched that is none of the target's business.
package hostiletarget

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"krping/bridge/transport"
	"krping/bridge/verbs"
	"krping/bridge/wire"
	"krping/proc"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

const (
	capacity = 1 << 20
	small    = 4096  // bytes that travel in a message
	large    = 65536 // bytes that the target moves
	noKey    = 0xdeadbeef
)

// grant is what the target gives its client if it does not lie about that.
var grant = wire.Welcome{Depth: 4, Capacity: capacity, Epoch: 1, BlockSize: 512, MaxData: large, MaxInline: small, MaxMessage: 16384}

var ports atomic.Int32

// leavesNothing checks, when the test and its subtests have ended, that no RDMA resource is left.
func leavesNothing(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { guest.NoResources(t) })
}

func granting(change func(w *wire.Welcome)) wire.Welcome {
	w := grant
	change(&w)
	return w
}

// rogue is a target that serves vol0 from memory: as it should, but for what it is told to do.
type rogue struct {
	t     *testing.T
	addr  netip.AddrPort
	links sync.WaitGroup

	mu      sync.Mutex
	live    map[*link]bool
	welcome []byte
	greets  func(l *link) // does this first with a client
	telling *telling
	memory  []byte
}

// link is a connection of it.
type link struct {
	*verbs.Conn
	g     *rogue
	limit wire.Limits
}

// fib is what a target does with commands of an op and n bytes, until it is done, and what the client's
// kernel says of it.
type fib struct {
	name  string
	op    wire.Op
	n     int
	tell  func(l *link, r wire.Request) (done bool)
	says  string
	often int           // it is said so often; 0: once
	held  chan struct{} // a large read waits meanwhile: it has arrived
	local bool          // told to a tap, too
}

// telling is a fib that is told.
type telling struct {
	fib
	mu   sync.Mutex
	over bool
	told chan *link // the connection on which it was done
}

// startRogue serves until the end of the test.
func startRogue(t *testing.T) *rogue {
	t.Helper()
	g := &rogue{t: t, addr: netip.AddrPortFrom(netip.MustParseAddr(guest.Addr(t)), uint16(12000+ports.Add(1))), live: map[*link]bool{}, memory: make([]byte, capacity)}
	_, _ = rand.Read(g.memory) // never fails
	g.grants(grant)
	listener, err := verbs.Listen(g.addr)
	if err != nil {
		t.Fatal(err)
	}
	g.links.Go(func() {
		for {
			request, err := listener.Accept()
			if err != nil {
				return
			}
			g.links.Go(func() { g.serve(request) })
		}
	})
	t.Cleanup(func() {
		listener.StopAccepting()
		g.hangUp()
		g.links.Wait()
		listener.Close()
	})
	return g
}

// grants has those that connect from now on get this welcome.
func (g *rogue) grants(w wire.Welcome) { g.replies(w.Append(nil)) }

func (g *rogue) replies(private []byte) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.welcome = private
}

// hangUp ends all connections.
func (g *rogue) hangUp() {
	g.mu.Lock()
	links := slices.Collect(maps.Keys(g.live))
	g.mu.Unlock()
	for _, l := range links {
		l.Close()
	}
}

func (g *rogue) greet(do func(l *link)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.greets = do
}

// tells begins to tell a fib, and delivers the connection on which that is done.
func (g *rogue) tells(f fib) <-chan *link {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.telling = &telling{fib: f, told: make(chan *link, 1)}
	return g.telling.told
}

// behaves tells no fib from now on.
func (g *rogue) behaves() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.telling = nil
}

// holds says whether its memory has the data at an offset.
func (g *rogue) holds(offset int, data []byte) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.HasPrefix(g.memory[offset:], data)
}

func (g *rogue) serve(request *verbs.Request) {
	l := &link{g: g}
	g.mu.Lock()
	private, greets := g.welcome, g.greets
	g.mu.Unlock()
	// Of a welcome that is refused nothing is used.
	w, _ := wire.DecodeWelcome(append(bytes.Clone(private), make([]byte, wire.WelcomeSize)...))
	l.limit = wire.Limits{BlockSize: w.BlockSize, MaxData: w.MaxData, MaxInline: w.MaxInline, MaxMessage: w.MaxMessage, Depth: w.Depth}
	conn, err := request.Accept(private, verbs.Config{
		Receives: int(min(w.Depth, 4)) + 1, MaxMessage: int(min(w.MaxMessage, 65536)) + 4096, Buffers: 2, MaxData: large,
	})
	if err != nil {
		return // it has gone again
	}
	l.Conn = conn
	g.mu.Lock()
	g.live[l] = true
	g.mu.Unlock()
	if greets != nil {
		greets(l)
	}
	l.serve()
	g.mu.Lock()
	delete(g.live, l)
	g.mu.Unlock()
	conn.Release()
}

// serve answers commands until the connection ends.
func (l *link) serve() {
	for {
		message, err := l.Recv()
		if err != nil {
			return
		}
		msg := bytes.Clone(message.Data)
		if message.Release() != nil {
			return
		}
		requests, err := wire.DecodeRequests(msg, l.limit)
		if err != nil {
			l.g.t.Errorf("the client: %v", err)
			return
		}
		for _, r := range requests {
			if !l.lies(r) {
				l.answer(r)
			}
		}
	}
}

// lies says whether the command has got no honest answer.
func (l *link) lies(r wire.Request) bool {
	l.g.mu.Lock()
	f := l.g.telling
	l.g.mu.Unlock()
	if f == nil || f.op != r.Op || f.held == nil && (f.n > small) != (r.Rkey != 0) {
		return false
	}
	f.mu.Lock() // the client may be back before the fib is done
	defer f.mu.Unlock()
	if f.over {
		return false
	}
	if f.tell(l, r) {
		f.over = true
		f.told <- l
	}
	return true
}

// answer does what an honest target does. A client that has gone hears nothing of it.
func (l *link) answer(r wire.Request) {
	if msg, err := l.perform(r); err == nil {
		_ = l.Send(msg, r.Rkey)
	}
}

// perform carries out a command, and returns the message that answers it.
func (l *link) perform(r wire.Request) ([]byte, error) {
	a := wire.Response{Tag: r.Tag}
	var data []byte
	var err error
	switch r.Op {
	case wire.OpRead:
		data = l.g.load(r)
		a.Length, a.CRC = r.Length, wire.CRC32C(data)
		if r.Rkey != 0 {
			return a.Append(nil, nil), l.put(remote(r), data)
		}
		a.Flags = wire.ResponseInline
	case wire.OpWrite:
		a.Length = r.Length
		err = l.store(r)
	case wire.OpFlush:
	case wire.OpKeepAlive:
		data = binary.BigEndian.AppendUint64(nil, capacity)
		a.Flags, a.Length = wire.ResponseInline, uint32(len(data))
	default:
		a.Status = wire.StatusUnsupported
	}
	return a.Append(nil, data), err
}

func (g *rogue) load(r wire.Request) []byte {
	g.mu.Lock()
	defer g.mu.Unlock()
	return bytes.Clone(g.memory[r.Offset:][:r.Length])
}

func (l *link) store(r wire.Request) error {
	data := r.Data
	if r.Rkey != 0 {
		var err error
		if data, err = l.get(remote(r), int(r.Length)); err != nil {
			return err
		}
	}
	if wire.CRC32C(data) != r.CRC {
		l.g.t.Errorf("what the client wrote at %d does not match its CRC", r.Offset)
	}
	l.g.mu.Lock()
	defer l.g.mu.Unlock()
	copy(l.g.memory[r.Offset:], data)
	return nil
}

// remote is the memory that a command opens.
func remote(r wire.Request) transport.Remote { return transport.Remote{Addr: r.Addr, Rkey: r.Rkey} }

// put moves data into the client's memory.
func (l *link) put(to transport.Remote, data []byte) error {
	buf, err := l.Buffer(len(data))
	if err != nil {
		return err
	}
	defer l.Free(buf)
	copy(buf, data)
	return l.Write(buf, to)
}

// putDenied is put where the client has not allowed it. iWARP tells a writer nothing, but ends the connection.
func (l *link) putDenied(to transport.Remote, data []byte) error {
	err := l.put(to, data)
	if err != nil || !guest.IWARP(l.g.t) {
		return err
	}
	select {
	case <-l.Done():
		return errors.New("the connection has ended")
	case <-time.After(ioTime):
		return nil
	}
}

// get moves n bytes of the client's memory here.
func (l *link) get(from transport.Remote, n int) ([]byte, error) {
	buf, err := l.Buffer(n)
	if err != nil {
		return nil, err
	}
	defer l.Free(buf)
	if err := l.Read(buf, from); err != nil {
		return nil, err
	}
	return bytes.Clone(buf), nil
}

// options of the clients, so that a silent target is soon asked for a sign of life.
func options() string {
	return fmt.Sprintf(",queues=1,depth=%d,heartbeat=%d", grant.Depth, guest.Slow(2*time.Second)/time.Second)
}

// command is the client's, with more options.
func (g *rogue) command(more string) string {
	return fmt.Sprintf("client,addr=%s,port=%d,block=vol0%s%s", g.addr.Addr(), g.addr.Port(), options(), more)
}

// attach makes vol0's disk, and stops it at the end of the test as an administrator would.
func (g *rogue) attach(t *testing.T, more string) *os.File {
	t.Helper()
	dev := guest.OpenDirect(t, guest.Attach(t, int(g.addr.Port()), options()+more))
	t.Cleanup(func() {
		_ = dev.Close()
		if guest.Session(t, "vol0") != nil {
			stopInTime(t, "")
		}
		isGone(t)
	})
	return dev
}

// stopInTime stops vol0's session, within three seconds.
func stopInTime(t *testing.T, options string) {
	t.Helper()
	start := time.Now()
	if err := guest.Command("stop,block=vol0"+options, guest.Limit); err != nil {
		t.Errorf("stop vol0: %v", err)
	}
	if took := time.Since(start); took > guest.Slow(3*time.Second) {
		late.Errorf(t, "stop took %v", took)
	}
}

// isGone checks that neither a session nor a disk is left, and leaves none to the next test.
func isGone(t *testing.T) {
	t.Helper()
	if s := guest.Session(t, "vol0"); s != nil {
		t.Errorf("there is a session: %v", s)
		stopInTime(t, ",force")
	}
	if disks, _ := filepath.Glob("/sys/block/krping*"); disks != nil { // fails for bad patterns only
		t.Errorf("there is a disk: %v", disks)
	}
}

// counter returns one of the session.
func counter(t *testing.T, key string) int {
	t.Helper()
	n, err := strconv.Atoi(guest.Session(t, "vol0")[key])
	if err != nil {
		t.Fatalf("%s: %v", key, err)
	}
	return n
}

// ioTime is how long I/O of a client may take that has to connect anew meanwhile.
const ioTime = 20 * time.Second

// reads reads into a buffer of Aligned.
func reads(t *testing.T, dev *os.File, buf []byte, at int64) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := dev.ReadAt(buf, at)
		ended <- err
	}()
	return guest.Within(t, ioTime, "a read ends", ended)
}

func writes(t *testing.T, dev *os.File, data []byte) error {
	t.Helper()
	ended := make(chan error, 1)
	go func() {
		_, err := dev.WriteAt(data, 0)
		ended <- err
	}()
	return guest.Within(t, ioTime, "a write ends", ended)
}

// noise is memory for direct I/O with data that was never there before.
func noise(t *testing.T, n int) []byte {
	t.Helper()
	data := guest.Aligned(t, n)
	_, _ = rand.Read(data) // never fails
	return data
}

// kernelLog is what the module says from its opening on.
type kernelLog struct {
	*proc.Kmsg
	said []string
}

// The module says a thing ten times in five seconds at most.
const pause = 550 * time.Millisecond

var nextLog time.Time

// openLog returns when the module may say again so often what it has said already.
func openLog(t *testing.T, times int) *kernelLog {
	t.Helper()
	time.Sleep(time.Until(nextLog))
	nextLog = time.Now().Add(time.Duration(times) * pause)
	fs, err := proc.NewFS("/proc")
	if err != nil {
		t.Fatal(err)
	}
	kmsg, err := fs.OpenKmsg(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = kmsg.Close() })
	return &kernelLog{Kmsg: kmsg}
}

// says waits until the module has said this of vol0.
func (k *kernelLog) says(t *testing.T, text string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), guest.Slow(10*time.Second))
	defer cancel()
	for {
		m, err := k.Wait(ctx)
		if err != nil {
			t.Fatalf("the module does not say %q, but:\n%s", text, strings.Join(k.said, "\n"))
		}
		if m.Subject != "vol0" {
			continue
		}
		if strings.Contains(m.Text, text) {
			return
		}
		k.said = append(k.said, m.Text)
	}
}
