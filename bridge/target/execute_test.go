// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"golang.org/x/sys/unix"

	"krping/bridge/store"
	"krping/bridge/wire"
)

func TestInlineWriteAndRead(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	data := bytes.Repeat([]byte("krping\x00\x00"), 64)
	if a, key := f.one(p, inlineWrite(9, 1024, data)); a.Status != wire.StatusOK || a.Length != 512 || key != 0 {
		t.Errorf("write: %+v, key %d", a, key)
	}
	if a, _ := f.one(p, inlineRead(9, 1024, 512)); a.Status != wire.StatusOK || !bytes.Equal(a.Data, data) || a.CRC != wire.CRC32C(data) {
		t.Errorf("read: %+v", a)
	}
}

func TestLargeWriteAndReadInvalidateTheKey(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	for i := range p.memory[:65536] {
		p.memory[i] = byte(i * 7)
	}
	write := wire.Command{Op: wire.OpWrite, Tag: 1, Length: 65536, Offset: 512, Rkey: 1, CRC: wire.CRC32C(p.memory[:65536])}
	if a, key := f.one(p, wire.Request{Command: write}); a.Status != wire.StatusOK || key != 1 {
		t.Errorf("write: %+v, key %d", a, key)
	}
	read := wire.Command{Op: wire.OpRead, Tag: 2, Length: 65536, Offset: 512, Addr: 1 << 20, Rkey: 1}
	if a, key := f.one(p, wire.Request{Command: read}); a.Status != wire.StatusOK || a.CRC != write.CRC || key != 1 || !bytes.Equal(p.memory[1<<20:1<<20+65536], p.memory[:65536]) {
		t.Errorf("read: %+v, key %d", a, key)
	}
	outside := wire.Command{Op: wire.OpRead, Tag: 3, Length: 65536, Offset: 4 << 20, Rkey: 1}
	if a, key := f.one(p, wire.Request{Command: outside}); a.Status != wire.StatusRange || key != 1 || a.Length != 0 {
		t.Errorf("read outside the volume: %+v, key %d", a, key)
	}
}

func TestErrorStatuses(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	data := make([]byte, 512)
	bad := inlineWrite(1, 0, data)
	bad.CRC ^= 1
	if a, _ := f.one(p, bad); a.Status != wire.StatusCRC {
		t.Errorf("wrong CRC: %+v", a)
	}
	fault := errors.New("broken disk")
	f.store.WriteFault.Store(&fault)
	if a, _ := f.one(p, inlineWrite(1, 0, data)); a.Status != wire.StatusIO {
		t.Errorf("store that fails: %+v", a)
	}
	f.store.ReadFault.Store(&fault)
	if a, _ := f.one(p, inlineRead(1, 0, 512)); a.Status != wire.StatusIO || a.Data != nil {
		t.Errorf("store that fails: %+v", a)
	}
	if a, _ := f.one(p, inlineRead(1, 1<<62, 512)); a.Status != wire.StatusRange {
		t.Errorf("outside: %+v", a)
	}
	unsupported := store.ErrUnsupported
	f.store.ClearFault.Store(&unsupported)
	if a, _ := f.one(p, wire.Request{Command: wire.Command{Op: wire.OpDiscard, Tag: 1, Length: 512}}); a.Status != wire.StatusUnsupported {
		t.Errorf("discard: %+v", a)
	}
	f.volume.ReadOnly = true
	p = f.connect(hello(2, 0))
	if a, _ := f.one(p, inlineWrite(1, 0, data)); a.Status != wire.StatusReadOnly {
		t.Errorf("read-only: %+v", a)
	}
	if n := f.volume.Counters.CRCErrors.Load(); n != 1 {
		t.Errorf("%d CRC errors counted", n)
	}
}

func TestDiscardAndWriteZeroes(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	ones := bytes.Repeat([]byte{1}, 4096)
	for _, op := range []wire.Op{wire.OpDiscard, wire.OpWriteZeroes} {
		if a, _ := f.one(p, inlineWrite(1, 0, ones)); a.Status != wire.StatusOK {
			t.Fatalf("write: %+v", a)
		}
		if a, key := f.one(p, wire.Request{Command: wire.Command{Op: op, Tag: 1, Offset: 512, Length: 1024}}); a.Status != wire.StatusOK || a.Length != 0 || key != 0 {
			t.Errorf("%v: %+v", op, a)
		}
		want := append(append(bytes.Clone(ones[:512]), make([]byte, 1024)...), ones[:2560]...)
		if a, _ := f.one(p, inlineRead(1, 0, 4096)); !bytes.Equal(a.Data, want) { // mem: reads as zeros after a discard, too
			t.Errorf("%v: the wrong bytes are zero", op)
		}
		if a, _ := f.one(p, wire.Request{Command: wire.Command{Op: op, Tag: 1, Offset: 4<<20 - 512, Length: 1024}}); a.Status != wire.StatusRange {
			t.Errorf("%v beyond the end: %+v", op, a)
		}
	}
	f.volume.ReadOnly = true
	p = f.connect(hello(2, 0))
	if a, _ := f.one(p, wire.Request{Command: wire.Command{Op: wire.OpDiscard, Tag: 1, Length: 512}}); a.Status != wire.StatusReadOnly {
		t.Errorf("read-only: %+v", a)
	}
}

