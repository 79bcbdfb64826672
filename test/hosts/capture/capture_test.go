// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package capture tests krpingctl capture on traffic between two VMs, and compares its results with tshark's.
// Within one host Soft-RoCE's packets do not pass a network device.
package capture

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"krping/test/hosts/internal/hosts"
	"krping/test/internal/late"
	"krping/test/lab"
)

const leastPackets = 10000

var mixed = []load{
	{"write", "4k", 100, 1}, {"read", "4k", 100, 1}, {"randwrite", "4k", 300, 16}, {"write", "16k", 20, 1},
	{"randwrite", "64k", 40, 4}, {"randread", "64k", 40, 4}, {"write", "1m", 4, 1}, {"read", "1m", 4, 1},
}

func TestCaptureAgreesWithTshark(t *testing.T) {
	vms := hosts.Boot(t)
	h := traffic{vms, vms.Lab.VM(0), vms.Lab.VM(1)}

	if out, err := h.Try(h.client, "setpriv --reuid 65534 --clear-groups --inh-caps=-all --bounding-set=-all krpingctl capture"); err == nil || !strings.Contains(out, "CAP_NET_RAW") {
		t.Errorf("without privileges: %v\n%s", err, out)
	}
	if out, err := h.Try(h.client, "krpingctl capture --interface nonesuch0"); err == nil || !strings.Contains(out, "interface nonesuch0") || !strings.Contains(out, "this host has lo, eth0") {
		t.Errorf("an unknown interface: %v\n%s", err, out)
	}

	// A refused connection is two packets. Each is captured when sent and when received.
	loop := h.Sh(h.client, fmt.Sprintf(`krpingctl capture --interface lo --port %d --json 2>/run/lo.log &
for i in $(seq 100); do grep -q capturing /run/lo.log && break; sleep 0.1; done
for host in 127.0.0.1 ::1; do bash -c "echo > /dev/tcp/$host/%[1]d" 2>/dev/null; done
kill -TERM $!
wait $!`, tcpPort))
	if strings.Count(loop, "\n") != 4 || strings.Count(loop, `"TCP SYN"`) != 2 || strings.Count(loop, `"TCP RST ACK"`) != 2 || strings.Count(loop, `"src":"::1"`) != 2 {
		t.Errorf("refused connections on lo: %s", loop)
	}

	h.wrapped()
	h.refused()

	kept := h.capture("--write /run/mixed.pcapng", "kept")
	live := h.capture("--count --json >/lab/out/live.json", "live")
	h.pings()
	h.block(func(device string) { h.fio(device, mixed...) })
	h.nvme("rdma", rdmaPort, func(device string) { h.fio(device, mixed...) })
	h.nvme("tcp", tcpPort, func(device string) { h.fio(device, mixed[0], mixed[1], mixed[4], mixed[5]) })
	h.verbs()
	h.quiet()
	h.end(kept, "kept")
	h.end(live, "live")

	h.Sh(h.client, "cp /run/mixed.pcapng /lab/out/")
	file := filepath.Join(h.client.Out(), "mixed.pcapng")
	ours := records(t, file)
	if len(ours) < leastPackets {
		t.Errorf("%d packets of mixed traffic, want %d", len(ours), leastPackets)
	}
	compare(t, ours, tsharkRecords(t, file))

	var fromFile, fromLive countReport
	parse(t, []byte(krpingctl(t, "--read", file, "--count", "--json")), &fromFile)
	data, err := os.ReadFile(filepath.Join(h.client.Out(), "live.json"))
	if err != nil {
		t.Fatal(err)
	}
	parse(t, data, &fromLive)
	if fromFile.Kernel.Dropped+fromLive.Kernel.Dropped > 0 || fromFile.Totals.Malformed+fromFile.Totals.BadICRC+fromFile.Totals.Unverified > 0 {
		t.Errorf("kernel: %+v and %+v, totals: %+v", fromFile.Kernel, fromLive.Kernel, fromFile.Totals)
	}
	if !slices.Equal(fromFile.Opcodes, fromLive.Opcodes) {
		t.Errorf("opcodes of the file: %+v\nlive: %+v", fromFile.Opcodes, fromLive.Opcodes)
	}
	checkCosts(t, fromFile)
	checkLadders(t, file)
	t.Logf("\n%s", krpingctl(t, "--read", file, "--count"))
}

