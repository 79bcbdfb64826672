// SPDX-License-Identifier: Apache-2.0

package roce_test

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"

	"krping/agent/packets/capture"
	"krping/agent/packets/roce"
	"krping/agent/packets/unwrap"
)

// frames returns all frames of the captures in testdata, which were made between two VMs.
func frames(t testing.TB) [][]byte {
	t.Helper()
	paths, err := filepath.Glob("../capture/testdata/*.pcapng.gz")
	if err != nil || len(paths) == 0 {
		t.Fatalf("captures not found: %v", err)
	}
	var all [][]byte
	for _, path := range paths {
		file, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer file.Close()
		if _, err := capture.Read(file, func(data []byte, _ gopacket.CaptureInfo) (bool, error) {
			all = append(all, bytes.Clone(data))
			return true, nil
		}); err != nil {
			t.Fatalf("%s: %v", path, err)
		}
	}
	return all
}

func decode(frame []byte) (*roce.Packet, error) {
	n, _ := unwrap.Frame(frame, layers.LinkTypeEthernet, 0)
	if n == nil {
		return nil, nil
	}
	return roce.Decode(n)
}

func TestICRCOfCapturedPackets(t *testing.T) {
	checked := 0
	for i, frame := range frames(t) {
		p, err := decode(frame)
		if err != nil {
			t.Fatalf("frame %d: %v", i, err)
		}
		if p == nil {
			continue // TCP
		}
		if checked++; p.ICRC != roce.ICRCGood {
			t.Errorf("frame %d, %v: ICRC is %v", i, p.BTH.Opcode, p.ICRC)
		}
	}
	if checked < 1000 {
		t.Errorf("only %d RoCE packets", checked)
	}
}

// variant reports whether a bit of a frame over IPv4 without options is in a field that routers may
// change, which the ICRC does not cover.
func variant(bit int) bool {
	const ip, udp, bth = 14, 34, 42
	at := bit / 8
	return at == ip+1 || at == ip+8 || at == ip+10 || at == ip+11 || at == udp+6 || at == udp+7 || at == bth+4
}

func TestICRCFindsFlippedBit(t *testing.T) {
	seen := map[roce.Opcode]bool{}
	for _, frame := range frames(t) {
		p, err := decode(frame)
		if err != nil || p == nil || p.Src.Is6() || seen[p.BTH.Opcode] {
			continue
		}
		seen[p.BTH.Opcode] = true
		for bit := 14 * 8; bit < len(frame)*8; bit += 1 + len(frame)/512 {
			flipped := bytes.Clone(frame)
			flipped[bit/8] ^= 1 << (bit % 8)
			got, err := decode(flipped)
			if err != nil || got == nil {
				continue // no longer a RoCE packet
			}
			if want := map[bool]roce.ICRCStatus{true: roce.ICRCGood, false: roce.ICRCBad}[variant(bit)]; got.ICRC != want && got.ICRC != roce.ICRCUnverified {
				t.Errorf("%v, bit %d of byte %d flipped: ICRC is %v, want %v", p.BTH.Opcode, bit%8, bit/8, got.ICRC, want)
			}
		}
	}
	if len(seen) < 15 {
		t.Errorf("only %d opcodes in the captures", len(seen))
	}
}

// header returns a BTH, the given bytes, and four bytes for the ICRC.
func header(opcode roce.Opcode, pad byte, rest string) []byte {
	data := []byte{byte(opcode), 0xc0 | pad<<4, 0xff, 0xff, 0x80, 0x12, 0x34, 0x56, 0x80, 0xab, 0xcd, 0xef}
	more, err := hex.DecodeString(rest)
	if err != nil {
		panic(err)
	}
	return append(append(data, more...), 0x78, 0x56, 0x34, 0x12)
}

