// SPDX-License-Identifier: Apache-2.0

//go:build lab

package hostileping

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/bridge/transport"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

// dataPeer is a hostile client with UC or UD queue pairs of its own.
type dataPeer struct {
	*peer
	q      transport.Queues
	mem    transport.Memory
	addr   uint64 // the server's slots
	rkey   uint32
	slots  int
	stride int
}

// withQueues makes queue pairs, connects them to the server's, and begins the test. The server knows the first one. What it
// writes to the client's slots gets lost.
func withQueues(p *peer, service transport.Service, queues, slots int) *dataPeer {
	p.t.Helper()
	q, err := p.NewQueues(transport.QueueConfig{Service: service, Queues: queues, Sends: 4, Receives: 1, QKey: 0x33})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(q.Close)
	d := &dataPeer{peer: p, q: q, stride: short}
	if d.mem, err = q.Register(1<<20, 0); err != nil {
		p.t.Fatal(err)
	}
	own := q.Address(0)
	m := control(msgQueue, 0, nil)
	binary.BigEndian.PutUint32(m[8:], own.QPN)
	binary.BigEndian.PutUint32(m[12:], own.PSN)
	if service == transport.UD {
		binary.BigEndian.PutUint32(m[16:], own.QKey)
	}
	if slots > 0 {
		m[23], m[35] = byte(slots), 1
	}
	p.send(m, 0)
	r := p.expect(msgQueue)
	d.slots, d.addr, d.rkey = int(binary.BigEndian.Uint32(r[20:])), binary.BigEndian.Uint64(r[24:]), binary.BigEndian.Uint32(r[32:])
	theirs := transport.QueueAddress{QPN: binary.BigEndian.Uint32(r[8:]), PSN: binary.BigEndian.Uint32(r[12:]), QKey: binary.BigEndian.Uint32(r[16:])}
	for i := range queues {
		if err := q.Connect(i, theirs, 0); err != nil {
			p.t.Fatal(err)
		}
	}
	p.send(control(msgGo, 0, nil), 0)
	return d
}

// post posts a work request with data, and waits until it has left.
func (d *dataPeer) post(w transport.Work, data []byte) {
	d.t.Helper()
	copy(d.mem.Data, data)
	w.Addr, w.Length, w.Lkey, w.Flags = d.mem.Addr, uint32(len(data)), d.mem.Lkey, transport.Signalled
	works, _ := d.q.Batch()
	works[0] = w
	for end, n := time.Now().Add(guest.Slow(10*time.Second)), 1; ; n = 0 {
		done, err := d.q.Turn(n, 0, 100*time.Millisecond, false)
		if err != nil || len(done) > 0 && done[0].Status != 0 {
			d.t.Fatalf("post: %v, %v", err, done)
		}
		if len(done) > 0 {
			return
		}
		if time.Now().After(end) {
			d.t.Fatal("the work request does not complete")
		}
	}
}

func (d *dataPeer) sendData(data []byte) {
	d.t.Helper()
	d.post(transport.Work{Op: transport.OpSend}, data)
}

// writeSlot writes to the server's memory from a slot on.
func (d *dataPeer) writeSlot(slot int, data []byte) {
	d.t.Helper()
	d.post(transport.Work{Op: transport.OpWrite, RemoteAddr: d.addr + uint64(slot*d.stride), Rkey: d.rkey}, data)
}

// writeImm writes to a slot with immediate data.
func (d *dataPeer) writeImm(immediate uint32, data []byte) {
	d.t.Helper()
	d.post(transport.Work{
		Op: transport.OpWriteImmediate, RemoteAddr: d.addr + uint64(int(immediate)%d.slots*d.stride), Rkey: d.rkey, Immediate: immediate,
	}, data)
}

// words is the data of a message of the client on queue pair 0.
func words(n int, tag uint16, number uint32) []byte {
	var b []byte
	for i := range uint64(n / 8) {
		b = binary.BigEndian.AppendUint64(b, uint64(tag)<<48|i<<32|uint64(number))
	}
	return b
}

// with returns changes of a hello, of which later ones count.
func with(changes ...map[int]byte) map[int]byte {
	all := map[int]byte{}
	for _, c := range changes {
		maps.Copy(all, c)
	}
	return all
}

// Hellos of tests on UC, of four messages each way if they are LAT.
var (
	ucSend     = map[int]byte{17: 2, 19: 2}
	ucImm      = map[int]byte{16: 3, 17: 2, 19: 2}
	ucWrite    = map[int]byte{16: 2, 17: 2, 19: 2, 39: 0}
	ucLatency  = map[int]byte{17: 2, 18: 2, 19: 0, 27: 4, 37: 1}
	deepWrites = with(ucWrite, map[int]byte{36: 0x40, 37: 0})
)

// uc is a hostile client with one UC queue pair.
func uc(do func(d *dataPeer)) func(p *peer, port int) {
	return func(p *peer, _ int) { do(withQueues(p, transport.UC, 1, 0)) }
}

