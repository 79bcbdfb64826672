// SPDX-License-Identifier: Apache-2.0

package dissect_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"krping/agent/packets/capture"
	"krping/agent/packets/dissect"
	"krping/agent/packets/ladder"
	"krping/agent/packets/packetview"
	"krping/agent/packets/roce"
)

// frames returns the frames of a capture in testdata, made between two VMs: 192.168.77.2 is the
// host, 192.168.77.1 the target.
func frames(t testing.TB, name string) []dissect.Frame {
	t.Helper()
	file, err := os.Open(filepath.Join("../capture/testdata", name+".pcapng.gz"))
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	var all []dissect.Frame
	if _, err := capture.Read(file, func(data []byte, info gopacket.CaptureInfo) (bool, error) {
		all = append(all, dissect.Frame{Time: info.Timestamp, Data: bytes.Clone(data), Length: info.Length})
		return true, nil
	}); err != nil {
		t.Fatalf("%s: %v", name, err)
	}
	return all
}

// result is what a Dissector returned.
type result struct {
	packets []*dissect.Packet
	ios     []*dissect.IO
	totals  dissect.Totals
}

func dissectAll(frames []dissect.Frame, o dissect.Options) result {
	var r result
	o.OnIO = func(io *dissect.IO) { r.ios = append(r.ios, io) }
	if o.TCPPorts == nil {
		o.TCPPorts = dissect.DefaultTCPPorts
	}
	d := dissect.New(o)
	for _, f := range frames {
		if p := d.Add(f); p != nil {
			r.packets = append(r.packets, p)
		}
	}
	d.Close()
	r.totals = d.Totals()
	slices.SortFunc(r.ios, func(a, b *dissect.IO) int { return a.ID - b.ID })
	return r
}

// kinds summarises I/Os by kind: how many, and their packets per I/O.
func kinds(ios []*dissect.IO) string {
	var order []string
	n, packets := map[string]int{}, map[string]float64{}
	for _, o := range ios {
		key := fmt.Sprintf("%s %s %d", o.Protocol, o.Name, o.Bytes)
		if o.Inline {
			key += " inline"
		}
		if !o.Done {
			key += " not done"
		}
		if o.Cut {
			key += " cut"
		}
		if o.Lost > 0 {
			key += fmt.Sprintf(" lost %d", o.Lost)
		}
		if n[key] == 0 {
			order = append(order, key)
		}
		n[key]++
		packets[key] += o.Packets()
	}
	var b strings.Builder
	for _, key := range order {
		fmt.Fprintf(&b, "%d %s: %.1f\n", n[key], key, packets[key]/float64(n[key]))
	}
	return b.String()
}

func expect(t *testing.T, what, got, want string) {
	t.Helper()
	if strings.TrimSpace(got) != strings.TrimSpace(want) {
		t.Errorf("%s:\n%s\nwant:\n%s", what, got, want)
	}
}

func TestPacketsPerIO(t *testing.T) {
	for name, want := range map[string]string{
		"ping": `
10 krping-ping ping 64: 12.0
10 krping-ping ping 65536: 42.0`,
		"krping": `
6 krping READ 4096 inline: 5.0
3 krping KEEP_ALIVE 0 inline: 4.0
3 krping WRITE 4096 inline: 5.0
2 krping WRITE 65536: 21.0
2 krping READ 65536: 21.0
1 krping WRITE 1048576: 261.0
1 krping READ 1048576: 264.0`,
		"deep": `
3 krping READ 4096 inline: 5.0
1 krping KEEP_ALIVE 0 inline: 4.0
100 krping WRITE 4096 inline: 1.9`,
		"ipv6": `
3 krping-ping ping 64: 12.0`,
		"nvme": `
1 nvme-rdma Connect 1024: 6.0
6 nvme-rdma Property Get 0: 4.0
3 nvme-rdma Property Set 0: 4.0
6 nvme-rdma Identify 4096: 6.0
1 nvme-rdma Get Log Page 4096: 6.0
1 nvme-rdma Get Log Page 512: 6.0
2 nvme-rdma Set Features 0: 4.0
1 nvme-rdma Connect 1024 inline: 4.0
1 nvme-rdma Asynchronous Event Request 0 not done: 2.0
6 nvme-rdma Read 4096: 6.0
3 nvme-rdma Write 4096 inline: 5.0
2 nvme-rdma Write 65536: 21.0
2 nvme-rdma Read 65536: 21.0
1 nvme-rdma Write 1048576: 268.0
1 nvme-rdma Read 1048576: 268.0`,
		"tcp": `
2 nvme-tcp Connect 1024 inline: 2.0
6 nvme-tcp Property Get 0: 2.0
3 nvme-tcp Property Set 0: 2.0
6 nvme-tcp Identify 4096: 2.0
1 nvme-tcp Get Log Page 4096: 2.0
1 nvme-tcp Get Log Page 512: 2.0
2 nvme-tcp Set Features 0: 2.0
1 nvme-tcp Asynchronous Event Request 0: 2.0
6 nvme-tcp Read 4096: 2.0
3 nvme-tcp Write 4096 inline: 2.0
2 nvme-tcp Write 65536: 19.0
2 nvme-tcp Read 65536: 4.0
1 nvme-tcp Write 1048576: 251.0
1 nvme-tcp Read 1048576: 30.0`,
		"verbs": `
4 verbs FetchAdd 8: 2.0
4 verbs RDMA WRITE 16: 2.0
1 verbs RDMA WRITE 2048 not done: 1.0`,
	} {
		t.Run(name, func(t *testing.T) {
			r := dissectAll(frames(t, name), dissect.Options{})
			expect(t, "I/Os", kinds(r.ios), want)
			if totals := (dissect.Totals{Packets: len(r.packets)}); r.totals != totals {
				t.Errorf("totals %+v", r.totals)
			}
			// The shares of each RC packet add up to 1.
			shares := map[int]float64{}
			for _, o := range r.ios {
				for _, s := range o.Steps {
					shares[s.Number] += s.Share
				}
			}
			for _, p := range r.packets {
				if share := shares[p.Number]; p.RoCE != nil && p.RoCE.BTH.Opcode.Service() == roce.RC && math.Abs(share-1) > 1e-9 {
					t.Errorf("packet %d, %s: its shares add up to %.2f", p.Number, p.What, share)
				}
			}
		})
	}
}

