// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"golang.org/x/net/bpf"
)

// TestFilter runs the program in the Go implementation of the kernel's classic BPF machine.
func TestFilter(t *testing.T) {
	raw, err := filter([]uint16{4420, 8009}, false)
	if err != nil {
		t.Fatal(err)
	}
	program, ok := bpf.Disassemble(raw)
	if !ok {
		t.Fatal("the program has invalid instructions")
	}
	vm, err := bpf.NewVM(program)
	if err != nil {
		t.Fatal(err)
	}
	const (
		mac   = "525400770001525400770002"
		roce  = "ff0012b7"
		nvme  = "c0001144"
		other = "12b70035" // source port 4791
	)
	ip4 := func(first, flags, proto, options string) string {
		return mac + "0800" + first + "000040" + "0000" + flags + "40" + proto + "0000" + "c0a84d02c0a84d01" + options
	}
	ip6 := func(proto string) string {
		return mac + "86dd" + "60000000" + "0020" + proto + "40" + strings.Repeat("00", 32)
	}
	tagged := func(kind, frame string) string { return mac + kind + "0064" + frame[24:] }
	for name, c := range map[string]struct {
		frame string
		pass  bool
	}{
		"RoCE":                     {ip4("45", "4000", "11", "") + roce, true},
		"RoCE, IP with options":    {ip4("46", "4000", "11", "01010101") + roce, true},
		"RoCE, IPv6":               {ip6("11") + roce, true},
		"UDP to another port":      {ip4("45", "4000", "11", "") + other, false},
		"TCP to the RoCE port":     {ip4("45", "4000", "06", "") + roce, false},
		"UDP to the NVMe port":     {ip4("45", "4000", "11", "") + nvme, false},
		"NVMe/TCP":                 {ip4("45", "4000", "06", "") + nvme, true},
		"NVMe/TCP, reply, IPv6":    {ip6("06") + "1f49c000", true},
		"first fragment":           {ip4("45", "2000", "11", "") + roce, true},
		"later fragment":           {ip4("45", "2001", "11", "") + roce, false},
		"RoCE v1":                  {mac + "8915" + strings.Repeat("00", 60), true},
		"VLAN":                     {tagged("8100", ip4("45", "4000", "11", "")+roce), true},
		"VLAN, NVMe/TCP":           {tagged("9100", ip4("46", "4000", "06", "01010101")+nvme), true},
		"two VLANs":                {tagged("88a8", tagged("8100", ip6("11")+roce)), true},
		"three VLANs":              {tagged("9100", tagged("88a8", tagged("8100", ip6("11")+roce))), false},
		"VLAN, another port":       {tagged("8100", ip4("45", "4000", "11", "")+other), false},
		"GRE":                      {ip4("45", "4000", "2f", "") + "000088be", true},
		"VXLAN":                    {ip4("45", "4000", "11", "") + "c00012b5", true},
		"Geneve, IPv6":             {ip6("11") + "c00017c1", true},
		"from a VXLAN port":        {ip4("45", "4000", "11", "") + "12b50035", false},
		"ICMP":                     {ip4("45", "4000", "01", "") + roce, false},
		"ICMPv6":                   {ip6("3a") + roce, false},
		"ARP":                      {mac + "0806" + strings.Repeat("00", 28), false},
		"cut off before the ports": {ip4("45", "4000", "11", ""), false},
	} {
		frame, err := hex.DecodeString(c.frame)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		if kept, err := vm.Run(frame); err != nil || kept != map[bool]int{true: snapLength}[c.pass] {
			t.Errorf("%s: %d bytes kept, %v", name, kept, err)
		}
	}
	if _, err := filter(make([]uint16, MaxTCPPorts), true); err != nil {
		t.Error(err)
	}
	if _, err := filter(make([]uint16, MaxTCPPorts+1), false); err == nil {
		t.Error("too many ports were accepted")
	}
}

type packet struct {
	data []byte
	info gopacket.CaptureInfo
	link layers.LinkType
}

func read(r io.Reader) (packets []packet, s Statistics, err error) {
	s, err = Read(r, func(data []byte, info gopacket.CaptureInfo) (bool, error) {
		link := LinkType(info)
		info.AncillaryData = nil
		packets = append(packets, packet{bytes.Clone(data), info, link})
		return true, nil
	})
	return packets, s, err
}

func TestWriteThenRead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "x.pcapng")
	w, err := Create(path, "eth0")
	if err != nil {
		t.Fatal(err)
	}
	want := []packet{
		{[]byte("one packet"), gopacket.CaptureInfo{Timestamp: time.Unix(1700000000, 123456789).UTC(), CaptureLength: 10, Length: 10}, layers.LinkTypeEthernet},
		{[]byte("cut off"), gopacket.CaptureInfo{Timestamp: time.Unix(1700000001, 1).UTC(), CaptureLength: 7, Length: 1500}, layers.LinkTypeEthernet},
	}
	for _, p := range want {
		if err := w.Write(p.data, p.info); err != nil {
			t.Fatal(err)
		}
	}
	counts := Statistics{Packets: 5, Dropped: 3}
	if err := w.Close(counts); err != nil {
		t.Fatal(err)
	}
	file, err := os.Open(path)
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	got, s, err := read(file)
	if err != nil || s != counts || !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, %+v, %v", got, s, err)
	}
	if info, err := file.Stat(); err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
}