// during returns what a capture prints and logs while a script runs on the client.
func (h traffic) during(flags, script string) string {
	h.T.Helper()
	return h.Sh(h.client, fmt.Sprintf(`krpingctl capture %s >/run/during.log 2>&1 &
for i in $(seq 100); do grep -q capturing /run/during.log && break; sleep 0.1; done
%s
kill -TERM $!
wait $! || exit
cat /run/during.log`, flags, script))
}

// wrapped captures packets in a tunnel, and below VLAN tags, which the kernel's filter must pass.
func (h traffic) wrapped() {
	h.T.Helper()
	ends := []*lab.VM{h.server, h.client}
	for i, vm := range ends {
		h.Sh(vm, fmt.Sprintf(`set -e
ip link add vx5 type vxlan id 5 dstport 4789 local %s remote %s
ip link add link eth0 name q6 type vlan id 6 protocol 802.1ad
ip link add link q6 name q7 type vlan id 7
for device in vx5 q7; do ip addr add 10.$(echo $device | tr -d vxq).0.%d/24 dev $device; done
for device in vx5 q6 q7; do ip link set $device up; done`, vm.Addr(), ends[1-i].Addr(), i+1))
	}
	for name, target := range map[string]string{"VXLAN": "10.5.0.1", "QinQ": "10.7.0.1"} {
		out := h.during(fmt.Sprintf("--interface eth0 --port %d --json", tcpPort), fmt.Sprintf(`bash -c "echo > /dev/tcp/%s/%d" 2>/dev/null`, target, tcpPort))
		syns := strings.Count(out, `"TCP SYN"`)
		if syns != 1 || strings.Count(out, `"TCP RST ACK"`) != 1 || strings.Count(out, `"src":"`+target) != 1 {
			// A host without a processor for a second lets the other one repeat its SYN.
			late.ErrorfIf(h.T, syns > 1, "%s: a refused connection: %s", name, out)
		}
	}
	for _, vm := range ends {
		h.Sh(vm, "ip link del vx5 && ip link del q7 && ip link del q6")
	}
}

// refused checks what a capture says of which nothing is shown, or that is not possible.
func (h traffic) refused() {
	h.T.Helper()
	out := h.during("--interface lo --port 1", `ip -d link show lo | grep -q 'promiscuity 1' && bash -c "echo > /dev/tcp/127.0.0.1/9" 2>/dev/null`)
	if !strings.Contains(out, "lo received and sent 4 packets meanwhile; none was RoCE, or NVMe/TCP on port 1") {
		h.T.Errorf("packets of other protocols: %s", out)
	}
	h.Sh(h.client, "modprobe tun && ip tuntap add dev tun7 mode tun && ip link set tun7 up")
	if out, err := h.Try(h.client, "krpingctl capture --interface tun7"); err == nil || !strings.Contains(out, "not Ethernet") || !strings.Contains(out, "a tunnel of IP packets") {
		h.T.Errorf("a tunnel: %v\n%s", err, out)
	}
	h.Sh(h.client, "ip link del tun7")
}

// capture starts a capture in the client's VM, from the interface with the RDMA device, and waits until it
// runs.
func (h traffic) capture(arguments, name string) *lab.Process {
	p := h.Spawn(h.client, fmt.Sprintf("krpingctl capture --port %d %s 2>/run/%s.log", tcpPort, arguments, name))
	h.Eventually(20*time.Second, "the capture begins", func() bool {
		_, err := h.Try(h.client, "grep -q 'capturing from eth0' /run/"+name+".log")
		return err == nil
	})
	return p
}

