// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/bits"
	"math/rand/v2"
	"os/exec"
	"testing"

	"krping/bridge/wire"
)

// Of the volume of testdata/commands.c.
const volumeSize = 65536

var volumeLimits = wire.Limits{BlockSize: 512, MaxData: 32768, MaxInline: 4096, MaxMessage: 8192, Depth: 6}

// executing is a process of testdata/commands.c, and what its volume should have.
type executing struct {
	t      testing.TB
	in     io.WriteCloser
	out    io.Reader
	volume []byte
	counts [4]uint64 // of shim_counts
}

func startExecuting(t testing.TB) *executing {
	t.Helper()
	cmd := exec.Command(compileC(t, "testdata/commands.c"))
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("commands.c: %v\n%s", err, stderr.String())
		}
	})
	return &executing{t: t, in: in, out: out, volume: make([]byte, volumeSize)}
}

func (e *executing) read(n int) []byte {
	e.t.Helper()
	b := make([]byte, n)
	if _, err := io.ReadFull(e.out, b); err != nil {
		e.t.Fatal(err)
	}
	return b
}

func (e *executing) number() uint32 { return binary.LittleEndian.Uint32(e.read(4)) }

// round is a message and its circumstances.
type round struct {
	msg                       []byte
	writes, writeback, stable bool
	busy                      uint32
	version                   uint8

	requests         []wire.Request
	violation        error
	left             []byte
	answers          []byte
	executed, behind int
}

// expects executes a round as Go would. All of the message is left if any of it breaks the protocol or is no READ or
// WRITE; otherwise the commands that do not only copy memory.
func (e *executing) expects(r *round) {
	limits := volumeLimits
	limits.Version = r.version
	r.left = r.msg
	r.requests, r.violation = wire.DecodeRequests(r.msg, limits)
	if r.violation != nil {
		return
	}
	tags := map[uint32]bool{r.busy: true}
	for _, q := range r.requests {
		if q.Op != wire.OpRead && q.Op != wire.OpWrite || tags[uint32(q.Tag)] {
			return
		}
		tags[uint32(q.Tag)] = true
	}
	if len(r.requests)+1 > int(limits.Depth) && r.busy != noTag {
		return
	}
	r.left = nil
	for _, q := range r.requests {
		inside := q.Offset <= volumeSize && uint64(q.Length) <= volumeSize-q.Offset
		writable := r.writes && (r.stable || r.writeback && q.Flags&wire.FlagFUA == 0)
		switch {
		case q.Rkey == 0 && inside && q.Op == wire.OpRead:
			data := e.volume[q.Offset : q.Offset+uint64(q.Length)]
			a := wire.Response{Tag: q.Tag, Flags: wire.ResponseInline, Length: q.Length, CRC: wire.CRC32C(data)}
			r.answers = a.Append(r.answers, data)
			e.counts[0]++
			e.counts[1] += uint64(q.Length)
		case q.Rkey == 0 && inside && writable && wire.CRC32C(q.Data) == q.CRC:
			copy(e.volume[q.Offset:], q.Data)
			r.answers = wire.Response{Tag: q.Tag, Length: q.Length}.Append(r.answers, nil)
			e.counts[2]++
			e.counts[3] += uint64(q.Length)
		default:
			r.left = q.Append(r.left)
			r.behind++
			continue
		}
		r.executed++
	}
}

const noTag = 65536 // as SHIM_TAGS

