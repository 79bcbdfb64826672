// SPDX-License-Identifier: Apache-2.0

package acklog

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

const size = 1 << 20

// history is a log and the store that a perfect device would leave.
type history struct {
	t     *testing.T
	log   *Log
	out   bytes.Buffer
	store []byte
}

func newHistory(t *testing.T) *history {
	h := &history{t: t, store: make([]byte, size)}
	log, err := NewLog(7, &h.out)
	if err != nil {
		t.Fatal(err)
	}
	h.log = log
	return h
}

// write starts a write, and may store and acknowledge it.
func (h *history) write(offset, length int64, stored, acked bool) uint64 {
	seq, err := h.log.begin(offset, length)
	if err != nil {
		h.t.Fatal(err)
	}
	if stored {
		fill(h.store[offset:offset+length], h.log.seed, seq, offset)
	}
	if acked {
		if err := h.log.ack(seq); err != nil {
			h.t.Fatal(err)
		}
	}
	return seq
}

// check checks the store against the log in memory and against the log as written.
func (h *history) check(allow Allow) Report {
	h.t.Helper()
	report, err := Check(bytes.NewReader(h.store), size, h.log, allow)
	if err != nil {
		h.t.Fatal(err)
	}
	again, err := ReadLog(bytes.NewReader(h.out.Bytes()))
	if err != nil {
		h.t.Fatal(err)
	}
	second, err := Check(bytes.NewReader(h.store), size, again, allow)
	if err != nil || second.Lost != report.Lost || second.Corrupt != report.Corrupt || second.Acked != report.Acked {
		h.t.Errorf("checked by the log read back: %+v, %v; by the log in memory: %+v", second, err, report)
	}
	return report
}

func (h *history) want(lost, corrupt int, words ...string) {
	h.t.Helper()
	r := h.check(Allow{})
	if r.Lost != lost || r.Corrupt != corrupt || r.Blocks != size/Block {
		h.t.Errorf("%d lost, %d corrupt in %d blocks, want %d and %d: %v", r.Lost, r.Corrupt, r.Blocks, lost, corrupt, r.Err())
	}
	for _, word := range words {
		if err := r.Err(); err == nil || !strings.Contains(err.Error(), word) {
			h.t.Errorf("the report does not say %q: %v", word, err)
		}
	}
	if (r.Err() == nil) != (lost+corrupt == 0) {
		h.t.Errorf("error %v", r.Err())
	}
}

func TestNoViolation(t *testing.T) {
	h := newHistory(t)
	h.write(0, 4096, true, true)
	h.write(512, 1024, true, true)
	h.write(8192, 512, true, false)    // stored, not acknowledged
	h.write(16384, 4096, false, false) // neither stored nor acknowledged
	h.write(20480, 2048, true, true)
	seq := h.write(20480, 2048, false, false) // one of its blocks was stored
	fill(h.store[20992:21504], 7, seq, 20992)
	h.want(0, 0)
	if r := h.check(Allow{}); r.Writes != 6 || r.Acked != 3 {
		t.Errorf("%+v", r)
	}
}

func TestAckedWriteNotStored(t *testing.T) {
	h := newHistory(t)
	h.write(0, 4096, false, true)
	h.want(8, 0, "block at 0: lost: zeros, not write 1 (4096 bytes at 0)")
}

func TestOldDataAfterAckedWrite(t *testing.T) {
	h := newHistory(t)
	h.write(0, 4096, true, true)
	h.write(1024, 1024, false, true)
	h.want(2, 0, "block at 1024: lost: write 1, not write 2")
}

// A failed write arrives late and overwrites an acknowledged one.
func TestLateWriteOverAckedWrite(t *testing.T) {
	h := newHistory(t)
	late := h.write(0, 1024, false, false)
	h.write(0, 1024, true, true)
	fill(h.store[512:1024], 7, late, 512)
	h.want(1, 0, "block at 512: lost: write 1, not write 2")
}