// The target requests all transfers of data that is not inline.
func TestTargetMovesTheData(t *testing.T) {
	for _, name := range []string{"krping", "nvme", "tcp"} {
		writes, reads := 0, 0
		for _, o := range dissectAll(frames(t, name), dissect.Options{}).ios {
			moved := 0
			for _, s := range o.Steps {
				if strings.HasPrefix(s.What, "RDMA") {
					started := s.What == "RDMA READ Request" || strings.HasPrefix(s.What, "RDMA WRITE")
					if started == s.FromHost {
						t.Errorf("%s, I/O %d: %s by the wrong end", name, o.ID, s.What)
					}
				}
				moved += s.Bytes
			}
			if o.Name != "KEEP_ALIVE" && moved != o.Bytes {
				t.Errorf("%s, I/O %d, %s: its packets move %d bytes of %d", name, o.ID, o.Name, moved, o.Bytes)
			}
			if o.Bytes < 65536 {
				continue
			}
			switch strings.ToUpper(o.Name) {
			case "WRITE":
				writes++
			case "READ":
				reads++
			}
		}
		if writes == 0 || reads == 0 {
			t.Errorf("%s: %d large writes, %d large reads", name, writes, reads)
		}
	}
}

// Without the set-up, the protocol is recognised by messages, and the queue pairs of a connection by
// acknowledgements.
func TestCaptureWithoutSetup(t *testing.T) {
	for name, setUp := range map[string]int{"ping": 3, "krping": 3, "deep": 3, "nvme": 60, "tcp": 60} {
		all := frames(t, name)
		want, found := 0, 0
		for _, o := range dissectAll(all, dissect.Options{}).ios {
			if o.Done && o.Steps[0].Number > setUp {
				want++
			}
		}
		later := dissectAll(all[setUp:], dissect.Options{})
		for _, o := range later.ios {
			if o.Done && o.Protocol != dissect.Verbs {
				found++
			}
		}
		if want == 0 || found < want-1 { // the first response may come before the ends are known
			t.Errorf("%s: %d of %d I/Os:\n%s", name, found, want, kinds(later.ios))
		}
	}
	assumed := dissectAll(frames(t, "krping")[3:], dissect.Options{Assume: dissect.Verbs})
	for _, o := range assumed.ios {
		if o.Protocol != dissect.Verbs {
			t.Fatalf("I/O %d has protocol %s, want verbs", o.ID, o.Protocol)
		}
	}
	if got := kinds(assumed.ios); !strings.Contains(got, "verbs RDMA READ 65536: 17.0") || !strings.Contains(got, "verbs RDMA WRITE 65536: ") {
		t.Error(got)
	}
}

