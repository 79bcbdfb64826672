// SPDX-License-Identifier: Apache-2.0

package replay

import (
	"bytes"
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/disk/pattern"
	"krping/agent/disk/rawio"
	"krping/agent/trace/biotrace"
)

const size = 1 << 20

var start = time.Unix(1000, 0).UTC()

func record(t *testing.T, bios ...biotrace.Bio) string {
	t.Helper()
	return recordFrom(t, 0, bios...)
}

func recordFrom(t *testing.T, first uint64, bios ...biotrace.Bio) string {
	t.Helper()
	var file strings.Builder
	w, err := NewWriter(&file, "krping0", size, first, start)
	if err != nil {
		t.Fatal(err)
	}
	for i := range bios {
		if err := w.Add(&bios[i]); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.End(start.Add(time.Second), 3); err != nil {
		t.Fatal(err)
	}
	return file.String()
}

var workload = []biotrace.Bio{
	{Time: start.Add(30 * time.Millisecond), Op: "FLUSH"},
	{Time: start.Add(10 * time.Millisecond), Op: "WRITE", Flags: "SYNC|FUA", Sector: 8, Bytes: 4096},
	{Time: start.Add(20 * time.Millisecond), Op: "WRITE", Sector: 2040, Bytes: 4096, Flags: "PREFLUSH"},
	{Time: start.Add(40 * time.Millisecond), Op: "READ", Sector: 8, Bytes: 4096},
}

// A recording of a partition has the offsets of the partition, whose replay must not write elsewhere.
func TestRecordingOfPartition(t *testing.T) {
	bios := []biotrace.Bio{{Op: "FLUSH"}, {Op: "WRITE", Sector: 2048, Bytes: 4096}, {Op: "READ", Sector: 2048 + size/512 - 8, Bytes: 4096}}
	r, err := Read(strings.NewReader(recordFrom(t, 2048, bios...)))
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []uint64{0, 0, size/512 - 8} {
		if r.List[i].Sector != want {
			t.Errorf("%s at sector %d, want %d", r.List[i].Op, r.List[i].Sector, want)
		}
	}
	if bios[1].Sector != 2048 {
		t.Error("the caller's bio was changed")
	}
}

func TestRecording(t *testing.T) {
	r, err := Read(strings.NewReader(record(t, workload...)))
	if err != nil {
		t.Fatal(err)
	}
	if r.Device != "krping0" || r.Size != size || !r.Start.Equal(start) || r.Lost != 3 || !r.End.Equal(start.Add(time.Second)) {
		t.Errorf("header and trailer: %+v %+v", r.Header, r.Trailer)
	}
	if len(r.List) != 4 || r.List[0].Sector != 8 || r.List[3].Op != "READ" || !r.Writes() || r.Largest() != 4096 {
		t.Errorf("bios: %+v", r.List)
	}
}

func TestMalformedRecording(t *testing.T) {
	whole := record(t, workload...)
	lines := strings.SplitAfter(whole, "\n")
	for name, c := range map[string]struct{ text, want string }{
		"empty":        {"", "cut off"},
		"another file": {"{\"a\":1}\n", "line 1 of the recording: not a recording"},
		"not JSON":     {"hello\n", "line 1"},
		"newer":        {strings.Replace(whole, `"krping_recording":1`, `"krping_recording":2`, 1), "version is 2"},
		"cut off":      {strings.Join(lines[:3], ""), "cut off"},
		"in a line":    {whole[:len(whole)/2], "line"},
		"a line lost":  {strings.Join(append(append([]string{}, lines[:2]...), lines[3:]...), ""), "3 bios, but its last line says 4"},
		"twice":        {whole + whole, "after the last line"},
		"beyond":       {strings.Replace(whole, `"sector":2040`, `"sector":2041`, 1), "of a device of 1048576"},
		"overflow":     {strings.Replace(whole, `"sector":2040`, `"sector":18446744073709551608`, 1), "of a device of 1048576"},
		"operation":    {strings.Replace(whole, `"op":"READ"`, `"op":"ZONE_RESET"`, 1), "ZONE_RESET cannot be replayed"},
		"no device":    {strings.Replace(whole, `"size":1048576`, `"size":0`, 1), "device is 0 bytes"},
	} {
		if _, err := Read(strings.NewReader(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
}

func open(t *testing.T) *rawio.Device {
	t.Helper()
	path := filepath.Join(t.TempDir(), "disk")
	if err := os.WriteFile(path, make([]byte, size), 0o600); err != nil {
		t.Fatal(err)
	}
	d, err := rawio.Open(path, os.O_RDWR, true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = d.Close() })
	return d
}

func TestPlay(t *testing.T) {
	d := open(t)
	data, err := pattern.New("random", 5)
	if err != nil {
		t.Fatal(err)
	}
	r, err := Read(strings.NewReader(record(t, workload...)))
	if err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		p := Player{Device: d, Data: data, Speed: 1, Depth: 2}
		result, err := p.Play(t.Context(), r)
		if err != nil {
			t.Fatal(err)
		}
		if result.Bios != 4 || result.Bytes != 3*4096 || result.Elapsed != 30*time.Millisecond || result.Late != 0 || result.Summary.Bios() != 4 {
			t.Errorf("result: %+v", result)
		}
	})
	want := make([]byte, size)
	data.Fill(want[8*512:][:4096], 8*512)
	data.Fill(want[2040*512:][:4096], 2040*512)
	if got, err := os.ReadFile(d.Name()); err != nil || !bytes.Equal(got, want) {
		t.Errorf("the file has other data (%v)", err)
	}
}

func TestPlayStopsAtFirstError(t *testing.T) {
	d := open(t)
	if err := d.Truncate(8 * 512); err != nil { // the read returns EOF
		t.Fatal(err)
	}
	r := &Recording{Header: Header{Size: size}, List: []biotrace.Bio{workload[3], workload[3], workload[3]}}
	p := Player{Device: d, Depth: 1}
	if _, err := p.Play(t.Context(), r); err == nil || !strings.Contains(err.Error(), "read of 4096 bytes at byte 4096") {
		t.Errorf("error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := p.Play(ctx, r); !errors.Is(err, context.Canceled) {
		t.Errorf("after cancel: %v", err)
	}
}

// A recording does not decide how much memory is taken.
func TestPlayLimitsItsMemory(t *testing.T) {
	bio := biotrace.Bio{Op: "READ", Bytes: 1 << 26}
	r := &Recording{Header: Header{Size: 1 << 40}, List: []biotrace.Bio{bio}}
	p := Player{Device: open(t), Depth: 1024}
	if _, err := p.Play(t.Context(), r); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "must be at most 16") {
		t.Errorf("64 GiB of buffers: %v", err)
	}
	r.List[0].Bytes = 3 << 30
	p.Depth = 1
	if _, err := p.Play(t.Context(), r); !errors.Is(err, unix.EINVAL) || !strings.Contains(err.Error(), "cannot be replayed") {
		t.Errorf("an I/O of 3 GiB: %v", err)
	}
}