func TestCorruptBlock(t *testing.T) {
	damage := map[string]func(h *history){
		"parts of write 1":     func(h *history) { h.store[4500] ^= 1 },
		"data of no write":     func(h *history) { copy(h.store[4096:], "krping") },
		"block for offset":     func(h *history) { copy(h.store[4096:4608], h.store[4608:5120]) },
		"did not begin there":  func(h *history) { fill(h.store[4096:4608], 7, 2, 4096) },
		"another log":          func(h *history) { fill(h.store[4096:4608], 8, 1, 4096) },
		"parts of write 2":     func(h *history) { fill(h.store[4096:4352], 7, 2, 4096) },
		"beginning with 00 00": func(h *history) { clear(h.store[4096:4112]) },
	}
	for word, do := range damage {
		t.Run(word, func(t *testing.T) {
			h := newHistory(t)
			h.write(4096, 8192, true, true)
			h.write(65536, 4096, true, true)
			do(h)
			h.want(0, 1, "block at 4096: corrupt: ", word)
		})
	}
}

func TestNeverWrittenButNotZero(t *testing.T) {
	h := newHistory(t)
	h.store[size-1] = 1
	h.want(0, 1, "not the zeros from before")
}

// With Allow.Unflushed an acknowledged write may be lost until an fsync covers it.
func TestUnflushedWritesMayBeLost(t *testing.T) {
	h := newHistory(t)
	h.write(0, 512, false, true)
	flush, _ := h.log.beginFlush()
	h.write(512, 512, false, true)
	if r := h.check(Allow{Unflushed: true}); r.Err() != nil || r.Acked != 0 {
		t.Errorf("before the fsync has ended: %+v", r)
	}
	if err := h.log.flushed(flush); err != nil {
		t.Fatal(err)
	}
	if r := h.check(Allow{Unflushed: true}); r.Lost != 1 || r.Acked != 1 || r.First[0].Offset != 0 {
		t.Errorf("after the fsync: %+v", r)
	}
	h.want(2, 0)
}

// With Allow.Torn a block may be part old data and part a write that was not acknowledged, and nothing else.
func TestTornWrites(t *testing.T) {
	h := newHistory(t)
	for _, at := range []int64{0, 512, 1024, 1536} {
		if at < 1024 {
			h.write(at, 512, true, true)
		}
		seq := h.write(at, 512, false, false)
		half := make([]byte, Block)
		fill(half, 7, seq, at)
		copy(h.store[at+(at%1024)/2:][:256], half[(at%1024)/2:]) // its first or its second half
	}
	h.want(0, 4, "block at 0: corrupt", "block at 1536: corrupt")
	if r := h.check(Allow{Torn: true}); r.Err() != nil {
		t.Error(r.Err())
	}
	for at, damage := range map[int64]func(block []byte){
		0:    func(block []byte) { block[255] ^= 1 },
		512:  func(block []byte) { fill(block[:256], 7, 99, 512) },
		1024: func(block []byte) { block[511] = 1 },
		4096: func(block []byte) { fill(block, 7, h.write(4096, 512, true, true), 4096); clear(block[256:]) },
	} {
		damage(h.store[at : at+512])
	}
	if r := h.check(Allow{Torn: true}); r.Corrupt != 4 || r.Lost != 0 {
		t.Errorf("want 4 damaged blocks: %v", r.Err())
	}
}

func TestWriteOutsideStore(t *testing.T) {
	h := newHistory(t)
	h.write(size-512, 1024, false, false)
	if _, err := Check(bytes.NewReader(h.store), size, h.log, Allow{}); err == nil {
		t.Error("accepted")
	}
}

func TestReadLog(t *testing.T) {
	l, err := ReadLog(strings.NewReader("seed 3\nbegin 1 0 512\nack 1\nbegin 2 512 5"))
	if err != nil || len(l.Writes()) != 1 || !l.Writes()[0].Acked {
		t.Errorf("with an incomplete last line: %v", err)
	}
	for _, bad := range []string{
		"", "begin 1 0 512\n", "seed 1\nseed 1\n", "seed 1\nbegin 2 0 512\n", "seed 1\nack 1\n", "seed 1\nack 0\n", "seed 1\nbegin 1 0\n",
		"seed 1\nhello\n", "seed 1\nflush 2\n", "seed x\n",
	} {
		if _, err := ReadLog(strings.NewReader(bad)); err == nil {
			t.Errorf("%q: accepted", bad)
		}
	}
}