// DISCARD is offered, and works, where the store can do it.
func TestDiscardNeedsTheStore(t *testing.T) {
	for can, want := range map[bool]wire.Status{false: wire.StatusUnsupported, true: wire.StatusOK} {
		f := newFixture(t)
		f.store.Store = limited{f.store.Store, store.Features{Discard: can}}
		session, err := f.admit(hello(1, 0))
		if err != nil {
			t.Fatal(err)
		}
		if offered := session.Welcome.Caps&wire.CapDiscard != 0; offered != can {
			t.Errorf("a store that can (%v): DISCARD is offered: %v", can, offered)
		}
		if a, _ := f.one(f.serve(session), wire.Request{Command: wire.Command{Op: wire.OpDiscard, Tag: 1, Length: 512}}); a.Status != want {
			t.Errorf("a store that can (%v): %+v, want status %d", can, a, want)
		}
	}
}

// A file keeps the space of zeroed blocks with NO_UNMAP only. They read as zeros in both cases.
func TestZeroesKeepSpace(t *testing.T) {
	const size = 1 << 20
	for flags, keeps := range map[uint8]bool{0: false, wire.FlagNoUnmap: true} {
		f := newFixture(t)
		path := filepath.Join(t.TempDir(), "a.img")
		if _, err := store.Create(t.Context(), store.New{Path: path, Size: size, Preallocate: true}); err != nil {
			t.Fatal(err)
		}
		s, err := store.Open("file:"+path, store.Options{})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		f.store.Store = s
		p := f.connect(hello(1, 0))
		if a, _ := f.one(p, inlineWrite(1, 0, bytes.Repeat([]byte{1}, 4096))); a.Status != wire.StatusOK {
			t.Fatalf("write: %+v", a)
		}
		if a, _ := f.one(p, wire.Request{Command: wire.Command{Op: wire.OpWriteZeroes, Flags: flags, Tag: 1, Length: size}}); a.Status != wire.StatusOK {
			t.Fatalf("flags %#x: %+v", flags, a)
		}
		var in unix.Stat_t
		if err := unix.Stat(path, &in); err != nil || (512*in.Blocks >= size) != keeps {
			t.Errorf("flags %#x: %d blocks, %v", flags, in.Blocks, err)
		}
		if a, _ := f.one(p, inlineRead(1, 0, 4096)); !bytes.Equal(a.Data, make([]byte, 4096)) {
			t.Errorf("flags %#x: the blocks are not zero", flags)
		}
	}
}

// KEEP_ALIVE is answered with the store's current size while the maximum of commands is in flight.
func TestKeepAlive(t *testing.T) {
	f := newFixture(t)
	path := filepath.Join(t.TempDir(), "grows")
	if _, err := store.Create(t.Context(), store.New{Path: path, Size: 1 << 20}); err != nil {
		t.Fatal(err)
	}
	s, err := store.Open("file:"+path, store.Options{Writeback: true})
	if err != nil {
		t.Fatal(err)
	}
	f.store.Store = s
	p := f.connect(hello(1, 0))
	p.block = make(chan struct{})
	for tag := range uint16(4) {
		p.toTarget <- wire.Request{Command: wire.Command{
			Op: wire.OpWrite, Tag: tag, Length: 8192, Offset: uint64(tag) * 8192, Rkey: 1, CRC: wire.CRC32C(make([]byte, 8192)),
		}}.Append(nil)
	}
	keepAlive := wire.Request{Command: wire.Command{Op: wire.OpKeepAlive, Flags: wire.FlagInline, Tag: wire.TagKeepAlive}}
	for _, size := range []int64{1 << 20, 2<<20 + 100} {
		if err := os.Truncate(path, size); err != nil {
			t.Fatal(err)
		}
		a, _ := f.one(p, keepAlive)
		if want := binary.BigEndian.AppendUint64(nil, uint64(size&^511)); a.Status != wire.StatusOK || !bytes.Equal(a.Data, want) {
			t.Errorf("%d bytes: %+v", size, a)
		}
	}
	close(p.block)
	for answered := 0; answered < 4; {
		answers, _ := f.answers(p)
		answered += len(answers)
	}
}

func TestDigest(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	want := sha256.Sum256(make([]byte, 1<<20))
	a, _ := f.one(p, wire.Request{Command: wire.Command{Op: wire.OpDigest, Flags: wire.FlagInline | wire.FlagSHA256, Tag: 5, Length: 1 << 20}})
	if a.Status != wire.StatusOK || !bytes.Equal(a.Data, want[:]) {
		t.Errorf("%+v", a)
	}
}

func TestManyCommandsInOneMessage(t *testing.T) {
	f := newFixture(t)
	p := f.connect(hello(1, 0))
	var msg []byte
	for tag := range uint16(4) {
		msg = inlineWrite(tag, uint64(tag)*512, bytes.Repeat([]byte{byte(tag)}, 512)).Append(msg)
	}
	p.toTarget <- msg
	seen := map[uint16]bool{}
	for len(seen) < 4 {
		answers, _ := f.answers(p)
		for _, a := range answers {
			if a.Status != wire.StatusOK || seen[a.Tag] {
				t.Errorf("%+v", a)
			}
			seen[a.Tag] = true
		}
	}
	got := make([]byte, 4)
	for i := range got {
		_, _ = f.store.ReadAt(got[i:i+1], int64(i)*512)
	}
	if !bytes.Equal(got, []byte{0, 1, 2, 3}) {
		t.Errorf("stored %v", got)
	}
}
