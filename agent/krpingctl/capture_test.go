// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/gopacket/gopacket"

	"krping/agent/host/rdmalink"
	"krping/agent/packets/capture"
	"krping/agent/packets/packetview"
)

const captures = "../packets/capture/testdata/"

func runCapture(t *testing.T, arguments ...string) string {
	t.Helper()
	var out bytes.Buffer
	if err := run(t.Context(), append([]string{"capture"}, arguments...), &out); err != nil {
		t.Fatalf("%v: %v", arguments, err)
	}
	return out.String()
}

func TestCaptureViews(t *testing.T) {
	for _, c := range []struct {
		arguments string
		want      []string
	}{
		{"krping.pcapng.gz", []string{
			"TIME (UTC)      FROM > TO", "REQ from QP 0x13 to port 9999: krping, volume vol0, queue 0 of 1, depth 128",
			"krping       SEND Last                      32 WRITE tag 66, offset 0, 4096 bytes inline",
			"RDMA READ Request               0 65536 bytes at 0xff37d69ccc377000, key 0x2d47", "OK, tag 36, invalidates key 0x2d47",
		}},
		{"nvme.pcapng.gz", []string{
			"to port 4421: nvme-rdma, queue 0, 31 commands", "Connect cid", "Identify cid", "Write cid", "lba 0, 65536 bytes at", "completion cid", ": success, invalidates key",
		}},
		{"tcp.pcapng.gz", []string{"192.168.77.1:4420", "nvme-tcp     ICReq", "nvme-tcp     R2T", "H2CData", "data, CapsuleResp"}},
		{"verbs.pcapng.gz", []string{"FetchAdd                        0 8 bytes at", "immediate 0x", "UD SEND Only", "DREQ of QP 0x19"}},
		{"krping.pcapng.gz --ladder --examples 1", []string{": krping WRITE 65536 bytes, offset 0: 21 packets", "|<--------------------------- RDMA READ Request: 65536 bytes"}},
		{"nvme.pcapng.gz --count", []string{"268      1097728  RDMA READ response Middle", "nvme-rdma  Write                       65536    2     21.0"}},
		{"tcp.pcapng.gz --port 1", nil},
		{"ping.pcapng.gz --limit 3", []string{"RTU"}},
	} {
		out := runCapture(t, append([]string{"--read"}, strings.Fields(captures+c.arguments)...)...)
		for _, want := range c.want {
			if !strings.Contains(out, want) {
				t.Errorf("%s: no %q in\n%s", c.arguments, want, out)
			}
		}
		if lines := strings.Count(out, "\n"); c.want == nil && lines != 1 || strings.Contains(c.arguments, "--limit 3") && lines != 4 {
			t.Errorf("%s: %d lines", c.arguments, lines)
		}
	}
}

func TestCaptureJSON(t *testing.T) {
	out := runCapture(t, "--read", captures+"krping.pcapng.gz", "--json")
	lines := strings.Split(strings.TrimSpace(out), "\n")
	if len(lines) != 671 {
		t.Errorf("%d objects, want 671", len(lines))
	}
	var r packetview.Record
	if err := json.Unmarshal([]byte(lines[3]), &r); err != nil {
		t.Fatal(err)
	}
	if r.Number != 4 || r.Protocol != "krping" || r.Bytes != 32 || r.RoCE == nil || r.RoCE.Opcode != 4 || r.RoCE.PSN != 7410669 || r.RoCE.ICRC != "good" {
		t.Errorf("%s", lines[3])
	}
	var c countReport
	if err := json.Unmarshal([]byte(runCapture(t, "--read", captures+"krping.pcapng.gz", "--json", "--count")), &c); err != nil {
		t.Fatal(err)
	}
	if c.Totals.Packets != 671 || c.Kernel.Packets != 671 || len(c.IOs) != 7 || len(c.Opcodes) == 0 {
		t.Errorf("%+v", c)
	}
}

// A capture file that is read and saved shows the same packets.
func TestCaptureReadAndSave(t *testing.T) {
	dir := t.TempDir()
	copied, picture := filepath.Join(dir, "copy.pcapng"), filepath.Join(dir, "x.svg")
	if out := runCapture(t, "--read", captures+"nvme.pcapng.gz", "--write", copied); out != "" {
		t.Errorf("printed: %s", out)
	}
	if a, b := runCapture(t, "--read", captures+"nvme.pcapng.gz"), runCapture(t, "--read", copied, "--svg", picture, "--examples", "2"); b != "" || a != runCapture(t, "--read", copied) {
		t.Errorf("the copy differs, or --svg printed something: %s", b)
	}
	svg, err := os.ReadFile(picture)
	if err != nil || !bytes.Contains(svg, []byte("nvme-rdma Read 65536 bytes")) {
		t.Errorf("picture: %v", err)
	}
}