func TestHeaders(t *testing.T) {
	const (
		reth   = "0102030405060708" + "11121314" + "00010000"
		atomic = "0102030405060708" + "11121314" + "2122232425262728" + "3132333435363738"
	)
	for _, c := range []struct {
		name    string
		opcode  roce.Opcode
		pad     byte
		rest    string
		headers []string
		payload string
	}{
		{"SEND Only", roce.SendOnly, 0, "aabbccdd", nil, "aabbccdd"},
		{"SEND Last", roce.SendLast, 3, "aa000000", nil, "aa"},
		{"SEND Only with Immediate", roce.SendOnlyImmediate, 0, "41424344aabbccdd", []string{"ImmDt"}, "aabbccdd"},
		{"SEND Last with Invalidate", roce.SendLastInvalidate, 0, "51525354aabbccdd", []string{"IETH"}, "aabbccdd"},
		{"RDMA WRITE Only with Immediate", roce.WriteOnlyImmediate, 0, reth + "41424344" + "aabbccdd", []string{"RETH", "ImmDt"}, "aabbccdd"},
		{"RDMA WRITE Middle", roce.WriteMiddle, 0, "aabbccdd", nil, "aabbccdd"},
		{"RDMA READ Request", roce.ReadRequest, 0, reth, []string{"RETH"}, ""},
		{"RDMA READ response Last", roce.ReadResponseLast, 0, "1f000007aabbccdd", []string{"AETH"}, "aabbccdd"},
		{"Acknowledge", roce.Acknowledge, 0, "1f000007", []string{"AETH"}, ""},
		{"ATOMIC Acknowledge", roce.AtomicAcknowledge, 0, "1f0000076162636465666768", []string{"AETH", "AtomicAckETH"}, ""},
		{"CmpSwap", roce.CompareSwap, 0, atomic, []string{"AtomicETH"}, ""},
		{"UD SEND Only", roce.UD | roce.SendOnly, 0, "80010000" + "00000001" + "aabbccdd", []string{"DETH"}, "aabbccdd"},
		{"UC RDMA WRITE First", roce.UC | roce.WriteFirst, 0, reth + "aabbccdd", []string{"RETH"}, "aabbccdd"},
		{"CNP", roce.CNP, 0, "00000000000000000000000000000000", nil, "00000000000000000000000000000000"},
		{"opcode 0x15", 0x15, 0, "aabbccdd", nil, "aabbccdd"},
		{"opcode 0x44", 0x44, 0, "aabbccdd", nil, "aabbccdd"},
	} {
		data := header(c.opcode, c.pad, c.rest)
		p, err := roce.Decode(infiniband(data))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		if b := p.BTH; b.Opcode.String() != c.name || b.DestQP != 0x123456 || b.PSN != 0xabcdef || !b.AckReq || !b.Solicited || !b.Migrated ||
			!b.FECN || b.BECN || b.PKey != 0xffff || p.Received != 0x12345678 || b.PadCount != c.pad {
			t.Errorf("%s: BTH %+v", c.name, b)
		}
		if got := hex.EncodeToString(p.Payload); fmt.Sprint(extensions(t, p)) != fmt.Sprint(c.headers) || got != c.payload || p.Length != len(p.Payload) {
			t.Errorf("%s: headers %v, payload %s of %d bytes", c.name, extensions(t, p), got, p.Length)
		}
		need := len(data) - int(c.pad) - len(c.payload)/2 // with fewer bytes a header is cut off
		for n := range need {
			if _, err := roce.Decode(infiniband(data[:n])); err == nil {
				t.Errorf("%s: accepted with %d bytes of the %d that its headers need", c.name, n, need)
			}
		}
		// Of a packet that was not captured whole, the headers that are there are read.
		for n := range len(data) {
			cut := infiniband(data)
			cut.Payload = data[:n]
			got, err := roce.Decode(cut)
			if n < 12 {
				if !errors.Is(err, roce.ErrCut) {
					t.Errorf("%s, %d bytes captured: %v", c.name, n, err)
				}
				continue
			}
			if err != nil || !got.Cut() || got.Length != p.Length || !bytes.HasPrefix(p.Payload, got.Payload) || len(extensions(t, got)) > len(c.headers) {
				t.Errorf("%s, %d bytes captured: %+v, %v", c.name, n, got, err)
			}
		}
	}
}

// infiniband returns a packet of RoCE v1 with this content.
func infiniband(data []byte) *unwrap.Packet {
	return &unwrap.Packet{Protocol: unwrap.InfiniBand, Payload: data, Length: len(data)}
}

// extensions returns the names of the packet's extension headers, and checks their fields.
func extensions(t *testing.T, p *roce.Packet) (names []string) {
	t.Helper()
	add := func(name string, ok bool) {
		if names = append(names, name); !ok {
			t.Errorf("%s of %+v", name, p)
		}
	}
	if h := p.RETH; h != nil {
		add("RETH", h.Addr == 0x0102030405060708 && h.RKey == 0x11121314 && h.Length == 65536)
	}
	if h := p.AtomicETH; h != nil {
		add("AtomicETH", h.Addr == 0x0102030405060708 && h.RKey == 0x11121314 && h.SwapAdd == 0x2122232425262728 && h.Compare == 0x3132333435363738)
	}
	if h := p.AETH; h != nil {
		add("AETH", h.Syndrome == 0x1f && h.Syndrome.IsACK() && h.MSN == 7)
	}
	if h := p.DETH; h != nil {
		add("DETH", h.QKey == 0x80010000 && h.SrcQP == 1)
	}
	if h := p.ImmDt; h != nil {
		add("ImmDt", h.Data == 0x41424344)
	}
	if h := p.IETH; h != nil {
		add("IETH", h.RKey == 0x51525354)
	}
	if h := p.AtomicAck; h != nil {
		add("AtomicAckETH", h.Original == 0x6162636465666768)
	}
	return names
}