// checkOf is a CHECK of a queue pair.
func checkOf(queue byte, n int) []byte { return control(msgCheck, uint64(n), map[int]byte{3: queue}) }

// Clients that break the protocol by what they send on a data queue pair, or say of it.
func TestHostileVerbsData(t *testing.T) {
	latency := func(do func(d *dataPeer)) func(p *peer, port int) {
		return func(p *peer, _ int) { do(withQueues(p, transport.UC, 1, 1)) }
	}
	message := words(short, 777, 0)
	violation := []error{unix.EPROTO}
	against(t, []hostileVerbsClient{
		{"short SEND", ucSend, uc(func(d *dataPeer) { d.sendData(message[1:]) }), violation},
		{"SEND of one byte", ucSend, uc(func(d *dataPeer) { d.sendData(message[:1]) }), violation},
		{"SEND instead of WRITE_IMM", ucImm, uc(func(d *dataPeer) { d.sendData(nil) }), violation},
		{"short WRITE_IMM", ucImm, uc(func(d *dataPeer) { d.writeImm(0, message[1:]) }), violation},
		{"WRITE_IMM without credit", ucImm, uc(func(d *dataPeer) { d.writeImm(uint32(d.slots), message) }), violation},
		{"immediate far ahead", ucImm, uc(func(d *dataPeer) { d.writeImm(1<<24, message) }), violation},
		{"no CHECK", ucWrite, uc(func(d *dataPeer) { d.sendData(make([]byte, 64)) }), violation},
		{"short CHECK", ucWrite, uc(func(d *dataPeer) { d.sendData(checkOf(0, 0)[1:]) }), violation},
		{"CHECK of another queue pair", ucWrite, uc(func(d *dataPeer) { d.sendData(checkOf(1, 1)) }), violation},
		{"CHECK with a reserved field", ucWrite, uc(func(d *dataPeer) { d.sendData(control(msgCheck, 1, map[int]byte{5: 1})) }), violation},
		{"CHECK without credit", ucWrite, uc(func(d *dataPeer) { d.sendData(checkOf(0, d.slots+1)) }), violation},
		{"control CHECK without credit", ucWrite, uc(func(d *dataPeer) { d.send(checkOf(0, d.slots+1), 0) }), violation},
		{"control CHECK of all numbers", ucWrite, uc(func(d *dataPeer) { d.send(checkOf(0, -1), 0) }), violation},
		{"WRITE_IMM after the last", with(ucLatency, map[int]byte{16: 3}), latency(func(d *dataPeer) { d.writeImm(9, message) }), violation},
		{"WRITE after the last", with(ucLatency, map[int]byte{16: 2, 39: 0}), latency(func(d *dataPeer) { d.writeSlot(0, words(short, 777, 9)) }), violation},
		{"CHECK that was overtaken", ucWrite, uc(overtakenCheck), []error{nil}},
		{"CHECK right behind messages", ucImm, uc(promptChecks), []error{nil}},
		{"no DONE", with(ucImm, map[int]byte{19: 3, 27: 4}), func(p *peer, _ int) {
			d := withQueues(p, transport.UC, 1, 4)
			d.expect(msgDone)
			d.send(control(msgReport, 0, map[int]byte{23: 4}), 0) // all four were lost
		}, []error{unix.ETIMEDOUT}},
		{"everything spoilt", deepWrites, uc(spoilAll), []error{unix.EBADMSG}},
		{"datagrams of another queue pair", map[int]byte{19: 2}, strangers, []error{nil}},
	})
}

// overtakenCheck sends a CHECK on the control connection, and then a smaller one on the queue pair: it is ignored.
func overtakenCheck(d *dataPeer) {
	for i := range 2 {
		d.writeSlot(i, words(short, 777, uint32(i)))
	}
	time.Sleep(guest.Slow(200 * time.Millisecond)) // they arrive
	d.send(checkOf(0, 2), 0)
	d.expect(msgCredit)
	d.sendData(checkOf(0, 1))
	time.Sleep(guest.Slow(200 * time.Millisecond))
	d.send(control(msgDone, 2, nil), 0)
	if got, want := d.expect(msgReport)[8:48], report(2, 0, 0, 0, 0); !bytes.Equal(got, want) {
		d.t.Errorf("REPORT of %x, want %x", got, want)
	}
	d.disconnect()
}