// The transcripts of the README are what capture prints of the captures in testdata.
func TestCaptureReadme(t *testing.T) {
	readme, err := os.ReadFile("../packets/README.md")
	if err != nil {
		t.Fatal(err)
	}
	var printed strings.Builder
	for _, name := range []string{"krping", "nvme"} {
		printed.WriteString(runCapture(t, "--read", captures+name+".pcapng.gz"))
		printed.WriteString(runCapture(t, "--read", captures+name+".pcapng.gz", "--ladder"))
	}
	known := map[string]bool{}
	for line := range strings.Lines(printed.String()) {
		known[strings.TrimSpace(line)] = true
	}
	checked := 0
	for line := range strings.Lines(string(readme)) {
		text := strings.TrimSpace(line)
		if !strings.HasPrefix(line, "    ") || !strings.Contains(text, "192.168.77.1 ") && !strings.Contains(text, "|") && !strings.HasPrefix(text, "I/O") {
			continue
		}
		if checked++; !known[text] {
			t.Errorf("capture does not print %q", text)
		}
	}
	if checked < 25 {
		t.Errorf("only %d lines of transcripts", checked)
	}
}

func TestCaptureErrors(t *testing.T) {
	text := filepath.Join(t.TempDir(), "text")
	if err := os.WriteFile(text, []byte("hello, world"), 0o600); err != nil {
		t.Fatal(err)
	}
	for arguments, c := range map[string]struct {
		code int
		want string
	}{
		"--read x --interface eth0": {2, "--read and --interface: packets come from a file or from an interface, not both"},
		"--read x --duration 1s":    {2, "--read and --duration"},
		"--read x --write x":        {2, "cannot be the same file"},
		"--read " + text + " --write " + filepath.Dir(text) + "/./" + filepath.Base(text): {2, "cannot be the same file"},
		"--read x --write - --count":     {2, "--write -: standard output has the packets"},
		"--limit 0":                      {2, "--limit 0: must be 1 or more"},
		"--duration -1s":                 {2, "--duration -1s: must be longer than 0"},
		"--read x --examples 1":          {2, "--examples: needs --ladder or --svg"},
		"--read x --ladder --examples 0": {2, "--examples 0: must be 1 or more"},
		"--read x --json --ladder":       {2, "--json and --ladder: give one of them"},
		"--protocol nfs":                 {2, "--protocol nfs: must be one of krping, krping-ping, nvme-rdma, verbs"},
		"--port 0":                       {2, "--port 0: must be 1 to 65535"},
		"--port 70000":                   {2, "--port 70000: must be 1 to 65535"},
		"--read /nonesuch":               {1, "/nonesuch: no such file"},
		"--read " + text:                 {1, "neither a pcapng nor a pcap file"},
		"--read x --sizes":               {2, "--sizes: needs --count"},
		"--interface nonesuch0":          {1, "interface nonesuch0: "},
		"--lader":                        {2, "did you mean --ladder?"},
	} {
		err := run(t.Context(), append([]string{"capture"}, strings.Fields(arguments)...), &bytes.Buffer{})
		if err == nil || exitCode(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%d), want %s (%d)", arguments, err, exitCode(err), c.want, c.code)
		}
	}
}