func TestSyndromes(t *testing.T) {
	for s, want := range map[roce.Syndrome]string{
		0x1f: "ACK", 0x00: "ACK", 0x2e: "RNR NAK, timer 14", 0x60: "NAK: PSN sequence error", 0x62: "NAK: remote access error", 0x7f: "syndrome 0x7f", 0x40: "syndrome 0x40",
	} {
		if s.String() != want || s.IsACK() != (want == "ACK") {
			t.Errorf("%#x: %v", uint8(s), s)
		}
	}
}

// A frame that was cut off when captured has its headers, and an unverified ICRC.
func TestTruncatedFrame(t *testing.T) {
	for _, frame := range frames(t) {
		whole, err := decode(frame)
		if err != nil || whole == nil || whole.BTH.Opcode != roce.WriteFirst {
			continue
		}
		p, err := decode(frame[:128])
		if err != nil || p.ICRC != roce.ICRCUnverified || p.RETH.Addr != whole.RETH.Addr || p.RETH.Length != whole.RETH.Length || len(p.Payload) != 128-14-20-8-12-16 || p.Length != len(whole.Payload) {
			t.Fatalf("%+v, %v", p, err)
		}
		return
	}
	t.Fatal("no RDMA WRITE First in the captures")
}

func TestICRCOverIPv6(t *testing.T) {
	frame := ipv6Frame(t)
	p, err := decode(frame)
	if err != nil || p.ICRC != roce.ICRCGood || !p.Src.Is6() {
		t.Fatalf("%+v, %v", p, err)
	}
	for at := range frame[14:] {
		flipped := bytes.Clone(frame)
		flipped[14+at] ^= 1
		got, err := decode(flipped)
		if err != nil || got == nil {
			continue
		}
		// traffic class, flow label, hop limit, UDP checksum, fifth byte of the BTH
		if want := slices.Contains([]int{0, 1, 2, 3, 7, 46, 47, 52}, at); got.ICRC != roce.ICRCUnverified && (got.ICRC == roce.ICRCGood) != want {
			t.Errorf("byte %d: ICRC is %v", at, got.ICRC)
		}
	}
}

// ipv6Frame returns a captured RDMA WRITE Only over IPv6.
func ipv6Frame(t testing.TB) []byte {
	t.Helper()
	for _, frame := range frames(t) {
		if p, err := decode(frame); err == nil && p != nil && p.Src.Is6() && p.BTH.Opcode == roce.WriteOnly {
			return frame
		}
	}
	t.Fatal("no RDMA WRITE Only over IPv6 in the captures")
	return nil
}

// FuzzDecode decodes arbitrary bytes, as the payload of UDP and as whole frames.
func FuzzDecode(f *testing.F) {
	seen := map[roce.Opcode]bool{}
	for _, frame := range frames(f) {
		p, err := decode(frame)
		if err == nil && p != nil && !seen[p.BTH.Opcode] {
			seen[p.BTH.Opcode] = true
			f.Add(frame[:min(len(frame), 400)])
		}
	}
	f.Add(ipv6Frame(f))
	f.Fuzz(func(t *testing.T, data []byte) {
		for _, link := range []layers.LinkType{layers.LinkTypeRaw, layers.LinkTypeLinuxSLL, layers.LinkTypeLinuxSLL2, layers.LinkTypeLoop} {
			unwrap.Frame(data, link, 100)
		}
		for _, missing := range []int{0, 100} {
			n := infiniband(data)
			n.Length += missing
			if p, err := roce.Decode(n); err == nil && (p.BTH == nil || len(p.Payload) > len(data) || p.Length < len(p.Payload)) {
				t.Errorf("%+v", p)
			}
		}
		p, err := decode(data)
		if err != nil || p == nil {
			return
		}
		if p.BTH == nil || len(p.Payload) > len(data) {
			t.Errorf("%+v", p)
		}
		_ = p.BTH.Opcode.String()
		if p.AETH != nil {
			_ = p.AETH.Syndrome.String()
		}
	})
}