// promptChecks sends each CHECK on the control connection when the messages have just arrived: none counts as lost. All is
// sent by one CPU, so that nothing overtakes.
func promptChecks(d *dataPeer) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var before, one unix.CPUSet
	one.Set(0)
	if err := errors.Join(unix.SchedGetaffinity(0, &before), unix.SchedSetaffinity(0, &one)); err != nil {
		d.t.Fatal(err)
	}
	defer func() { _ = unix.SchedSetaffinity(0, &before) }()
	const rounds = 200
	sent := uint32(0)
	for range rounds {
		for range 4 {
			d.writeImm(sent, words(short, 777, sent))
			sent++
		}
		d.send(checkOf(0, int(sent)), 0)
		for binary.BigEndian.Uint64(d.expect(msgCredit)[8:]) < uint64(sent) {
		}
		// The messages alone may have brought this CREDIT. On a busy host the server would hold more CHECKs than a
		// client may send.
		time.Sleep(guest.Slow(2 * time.Millisecond))
	}
	d.send(control(msgDone, uint64(sent), nil), 0)
	if got, want := d.expect(msgReport)[8:48], report(uint64(sent), 0, 0, 0, 0); !bytes.Equal(got, want) {
		d.t.Errorf("REPORT of %x, want %x", got, want)
	}
	d.disconnect()
}

// spoilAll fills all slots with garbage. Whether they are being written is found out for all at once: for each on its own it
// would take 16 s.
func spoilAll(d *dataPeer) {
	if d.slots < 16000 {
		d.t.Fatalf("the server has %d slots", d.slots)
	}
	d.post(transport.Work{Op: transport.OpWrite, RemoteAddr: d.addr, Rkey: d.rkey}, bytes.Repeat([]byte{0x5a}, d.slots*d.stride))
	time.Sleep(guest.Slow(time.Second)) // it arrives
	asked := time.Now()
	d.send(checkOf(0, d.slots), 0)
	d.expect(msgCredit)
	if took := time.Since(asked); took > guest.Slow(8*time.Second) {
		late.Errorf(d.t, "CREDIT after %v", took)
	}
	d.send(control(msgDone, uint64(d.slots), nil), 0)
	if damaged := binary.BigEndian.Uint64(d.expect(msgReport)[40:]); damaged == 0 {
		d.t.Error("REPORT of no damage")
	}
	d.disconnect()
}

// strangers sends datagrams from a queue pair that the server does not know, as if the client's address had changed: they
// are ignored, and lost.
func strangers(p *peer, _ int) {
	d := withQueues(p, transport.UD, 2, 0)
	for i := range 3 {
		d.post(transport.Work{Op: transport.OpSend, Queue: 1}, words(short, 777, uint32(i)))
	}
	d.sendData(words(short, 777, 3))
	d.send(control(msgDone, 4, nil), 0)
	if got, want := d.expect(msgReport)[8:48], report(1, 3, 0, 0, 0); !bytes.Equal(got, want) {
		d.t.Errorf("REPORT of %x, want %x", got, want)
	}
	d.disconnect()
}

// report is the counts of a REPORT.
func report(counts ...uint64) (b []byte) {
	for _, n := range counts {
		b = binary.BigEndian.AppendUint64(b, n)
	}
	return b
}

// Each way in which a message can be another one's is found, and the REPORT and the server's log say which one it is.
func TestMessagesOfOthers(t *testing.T) {
	const n = 192
	right := words(n, 777, 0)
	changed := func(change func(b []byte)) []byte {
		b := bytes.Clone(right)
		change(b)
		return b
	}
	for _, tc := range []struct {
		name   string
		data   []byte
		kind   string
		damage byte // enum krping_verbs_damage
		offset byte
	}{
		{"another queue pair", words(n, 776, 0), "foreign", 1, 1},
		{"the other direction", words(n, ^uint16(777), 0), "foreign", 1, 0},
		{"another place", changed(func(b []byte) { copy(b[40:], right[48:]) }), "shifted", 2, 43},
		{"an earlier message", words(n, 777, 5), "stale", 3, 7},
		{"partly an earlier message", changed(func(b []byte) { copy(b[80:], words(n, 777, 5)[80:]) }), "torn", 4, 87},
		{"a flipped bit", changed(func(b []byte) { b[100] ^= 4 }), "damaged", 5, 100},
	} {
		t.Run(tc.name, func(t *testing.T) {
			line := fmt.Sprintf("queue pair 0, message 0, byte %d: %s", tc.offset, tc.kind)
			before := strings.Count(guest.Run(t, "dmesg"), line)
			against(t, []hostileVerbsClient{{"message", with(ucImm, map[int]byte{11: n}), uc(func(d *dataPeer) {
				d.stride = n
				d.writeImm(0, tc.data)
				d.send(control(msgDone, 1, nil), 0)
				r := d.expect(msgReport)
				if want := report(1, 0, 0, 0, 1, 0); !bytes.Equal(r[8:56], want) || r[59] != tc.offset || r[60] != tc.damage {
					d.t.Errorf("REPORT of %x, want %x, damage %d at byte %d", r[8:], want, tc.damage, tc.offset)
				}
				d.disconnect()
			}), []error{unix.EBADMSG}}})
			if got := strings.Count(guest.Run(t, "dmesg"), line); got == before {
				t.Errorf("the log has no %q", line)
			}
		})
	}
}
