// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"bytes"
	"encoding/binary"
	"strings"
	"testing"
	"time"
)

func TestDecode(t *testing.T) {
	e := bioEvent{
		QueuedNs: 1000, IssuedNs: 3000, DoneNs: 11000, Sector: 2048, Bytes: 4096, Dev: 259 << 20,
		Opf: 1 | 1<<11 | 1<<17, Pid: 10, Tid: 11, Status: 10,
	}
	for i, c := range "write_data" {
		e.Comm[i] = int8(c)
	}
	var sample bytes.Buffer
	if err := binary.Write(&sample, binary.NativeEndian, e); err != nil {
		t.Fatal(err)
	}
	boot := time.Unix(100, 0)
	tracer := &Tracer{boot: boot, names: deviceNames{259 << 20: "krping0"}}
	got, err := tracer.decode(sample.Bytes())
	want := Bio{
		Time: boot.Add(1000), PID: 10, TID: 11, Comm: "write_data", Device: "krping0", Op: "WRITE", Flags: "SYNC|FUA",
		Sector: 2048, Bytes: 4096, Queue: 2000, Total: 10000, Status: 10,
	}
	if err != nil || got != want {
		t.Errorf("%+v, %v, want %+v", got, err, want)
	}
	if _, err := tracer.decode(sample.Bytes()[:20]); err == nil {
		t.Error("a truncated event is accepted")
	}
}

func TestOpNames(t *testing.T) {
	for opf, want := range map[uint32]string{0: "READ", 1: "WRITE", 2: "FLUSH", 3: "DISCARD", 9: "WRITE_ZEROES", 77: "OP77", 1 | 1<<18: "WRITE"} {
		if got := opName(opf); got != want {
			t.Errorf("%#x: %s, want %s", opf, got, want)
		}
	}
}

func TestSummary(t *testing.T) {
	var s Summary
	for i := range 100 {
		s.Add(Bio{Op: "READ", Bytes: 4096, Queue: time.Millisecond, Total: time.Duration(i+1) * time.Millisecond})
	}
	s.Add(Bio{Op: "WRITE", Bytes: 512, Total: time.Hour, Status: 1}) // beyond the histogram's range
	var out strings.Builder
	if err := s.Write(&out); err != nil {
		t.Fatal(err)
	}
	if s.Bios() != 101 {
		t.Errorf("%d bios", s.Bios())
	}
	for _, want := range []string{"READ         total       100     409600       0", "50.", "99.", "WRITE        total         1        512       1", "|#"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
}