// logged returns what is logged while f runs.
func logged(t *testing.T, f func()) string {
	t.Helper()
	file, err := os.CreateTemp(t.TempDir(), "")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	before := os.Stderr
	os.Stderr = file
	defer func() { os.Stderr = before }()
	f()
	text, err := os.ReadFile(file.Name())
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// Standard input may be a pipe from a capture that still runs: packets are shown as they arrive.
func TestCaptureStandardInput(t *testing.T) {
	for name, end := range map[string]func(*os.File, context.CancelFunc){
		"the pipe ends":   func(w *os.File, _ context.CancelFunc) { w.Close() },
		"an interruption": func(_ *os.File, cancel context.CancelFunc) { cancel() },
	} {
		t.Run(name, func(t *testing.T) {
			in, w, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			defer w.Close()
			out, printed, err := os.Pipe()
			if err != nil {
				t.Fatal(err)
			}
			before := os.Stdin
			os.Stdin = in
			defer func() { os.Stdin = before }()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			ended := make(chan error, 1)
			go func() {
				ended <- run(ctx, []string{"capture", "--read", "-"}, printed)
				printed.Close()
			}()
			file, err := os.Open(captures + "krping.pcapng.gz")
			if err != nil {
				t.Fatal(err)
			}
			defer file.Close()
			plain, err := gzip.NewReader(file)
			if err != nil {
				t.Fatal(err)
			}
			go func() {
				if _, err := io.Copy(w, plain); err != nil {
					t.Error(err)
				}
			}()
			lines, scanner := 0, bufio.NewScanner(out)
			for lines < 1+671 && scanner.Scan() {
				lines++
			}
			end(w, cancel)
			if err := <-ended; err != nil || lines != 1+671 || scanner.Scan() {
				t.Errorf("%d lines, %v", lines, err)
			}
		})
	}
}

// What cannot be shown is told.
func TestCaptureTellsWhatAFileHolds(t *testing.T) {
	for arguments, want := range map[string]string{
		"tcp.pcapng.gz --port 1":            "none of 483 frames is RoCE, or NVMe/TCP on port 1 (--port takes others): TCP port 4420: 483",
		"tcp.pcapng.gz --port 1,8009":       "NVMe/TCP on port 1 or 8009",
		"krping.pcapng.gz --count --port 1": "671 packets, 0 dropped",
	} {
		if got := logged(t, func() { runCapture(t, append([]string{"--read"}, strings.Fields(captures+arguments)...)...) }); !strings.Contains(got, want) {
			t.Errorf("%s: %s, want %s", arguments, got, want)
		}
	}
	// A copy whose frames have only 128 bytes, and are there twice.
	cut := filepath.Join(t.TempDir(), "cut.pcapng")
	in, err := os.Open(captures + "nvme.pcapng.gz")
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	w, err := capture.Create(cut, "")
	if err != nil {
		t.Fatal(err)
	}
	s, err := capture.Read(in, func(data []byte, info gopacket.CaptureInfo) (bool, error) {
		data = data[:min(len(data), 128)]
		info.CaptureLength = len(data)
		return true, errors.Join(w.Write(data, info), w.Write(data, info))
	})
	if err = errors.Join(err, w.Close(s)); err != nil {
		t.Fatal(err)
	}
	var out string
	got := logged(t, func() { out = runCapture(t, "--read", cut, "--count") })
	for _, want := range []string{"packets not captured whole", "packets may be there twice", "editcap -d"} {
		if !strings.Contains(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
	if strings.Contains(got, "bad ICRC") || strings.Contains(got, "missing") || !strings.Contains(out, "nvme-rdma  Write                       65536    2 ") {
		t.Errorf("%s\n%s", got, out)
	}
}

func TestDefaultInterface(t *testing.T) {
	port := func(netdev, state string) rdmalink.Port { return rdmalink.Port{Netdev: netdev, State: state} }
	for name, c := range map[string]struct {
		links      []rdmalink.Link
		want, fail string
	}{
		"none":                   {nil, "", "--interface is needed, as no interface has an RDMA device; this host has lo"},
		"no network device":      {[]rdmalink.Link{{Ports: []rdmalink.Port{port("", rdmalink.Active)}}}, "", "no interface has an RDMA device"},
		"one":                    {[]rdmalink.Link{{Ports: []rdmalink.Port{port("ens1", "DOWN")}}}, "ens1", ""},
		"two devices of one":     {[]rdmalink.Link{{Ports: []rdmalink.Port{port("ens1", "DOWN")}}, {Ports: []rdmalink.Port{port("ens1", "DOWN")}}}, "ens1", ""},
		"one of two is active":   {[]rdmalink.Link{{Ports: []rdmalink.Port{port("ens1", "DOWN"), port("ens2", rdmalink.Active)}}}, "ens2", ""},
		"both of two are active": {[]rdmalink.Link{{Ports: []rdmalink.Port{port("ens2", rdmalink.Active), port("ens1", rdmalink.Active)}}}, "", "several have RDMA devices: ens1, ens2"},
	} {
		got, err := defaultInterface(c.links)
		if got != c.want || (err == nil) != (c.fail == "") || err != nil && (exitCode(err) != exitUsage || !strings.Contains(err.Error(), c.fail)) {
			t.Errorf("%s: %q, %v", name, got, err)
		}
	}
}