// quiet waits until no packet was sent or received for a second: connections may still be closing. The
// captures end one after the other, and have the same packets only if none passes between.
func (h traffic) quiet() {
	h.T.Helper()
	var last string
	since := time.Now()
	h.Eventually(time.Minute, "no packet for a second", func() bool {
		now := ""
		for _, vm := range []*lab.VM{h.server, h.client} {
			now += h.Sh(vm, "cat /sys/class/net/eth0/statistics/?x_packets")
		}
		if now != last {
			last, since = now, time.Now()
		}
		return time.Since(since) >= time.Second
	})
}

// end interrupts a capture and checks that the kernel dropped nothing.
func (h traffic) end(p *lab.Process, name string) {
	if err := p.Signal(syscall.SIGINT); err != nil {
		h.T.Fatal(err)
	}
	if err := p.Wait(h.T.Context()); err != nil {
		h.T.Errorf("%s: %v", name, err)
	}
	log := h.Sh(h.client, "cat /run/"+name+".log")
	if !strings.Contains(log, "packets, 0 dropped by the kernel") {
		h.T.Errorf("%s:\n%s", name, log)
	}
}

func krpingctl(t *testing.T, arguments ...string) string {
	t.Helper()
	cmd := exec.Command(filepath.Join(lab.Build(), "krpingctl"), append([]string{"capture"}, arguments...)...)
	var out, log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &log
	if err := cmd.Run(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, log.String())
	}
	return out.String()
}

func parse(t *testing.T, data []byte, into any) {
	t.Helper()
	if err := json.Unmarshal(data, into); err != nil {
		t.Fatalf("%v in %s", err, data)
	}
}

// fields are the fields of a packet that are compared. -1 means that the packet does not have the field.
type fields struct {
	length, opcode, qp, psn, dmaLength, syndrome, msn, payload int
}

// record is what krpingctl prints about a packet.
type record struct {
	Number, Length, Bytes int
	RoCE                  *struct {
		Opcode, QP, PSN int
		RDMA            *struct{ Length int }
		Syndrome, MSN   *int
		ICRC            string
	}
	Protocol, Error string
}

// records returns what krpingctl finds in the packets, by frame number.
func records(t *testing.T, file string) map[int]fields {
	t.Helper()
	all := map[int]fields{}
	decoder := json.NewDecoder(strings.NewReader(krpingctl(t, "--read", file, "--json")))
	for {
		var r record
		if err := decoder.Decode(&r); errors.Is(err, io.EOF) {
			return all
		} else if err != nil {
			t.Fatal(err)
		}
		if r.Error != "" {
			t.Errorf("frame %d: %s", r.Number, r.Error)
		}
		f := fields{r.Length, -1, -1, -1, -1, -1, -1, r.Bytes}
		if h := r.RoCE; h != nil {
			f.opcode, f.qp, f.psn = h.Opcode, h.QP, h.PSN
			if h.RDMA != nil && (h.Opcode < 0x13 || h.Opcode > 0x14) { // atomics have no length on the wire
				f.dmaLength = h.RDMA.Length
			}
			if h.Syndrome != nil {
				f.syndrome, f.msn = *h.Syndrome, *h.MSN
			}
			if h.ICRC != "good" {
				t.Errorf("frame %d: ICRC is %s", r.Number, h.ICRC)
			}
		}
		all[r.Number] = f
	}
}

// extensions are headers after the BTH: a field that tshark prints if the header is present, and its size in bytes.
var extensions = []struct {
	field string
	size  int
}{
	{"infiniband.reth", 16}, {"infiniband.aeth", 4}, {"infiniband.deth", 8}, {"infiniband.immdt", 4},
	{"infiniband.ieth", 4}, {"infiniband.atomiceth", 28}, {"infiniband.atomicacketh", 8},
}