// runs executes a round in C, and compares.
func (e *executing) runs(r *round) {
	e.t.Helper()
	e.expects(r)
	flag := map[bool]uint32{true: 1}
	header := []uint32{uint32(len(r.msg)), flag[r.writes], flag[r.writeback], flag[r.stable], uint32(wire.CommandFlags(r.version)), r.busy}
	var b []byte
	for _, v := range header {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	if _, err := e.in.Write(append(b, r.msg...)); err != nil {
		e.t.Fatal(err)
	}
	left := e.read(int(e.number()))
	answers := e.read(int(e.number()))
	inFlight, set := int(int32(e.number())), 0
	tags := e.read(65536 / 8)
	for _, octet := range tags {
		set += bits.OnesCount8(octet)
	}
	want := r.behind
	if r.busy != noTag {
		want++
	}
	if !bytes.Equal(left, r.left) || !bytes.Equal(answers, r.answers) || inFlight != want || set != want {
		e.t.Fatalf("message of %d bytes, %+.300v (%v)\nleft %d bytes, want %d; answers %d bytes, want %d\n%d in flight, %d tags, want %d",
			len(r.msg), r.requests, r.violation, len(left), len(r.left), len(answers), len(r.answers), inFlight, set, want)
	}
}

// ends compares the volume and the counts.
func (e *executing) ends() {
	e.t.Helper()
	if _, err := e.in.Write(make([]byte, 24)); err != nil {
		e.t.Fatal(err)
	}
	if !bytes.Equal(e.read(volumeSize), e.volume) {
		e.t.Error("the volume is not what Go would have made of it")
	}
	for i, want := range e.counts {
		if got := binary.LittleEndian.Uint64(e.read(8)); got != want {
			e.t.Errorf("count %d is %d, want %d", i, got, want)
		}
	}
}

// someMessage returns commands that are mostly right, in one message.
func someMessage(random *rand.Rand) []byte {
	one := func(n int) bool { return random.IntN(n) == 0 }
	var msg []byte
	for range 1 + random.IntN(7) {
		q := wire.Request{Command: wire.Command{
			Op: wire.Op(1 + random.IntN(2)), Flags: wire.FlagInline, Tag: uint16(random.IntN(40)),
			Length: uint32(1+random.IntN(8)) * 512, Offset: uint64(random.IntN(130)) * 512,
		}}
		if one(30) {
			q.Op = wire.Op(random.IntN(10))
		}
		if one(10) {
			q.Flags, q.Rkey, q.Addr = 0, random.Uint32(), random.Uint64()
		}
		if one(40) {
			q.Length, q.Offset = random.Uint32(), random.Uint64()
		}
		if one(40) {
			q.Tag = uint16(random.Uint32())
		}
		if q.Op == wire.OpWrite && one(8) {
			q.Flags |= wire.FlagFUA
		}
		if one(60) {
			q.Flags ^= 1 << random.IntN(8)
		}
		if q.Op == wire.OpWrite && q.Rkey == 0 && q.Length <= 8192 {
			q.Data = make([]byte, q.Length)
			for i := range q.Data {
				q.Data[i] = byte(random.Uint32())
			}
		}
		if q.Op == wire.OpWrite {
			q.CRC = wire.CRC32C(q.Data)
		}
		if one(40) {
			q.CRC ^= 1
		}
		msg = q.Append(msg)
	}
	if one(50) {
		msg = msg[:random.IntN(len(msg)+1)]
	}
	return msg
}

// C and Go agree on what messages ask for, what becomes of a volume in memory, and what the answers are.
func TestExecutedCommands(t *testing.T) {
	e := startExecuting(t)
	random := rand.New(rand.NewPCG(1, 2))
	likely := func() bool { return random.IntN(4) > 0 }
	executed, behind, violations := 0, 0, 0
	for range 20000 {
		r := &round{msg: someMessage(random), writes: likely(), writeback: likely(), stable: likely(), busy: noTag, version: uint8(1 + random.IntN(2))}
		if random.IntN(4) == 0 {
			r.busy = uint32(random.IntN(40))
		}
		if len(r.msg) == 0 {
			continue
		}
		e.runs(r)
		executed, behind = executed+r.executed, behind+r.behind
		if r.violation != nil {
			violations++
		}
	}
	e.ends()
	if executed < 10000 || behind < 1000 || violations < 1000 {
		t.Errorf("%d commands executed, %d left, %d messages wrong: not what this test is for", executed, behind, violations)
	}
}

func FuzzExecutedCommands(f *testing.F) {
	random := rand.New(rand.NewPCG(3, 4))
	for range 20 {
		f.Add(someMessage(random), true, true, true, uint8(2))
	}
	e := startExecuting(f)
	f.Fuzz(func(t *testing.T, msg []byte, writes, writeback, stable bool, version uint8) {
		if len(msg) == 0 || len(msg) > 8192 {
			return
		}
		e.t = t
		e.runs(&round{msg: msg, writes: writes, writeback: writeback, stable: stable, busy: noTag, version: 1 + version%2})
	})
}