// OpenLog continues the log of a writer that was killed.
func TestOpenLogContinues(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	for round := range 3 {
		log, f, err := OpenLog(path, 5)
		if err != nil {
			t.Fatal(err)
		}
		if seq, err := log.begin(0, 512); seq != uint64(round)+1 || err != nil || log.seed != 5 {
			t.Errorf("write %d, %v, seed %d", seq, err, log.seed)
		}
		if _, err := f.WriteString("ack"); err != nil { // an incomplete line
			t.Fatal(err)
		}
		_ = f.Close()
	}
}

func device(t *testing.T) string {
	path := filepath.Join(t.TempDir(), "device")
	if err := os.WriteFile(path, make([]byte, 4<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func checkFile(t *testing.T, path string, log *Log) Report {
	t.Helper()
	f, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	report, err := Check(f, 4<<20, log, Allow{})
	if err != nil {
		t.Fatal(err)
	}
	return report
}

// A log can continue over several loads.
func TestLoadsShareALog(t *testing.T) {
	path := device(t)
	log, err := NewLog(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		run, err := Load{Path: path, Workers: 3, FsyncOne: 20, ReadOne: 4, Limit: time.Minute}.Start(log)
		if err != nil {
			t.Fatal(err)
		}
		for s := run.Stats(); (s.Writes == 0 || s.Reads == 0) && !run.Ended(); s = run.Stats() {
			time.Sleep(time.Millisecond)
		}
		stats, err := run.Stop()
		if err != nil || stats.Writes == 0 || stats.Reads == 0 || stats.Bytes < 512*stats.Writes {
			t.Errorf("%v: %v", stats, err)
		}
		if report := checkFile(t, path, log); report.Err() != nil || report.Acked != log.Acked() {
			t.Errorf("%+v", report)
		}
	}
	// The device loses a write.
	writes := log.Writes()
	w := writes[len(writes)-1]
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(make([]byte, w.Length), w.Offset); err != nil {
		t.Fatal(err)
	}
	_ = f.Close()
	if report := checkFile(t, path, log); report.Lost != int(w.Length/Block) {
		t.Errorf("%d blocks lost, want %d", report.Lost, w.Length/Block)
	}
}

// The load itself detects wrong data when it reads back.
func TestLoadReadsBackWrongData(t *testing.T) {
	path := device(t)
	log, err := NewLog(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	run, err := Load{Path: path, Workers: 1, ReadOne: 2, Limit: time.Minute}.Start(log)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	deadline := time.After(20 * time.Second)
	for {
		select {
		case <-run.Done():
			if _, err := run.Stop(); err == nil || !strings.Contains(err.Error(), "the device reads at") {
				t.Errorf("%v, want an error that says what was read", err)
			}
			return
		case <-deadline:
			t.Fatal("the wrong data was not detected")
		case <-time.After(10 * time.Millisecond):
			if _, err := f.WriteAt(make([]byte, 1<<20), 0); err != nil {
				t.Fatal(err)
			}
		}
	}
}

func TestLoadStopsAtFirstError(t *testing.T) {
	log, err := NewLog(1, nil)
	if err != nil {
		t.Fatal(err)
	}
	run, err := Load{Path: device(t), Workers: 2, Limit: time.Minute}.Start(log)
	if err != nil {
		t.Fatal(err)
	}
	_ = run.device.Close()
	select {
	case <-run.Done():
	case <-time.After(20 * time.Second):
		t.Fatal("the load did not stop")
	}
	if _, err := run.Stop(); !errors.Is(err, os.ErrClosed) {
		t.Errorf("%v", err)
	}
}

// An operation over the limit is reported as hung.
func TestHungOperation(t *testing.T) {
	w := &worker{doing: "write", since: time.Now().Add(-time.Minute)}
	var hung *HungError
	if err := w.hung(time.Second); !errors.As(err, &hung) || hung.For < time.Minute {
		t.Errorf("%v", err)
	}
	if err := w.hung(2 * time.Minute); err != nil {
		t.Errorf("%v", err)
	}
	w.doing = ""
	if err := w.hung(time.Second); err != nil {
		t.Errorf("%v", err)
	}
}
