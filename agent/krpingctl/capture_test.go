// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

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
	if checked < 40 {
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
		"--interface nonesuch0":          {1, "interface nonesuch0: "},
		"--lader":                        {2, "did you mean --ladder?"},
	} {
		err := run(t.Context(), append([]string{"capture"}, strings.Fields(arguments)...), &bytes.Buffer{})
		if err == nil || exitCode(err) != c.code || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v (%d), want %s (%d)", arguments, err, exitCode(err), c.want, c.code)
		}
	}
}