// tsharkRecords returns what tshark finds in the packets, by frame number.
func tsharkRecords(t *testing.T, file string) map[int]fields {
	t.Helper()
	names := []string{
		"frame.number", "frame.len", "infiniband.bth.opcode", "infiniband.bth.destqp", "infiniband.bth.psn", "infiniband.reth.dmalen",
		"infiniband.aeth.syndrome", "infiniband.aeth.msn", "udp.length", "infiniband.bth.padcnt", "tcp.len",
	}
	arguments := []string{"-r", file, "-T", "fields", "-E", "separator=,", "-E", "occurrence=f"}
	for _, name := range names {
		arguments = append(arguments, "-e", name)
	}
	for _, e := range extensions {
		arguments = append(arguments, "-e", e.field)
	}
	out, err := exec.Command("tshark", arguments...).Output()
	if err != nil {
		t.Fatalf("tshark (package tshark): %v", err)
	}
	rows, err := csv.NewReader(bytes.NewReader(out)).ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	all := map[int]fields{}
	for _, row := range rows {
		n := make([]int, len(names))
		for i := range names {
			n[i] = -1
			if row[i] == "" {
				continue
			}
			value, err := strconv.ParseInt(row[i], 0, 64)
			if err != nil {
				t.Fatalf("tshark's %s: %v", names[i], err)
			}
			n[i] = int(value)
		}
		f := fields{length: n[1], opcode: n[2], qp: n[3], psn: n[4], dmaLength: n[5], syndrome: n[6], msn: n[7], payload: n[10]}
		if f.opcode >= 0 {
			const udp, bth, icrc = 8, 12, 4
			f.payload = n[8] - udp - bth - n[9] - icrc
			for i, e := range extensions {
				if row[len(names)+i] != "" {
					f.payload -= e.size
				}
			}
		}
		all[n[0]] = f
	}
	return all
}

// compare compares all packets, and the number of packets by opcode, with tshark's.
func compare(t *testing.T, ours, theirs map[int]fields) {
	t.Helper()
	differences := 0
	for _, number := range slices.Sorted(maps.Keys(theirs)) {
		if differences < 10 && ours[number] != theirs[number] {
			differences++
			t.Errorf("frame %d: %+v, tshark has %+v", number, ours[number], theirs[number])
		}
	}
	if len(ours) != len(theirs) {
		t.Errorf("%d packets, tshark has %d", len(ours), len(theirs))
	}
	count := func(packets map[int]fields) map[int]int {
		n := map[int]int{}
		for _, f := range packets {
			n[f.opcode]++
		}
		return n
	}
	a, b := count(ours), count(theirs)
	if !maps.Equal(a, b) {
		t.Errorf("packets by opcode: %v, tshark has %v", a, b)
	}
	// TCP (-1); RC without CmpSwap, SEND Last with Invalidate and some with immediate data; UC; UD.
	for _, opcode := range []int{-1, 0x00, 0x01, 0x02, 0x04, 0x06, 0x07, 0x08, 0x0a, 0x0b, 0x0c, 0x0d, 0x0e, 0x0f, 0x10, 0x11, 0x12, 0x14, 0x17, 0x26, 0x27, 0x28, 0x64} {
		if a[opcode] == 0 {
			t.Errorf("no packet with opcode %#x", opcode)
		}
	}
	t.Logf("%d packets agree with tshark, %d opcodes: %v", len(ours), len(a), a)
}

// countReport is what --count --json prints.
type countReport struct {
	Opcodes []struct {
		Name           string
		Packets, Bytes int
	}
	IOs []struct {
		Protocol, Name      string
		Bytes, IOs, Partial int
		Inline              bool
		Packets             float64
		Opcodes             map[string]float64
	}
	Totals struct {
		Packets, Malformed, Unverified, Retransmitted, Lost int
		BadICRC                                             int `json:"bad_icrc"`
	}
	Kernel struct{ Packets, Dropped int }
}

