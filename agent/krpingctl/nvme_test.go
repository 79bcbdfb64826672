// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/cobra"

	"krping/agent/nvme/nvmehost"
	"krping/agent/nvme/nvmet"
	"krping/bridge/display"
)

func TestNVMeUsage(t *testing.T) {
	for args, want := range map[string]string{
		"target add":                                                        "--nqn: an NQN is needed",
		"target add --nqn x":                                                "--device or --null is needed",
		"target add --nqn x --null 1GiB":                                    "--addr is needed",
		"target add --nqn x --addr 10.0.0 --null 1GiB":                      "--addr 10.0.0: must be an IP address or a host name",
		"target add --nqn x --addr 1.2.3.4 --null 1000":                     "multiple of 1MiB",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --device /dev/x":     "--device and --null: give one",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --transport fc":      "must be rdma or tcp",
		"target add --nqn x --addr 1.2.3.4 --null 0":                        "--null 0: must be a multiple of 1MiB, greater than 0",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --port 0":            "--port 0: must be 1 to 65535",
		"connect --nqn x --traddr 1.2.3.4 --trsvcid 0":                      "--trsvcid 0: must be 1 to 65535",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --inline-size 32KiB": "at most 16384",
		"target add --nqn a,b --addr 1.2.3.4 --null 1MiB":                   "not contain spaces, commas or slashes",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --allow-host a/b":    "--allow-host",
		"target remove":               "give the NQN",
		"target remove x --nqn y":     "give the NQN",
		"target remove x --all":       "give the NQN",
		"target restore nvme_test.go": "not a save file",
		"connect --nqn x":             "--traddr is needed",
		"connect --nqn x --traddr 1.2.3.4:4421 --trsvcid 4420":     "--traddr 1.2.3.4:4421 and --trsvcid 4420: the ports differ",
		"connect --nqn x -a [fd77::1]:9 -s 8":                      "--traddr [fd77::1]:9 and --trsvcid 8: the ports differ",
		"connect-all --traddr 1.2.3.4:9 --trsvcid 8":               "--traddr 1.2.3.4:9 and --trsvcid 8: the ports differ",
		"discover --traddr 1.2.3.4:0":                              `--traddr 1.2.3.4:0: port "0": must be 1 to 65535`,
		"discover --traddr [1.2.3.4]:9":                            "--traddr [1.2.3.4]:9: must be an IP address or a host name, perhaps with a port",
		"discover --traddr 1.2.3.4 --host-traddr 1.2.3.5:9":        "--host-traddr 1.2.3.5:9: must have no port",
		"target add --nqn x --addr 1.2.3.4:9 --null 1MiB --port 8": "--addr 1.2.3.4:9 and --port 8: the ports differ",
		"connect --traddr 1.2.3.4":                                 "--nqn is needed",
		"connect --nqn x --traddr 1.2.3.4 --queue-size 8":          "--queue-size 8",
		"connect --nqn x --traddr 1.2.3.4 --nr-io-queues many":     "--nr-io-queues many: must be a whole number",
		"connect --nqn x --traddr 1.2.3.4 --hdr-digest":            "for --transport tcp",
		"disconnect":                                             "give one of",
		"disconnect --all --nqn x":                               "give one of",
		"discover --traddr 1.2.3.4 -t loop":                      "must be rdma or tcp",
		"discover --traddr 1.2.3.4 -t loop -o json":              "must be rdma or tcp",
		"list -o xml":                                            "must be text or json",
		"connect-all":                                            "--traddr is needed",
		"connect --nqn x --traddr 1.2.3.4 -S hunter2":            "--dhchap-secret: must be like DHHC-1",
		"connect --nqn x --traddr 1.2.3.4 --fast_io_fail_tmo -7": "--fast-io-fail-tmo -7",
	} {
		err := run(t.Context(), append([]string{"nvme"}, strings.Fields(args)...), io.Discard)
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("nvme %s: %v, want %q", args, err, want)
		}
	}
}