func TestReadErrors(t *testing.T) {
	for name, c := range map[string]struct{ data, want string }{
		"empty":         {"", "not a capture file: EOF"},
		"text":          {"hello, world", "neither a pcapng nor a pcap file"},
		"gzip":          {"\x1f\x8bxxxxxxxx", "not a valid gzip file"},
		"zstd":          {"\x28\xb5\x2f\xfdxxxx", "compressed with zstd: use zstd -dc FILE | krpingctl capture --read -"},
		"xz":            {"\xfd7zXZ\x00", "use xz -dc FILE | krpingctl"},
		"bzip2":         {"BZh9xxxxxxxx", "bzip2"},
		"pcapng, short": {"\x0a\x0d\x0d\x0a\x1c\x00\x00\x00", "not a valid pcapng file"},
	} {
		if _, _, err := read(strings.NewReader(c.data)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %s", name, err, c.want)
		}
	}
	stop := errors.New("enough")
	file, err := os.Open("testdata/ping.pcapng.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	if _, err := Read(file, func([]byte, gopacket.CaptureInfo) (bool, error) { return true, stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
}

// A pcapng file may have interfaces of several link types, in any order, which a copy keeps.
func TestLinkTypes(t *testing.T) {
	for _, links := range [][]layers.LinkType{
		{layers.LinkTypeLinuxSLL2, layers.LinkTypeEthernet, layers.LinkTypeRaw}, {layers.LinkTypeEthernet, layers.LinkTypeLinuxSLL2},
		{layers.LinkTypeEthernet, layers.LinkTypeEthernet}, {},
	} {
		var file bytes.Buffer
		var ng *pcapgo.NgWriter
		for i, link := range links {
			device, err := pcapgo.NgInterface{LinkType: link, SnapLength: 1000}, error(nil)
			if ng == nil {
				ng, err = pcapgo.NewNgWriterInterface(&file, device, pcapgo.DefaultNgWriterOptions)
			} else {
				_, err = ng.AddInterface(device)
			}
			info := gopacket.CaptureInfo{Timestamp: time.Unix(int64(i), 0), CaptureLength: 4, Length: 4, InterfaceIndex: i}
			if err = errors.Join(err, ng.WritePacket(info, []byte{byte(i), 1, 2, 3}), ng.Flush()); err != nil {
				t.Fatal(err)
			}
		}
		path := filepath.Join(t.TempDir(), "copy.pcapng")
		w, err := Create(path, "")
		if err != nil {
			t.Fatal(err)
		}
		var want []layers.LinkType
		if len(links) > 0 {
			_, err = Read(&file, func(data []byte, info gopacket.CaptureInfo) (bool, error) {
				want = append(want, LinkType(info))
				return true, w.Write(data, info)
			})
		}
		if err = errors.Join(err, w.Close(Statistics{})); err != nil || !slices.Equal(want, links) {
			t.Fatalf("%v: %v, %v", links, want, err)
		}
		copied, err := os.Open(path)
		if err != nil {
			t.Fatal(err)
		}
		defer copied.Close()
		packets, _, err := read(copied)
		if err != nil || len(packets) != len(links) {
			t.Fatalf("%v: %+v, %v", links, packets, err)
		}
		for i, p := range packets {
			if p.link != links[i] || p.data[0] != byte(i) {
				t.Errorf("%v: packet %d is %+v", links, i, p)
			}
		}
	}
}

// FuzzRead reads arbitrary bytes as a capture file.
func FuzzRead(f *testing.F) {
	path := filepath.Join(f.TempDir(), "x.pcapng")
	w, err := Create(path, "eth0")
	if err != nil {
		f.Fatal(err)
	}
	if err := errors.Join(w.Write([]byte("packet"), gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: 6, Length: 6}), w.Close(Statistics{1, 0})); err != nil {
		f.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte("\xd4\xc3\xb2\xa1\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x04\x00\x01\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, data []byte) {
		packets, _, err := read(bytes.NewReader(data))
		for _, p := range packets {
			if len(p.data) > len(data) && !bytes.HasPrefix(data, []byte("\x1f\x8b")) {
				t.Errorf("a packet of %d bytes from %d, %v", len(p.data), len(data), err)
			}
		}
	})
}

func TestEthernet(t *testing.T) {
	for hardware, want := range map[uint16]string{1: "", 772: "", 32: "IP over InfiniBand", 65534: "a tunnel of IP packets", 776: "an IP tunnel", 280: "a CAN bus", 9: "hardware type 9"} {
		err := ethernet(hardware)
		if (err == nil) != (want == "") || err != nil && (!errors.Is(err, ErrNotEthernet) || !strings.Contains(err.Error(), want)) {
			t.Errorf("%d: %v", hardware, err)
		}
	}
}