func TestLostAndRetransmittedPackets(t *testing.T) {
	all := frames(t, "krping")
	for _, kind := range []string{"RDMA READ response Middle", "RDMA WRITE Middle", "SEND First"} {
		at := -1
		for i, p := range dissectAll(all, dissect.Options{}).packets {
			if p.What == kind {
				at = i
				break
			}
		}
		gap := dissectAll(slices.Delete(slices.Clone(all), at, at+1), dissect.Options{})
		if gap.totals.Lost != 1 || gap.totals.Retransmitted != 0 {
			t.Errorf("without a %s: totals %+v", kind, gap.totals)
		}
		lost := 0
		for _, o := range gap.ios {
			lost += o.Lost
		}
		if kind != "SEND First" && lost != 1 { // without it the I/O is not recognised
			t.Errorf("without a %s: %d packets lost of I/Os\n%s", kind, lost, kinds(gap.ios))
		}
		twice := dissectAll(slices.Insert(slices.Clone(all), at+1, all[at]), dissect.Options{})
		if twice.totals.Lost != 0 || twice.totals.Retransmitted != 1 {
			t.Errorf("%s twice: totals %+v", kind, twice.totals)
		}
	}
}

// fuzzLinks are the link types of fuzzed frames.
var fuzzLinks = [8]layers.LinkType{
	layers.LinkTypeEthernet, layers.LinkTypeLinuxSLL, layers.LinkTypeLinuxSLL2, layers.LinkTypeRaw, layers.LinkTypeLoop, layers.LinkTypePPP, 247, layers.LinkTypeIPv6,
}

// fuzzCut is the number of bytes that are missing from a fuzzed frame that is cut.
const fuzzCut = 1000

// pack concatenates frames of up to 4095 bytes. Two bytes before each have its length, and in the upper four
// bits whether it is cut, and its link type.
func pack(frames []dissect.Frame) []byte {
	var b []byte
	for _, f := range frames {
		head := uint16(len(f.Data)) | uint16(max(0, slices.Index(fuzzLinks[:], f.Link)))<<12
		if f.Length > len(f.Data) {
			head |= 1 << 15
		}
		b = binary.BigEndian.AppendUint16(b, head)
		b = append(b, f.Data...)
	}
	return b
}

func unpack(b []byte) (frames []dissect.Frame) {
	for len(b) >= 2 {
		head := binary.BigEndian.Uint16(b)
		n := min(int(head&0xfff), len(b)-2)
		frames = append(frames, dissect.Frame{Data: b[2 : 2+n], Length: n + int(head>>15)*fuzzCut, Link: fuzzLinks[head>>12&7]})
		b = b[2+n:]
	}
	return frames
}

// FuzzDissect dissects arbitrary frames and prints the result in all formats.
func FuzzDissect(f *testing.F) {
	for _, name := range []string{"ping", "krping", "nvme", "tcp", "verbs"} {
		all := frames(f, name)
		all = slices.DeleteFunc(all, func(f dissect.Frame) bool { return len(f.Data) > 1000 })
		for i := 0; i+12 <= len(all) && i < 60; i += 12 {
			f.Add(pack(all[i : i+12]))
		}
		if name == "verbs" {
			continue
		}
		for _, w := range wrappings { // the set-up and some I/Os, wrapped and cut
			some := slices.Clone(all[:min(len(all), 8)])
			for i := range some {
				some[i].Data, some[i].Link = w.wrap(some[i].Data), w.link
				some[i].Data = some[i].Data[:min(len(some[i].Data), 180+i)]
			}
			f.Add(pack(some))
		}
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		r := dissectAll(unpack(data), dissect.Options{})
		lines, counts := packetview.NewLines(io.Discard), ladder.NewCounts()
		for _, p := range r.packets {
			if err := lines.Print(p); err != nil {
				t.Error(err)
			}
			packetview.NewRecord(p)
			counts.AddPacket(p)
		}
		for _, o := range r.ios {
			if len(o.Steps) == 0 || o.Packets() <= 0 {
				t.Errorf("an I/O without packets: %+v", o)
			}
			counts.AddIO(o)
			if err := ladder.Write(io.Discard, o); err != nil {
				t.Error(err)
			}
		}
		if err := ladder.WriteSVG(io.Discard, r.ios); err != nil {
			t.Error(err)
		}
		if err := counts.Write(io.Discard, false); err != nil {
			t.Error(err)
		}
	})
}

// Damaged frames are reported as malformed or read as something else, without a panic.
func TestDamagedFrames(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	malformed := 0
	for _, name := range []string{"ping", "krping", "deep", "ipv6", "nvme", "tcp", "verbs"} {
		d := dissect.New(dissect.Options{TCPPorts: dissect.DefaultTCPPorts})
		for _, f := range frames(t, name) {
			whole := f.Data
			for range 8 {
				f.Data = bytes.Clone(whole)
				for range rnd.IntN(4) {
					f.Data[rnd.IntN(min(len(f.Data), 200))] = byte(rnd.Uint32())
				}
				if rnd.IntN(2) == 0 {
					f.Data = f.Data[:rnd.IntN(min(len(f.Data), 300)+1)]
				}
				d.Add(f)
			}
		}
		d.Close()
		malformed += d.Totals().Malformed
	}
	if malformed == 0 {
		t.Error("no frame was reported as malformed")
	}
}
