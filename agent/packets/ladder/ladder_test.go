// SPDX-License-Identifier: Apache-2.0

package ladder

import (
	"encoding/xml"
	"errors"
	"flag"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/agent/packets/dissect"
)

var update = flag.Bool("update", false, "update the golden files")

func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s differs (go test -update updates it); got:\n%s", path, got)
	}
}

var start = time.Unix(1000, 0)

// write returns a write of 12 KiB that shares its response with another I/O.
func write() *dissect.IO {
	step := func(us int, fromHost bool, what, note string, bytes int) dissect.Step {
		return dissect.Step{Time: start.Add(time.Duration(us) * time.Microsecond), FromHost: fromHost, What: what, Note: note, Bytes: bytes, Share: 1}
	}
	o := &dissect.IO{
		ID: 7, Protocol: dissect.Block, Name: "WRITE", Bytes: 12288, Detail: "offset 4096", Status: "OK", Done: true,
		Host: netip.MustParseAddr("192.168.77.2"), Target: netip.MustParseAddr("192.168.77.1"),
		Steps: []dissect.Step{
			step(0, true, "SEND Only", "WRITE tag 5, offset 4096, 12288 bytes at 0xff00, key 0x12", 0),
			step(400, false, "ACK", "", 0),
			step(450, false, "RDMA READ Request", "12288 bytes at 0xff00, key 0x12", 0),
			step(900, true, "RDMA READ response First", "", 4096),
			step(910, true, "RDMA READ response Middle", "", 4096),
			step(915, true, "RDMA READ response Middle", "", 4096),
			step(920, true, "RDMA READ response Last", "", 0),
			step(1500, false, "SEND Only", "one of 2: OK, tag 5 <&>"+strings.Repeat(" and more", 12), 0),
			step(1900, true, "ACK", "", 0),
		},
	}
	o.Steps[7].Share, o.Steps[8].Share = 0.5, 0.5
	return o
}

// partial returns a write without response, with missing and retransmitted packets.
func partial() *dissect.IO {
	o := write()
	o.ID, o.Status, o.Done, o.Lost = 8, "", false, 3
	o.Steps = o.Steps[:6]
	o.Steps[5].Retransmitted = true
	return o
}

func TestText(t *testing.T) {
	var b strings.Builder
	for _, o := range []*dissect.IO{write(), partial()} {
		if err := Write(&b, o); err != nil {
			t.Fatal(err)
		}
	}
	for line := range strings.Lines(b.String()) {
		if strings.Contains(line, "|") && len(line) != textWidth+14 {
			t.Errorf("a line has %d characters, want %d: %s", len(line), textWidth+14, line)
		}
	}
	golden(t, "ladder.golden", b.String())
}

func TestSVG(t *testing.T) {
	var b strings.Builder
	if err := WriteSVG(&b, []*dissect.IO{write(), partial()}); err != nil {
		t.Fatal(err)
	}
	golden(t, "ladder.svg", b.String())
	b.Reset()
	if err := WriteSVG(&b, nil); err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(strings.NewReader(b.String()))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("%v in %s", err, b.String())
		}
	}
}

func TestCounts(t *testing.T) {
	c := NewCounts()
	c.AddPacket(&dissect.Packet{What: "TCP ACK"})
	c.AddPacket(&dissect.Packet{What: "data", Bytes: 100})
	c.AddPacket(&dissect.Packet{What: "data", Bytes: 50})
	c.AddPacket(&dissect.Packet{Err: errors.New("x")})
	c.AddIO(write())
	c.AddIO(write())
	c.AddIO(partial())
	lost := write()
	lost.ID, lost.Lost = 9, 1
	lost.Inline = true
	c.AddIO(lost)
	var b strings.Builder
	if err := c.Write(&b, false); err != nil {
		t.Fatal(err)
	}
	golden(t, "counts.golden", b.String())
}

// A mixed load has many sizes: they share rows, which add up, unless each is wanted.
func TestCountsOfManySizes(t *testing.T) {
	c := NewCounts()
	for i := range 90 {
		o := write()
		o.ID, o.Bytes = i, 4096+i*4096
		c.AddIO(o)
	}
	for i, bytes := range []int{512, 4096} { // few sizes
		o := write()
		o.ID, o.Bytes, o.Name = 100+i, bytes, "READ"
		c.AddIO(o)
	}
	table := func(eachSize bool) (rows []string) {
		var b strings.Builder
		if err := c.Write(&b, eachSize); err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(b.String()) {
			if f := strings.Fields(line); len(f) > 4 && f[0] == "krping" {
				rows = append(rows, strings.Join(f[1:5], " "))
			}
		}
		return rows
	}
	want := []string{
		"WRITE 4096 1 8.0", "WRITE 8192-16384 3 8.0", "WRITE 20480-65536 12 8.0", "WRITE 69632-262144 48 8.0", "WRITE 266240-368640 26 8.0",
		"READ 512 1 8.0", "READ 4096 1 8.0",
	}
	if got := table(false); !slices.Equal(got, want) {
		t.Errorf("%q, want %q", got, want)
	}
	if got := table(true); len(got) != 92 || len(c.Costs()) != 92 {
		t.Errorf("%d rows, want 92", len(got))
	}
}