// checkCosts checks how many I/Os were recognised, and how many packets each took.
func checkCosts(t *testing.T, r countReport) {
	t.Helper()
	for _, want := range []struct {
		protocol, name string
		bytes          int
		inline         bool
		ios            int
		least, most    float64 // packets per I/O
	}{
		{"krping", "WRITE", 4096, true, 400, 1.5, 5.1}, {"krping", "READ", 4096, true, 100, 5, 5.5},
		{"krping", "WRITE", 65536, false, 40, 20, 22}, {"krping", "READ", 65536, false, 40, 19, 23}, {"krping", "WRITE", 1 << 20, false, 4, 260, 263},
		{"nvme-rdma", "Write", 4096, true, 400, 5, 5.5}, {"nvme-rdma", "Read", 4096, false, 100, 4, 7},
		{"nvme-rdma", "Write", 65536, false, 40, 20, 22}, {"nvme-rdma", "Read", 65536, false, 40, 19, 23},
		{"nvme-tcp", "Write", 65536, false, 40, 1, 40}, {"nvme-tcp", "Read", 65536, false, 40, 1, 40},
		{"krping-ping", "ping", 65536, false, 10, 40, 44}, {"verbs", "RDMA WRITE", 16384, false, 20, 4, 4}, {"verbs", "FetchAdd", 8, false, 100, 2, 2},
	} {
		found := false
		for _, c := range r.IOs {
			if c.Protocol != want.protocol || c.Name != want.name || c.Bytes != want.bytes || c.Inline != want.inline {
				continue
			}
			found = true
			// Soft-RoCE's occasional retransmissions add packets. The block layer may merge adjacent I/Os.
			if each := c.Packets / float64(c.IOs); c.IOs < want.ios*9/10 || each < want.least || r.Totals.Retransmitted == 0 && each > want.most {
				t.Errorf("%+v\nwant %+v", c, want)
			}
		}
		if !found {
			t.Errorf("no I/O like %+v", want)
		}
	}
}

// checkLadders checks the order of packets in the ladders: for large I/Os the target moves the data.
func checkLadders(t *testing.T, file string) {
	t.Helper()
	picture := filepath.Join(t.TempDir(), "ladder.svg")
	text := krpingctl(t, "--read", file, "--ladder", "--examples", "1", "--svg", picture)
	for _, want := range [][]string{
		{": krping WRITE 65536 bytes", "|-- SEND Only: WRITE tag", "-- RDMA READ Request: 65536 bytes", "|== RDMA READ response First [4096] ==", "|== 14 x RDMA READ response Middle [57344] ==", "SEND Only with Invalidate: OK"},
		{": krping READ 65536 bytes", "|-- SEND Only: READ tag", "== RDMA WRITE First: 65536 bytes", "RDMA WRITE Last [4096] ==|", "SEND Only with Invalidate: OK"},
		{": nvme-rdma Write 65536 bytes", "|-- SEND Only: Write cid", "-- RDMA READ Request: 65536 bytes", "|== RDMA READ response First [4096] ==", "completion cid"},
		{": nvme-rdma Read 65536 bytes", "|-- SEND Only: Read cid", "== RDMA WRITE First: 65536 bytes", "RDMA WRITE Last [4096] ==|", "completion cid"},
		{": nvme-rdma Write 4096 bytes inline", "|== SEND First [4032] ==", "SEND Last: Write cid"},
		{": nvme-tcp Write 65536 bytes", "CapsuleCmd", "R2T", "H2CData", "CapsuleResp"},
	} {
		_, rest, found := strings.Cut(text, want[0])
		ladder, _, _ := strings.Cut(rest, "\n\n")
		at := 0
		for _, part := range want[1:] {
			i := strings.Index(ladder[at:], part)
			if !found || i < 0 {
				t.Errorf("ladder%s:%s\n%q is missing or out of order", want[0], ladder, part)
				break
			}
			at += i
		}
	}
	data, err := os.ReadFile(picture)
	if err != nil {
		t.Fatal(err)
	}
	decoder := xml.NewDecoder(bytes.NewReader(data))
	for {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture: %v", err)
		}
	}
}