// An address may have a port, as with the other commands.
func TestNVMeAddresses(t *testing.T) {
	for args, want := range map[string]string{
		"-a 10.0.0.1":                       "10.0.0.1:4420",
		"-a 10.0.0.1 -s 8009":               "10.0.0.1:8009",
		"-a 10.0.0.1:8009":                  "10.0.0.1:8009",
		"--traddr 10.0.0.1:80 --trsvcid 80": "10.0.0.1:80",
		"-a fd77::1":                        "[fd77::1]:4420",
		"-a [fd77::1]":                      "[fd77::1]:4420",
		"--traddr [fd77::1]:8009":           "[fd77::1]:8009",
		"--traddr [fe80::1%eth0]:1 --host-iface eth0 -t tcp": "[fe80::1%eth0]:1",
	} {
		var f hostFlags
		cmd := &cobra.Command{}
		cmd.SetContext(t.Context())
		f.register(cmd)
		if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
			t.Fatal(err)
		}
		o, err := f.options(cmd)
		if got := netip.AddrPortFrom(o.Addr, o.Port).String(); got != want || err != nil {
			t.Errorf("%s: %s, %v, want %s", args, got, err, want)
		}
	}
	f := addFlags{nqn: "x", null: nvmet.MiB, addr: "[fd77::1]:9", transport: nvmet.TCP, port: 4420}
	if s, err := f.serve(&cobra.Command{}); err != nil || s.Addr.String() != "[fd77::1]:9" {
		t.Errorf("target add: %s, %v", s.Addr, err)
	}
}

// Saving an empty configuration does not replace saved targets.
func TestSaveEmptyConfiguration(t *testing.T) {
	file := filepath.Join(t.TempDir(), "saved.json")
	nothing := nvmet.Config{Hosts: []nvmet.Host{}, Ports: []nvmet.Port{}, Subsystems: []nvmet.Subsystem{}}
	something := nvmet.Config{Subsystems: []nvmet.Subsystem{{NQN: "nqn.a"}}}
	if err := keepSaved(file, nothing); err != nil {
		t.Errorf("no file: %v", err)
	}
	for text, kept := range map[string]bool{
		"": false, `{"hosts":[],"ports":[],"subsystems":[]}`: false, "some notes": true,
		`{"hosts":[{"nqn":"nqn.h"}],"ports":[],"subsystems":[]}`: true, `{"subsystems":[{"nqn":"nqn.a"}]}`: true,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := keepSaved(file, nothing); (err != nil) != kept || kept && (exitCode(err) != exitFailure || !strings.Contains(err.Error(), "--force")) {
			t.Errorf("%q: %v, want it kept: %v", text, err, kept)
		}
		if err := keepSaved(file, something); err != nil {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// What a target sends must neither hide nor forge lines.
func TestHostileDiscoveryLog(t *testing.T) {
	var out strings.Builder
	d := nvmehost.Discovery{Records: []nvmehost.Record{{Transport: "tcp", Addr: "\x1b[2K", Service: "1\n2", NQN: "nqn.a\r\u009bx"}}}
	if err := writeDiscovery(&out, d); err != nil {
		t.Fatal(err)
	}
	if err := writeControllers(&out, []nvmehost.Controller{{NQN: "nqn.\x1b[2K", Address: "traddr=\x07"}}); err != nil {
		t.Fatal(err)
	}
	if strings.ContainsAny(out.String(), "\x1b\r\x07\u009b") || strings.Count(out.String(), "\n") != 4 || !strings.Contains(out.String(), `nqn.a\x0d\x9bx`) {
		t.Errorf("%q", out.String())
	}
	if got := display.Lines("cannot find nqn.\x1b[2K\rok:\n\tuse nqn.a"); got != `cannot find nqn.\x1b[2K\x0dok:`+"\n  use nqn.a" {
		t.Errorf("%q", got)
	}
}
