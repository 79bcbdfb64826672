// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"io"
	"strings"
	"testing"
)

// A wrong command line is refused with exit code 2, and the message says what would be right.
func TestUsage(t *testing.T) {
	for args, want := range map[string]string{
		"clinet":                 `unknown command "clinet" for "krpingctl": did you mean client?`,
		"clinet --addr 1.2.3.4":  `unknown command "clinet" for "krpingctl": did you mean client?`,
		"clent":                  `unknown command "clent" for "krpingctl": did you mean client?`,
		"link dell":              `unknown command "dell" for "krpingctl link": did you mean del?`,
		"link dell rxe0 --force": `unknown command "dell" for "krpingctl link": did you mean del?`,
		"link foo":               `unknown command "foo" for "krpingctl link"`,
		"nvme conect --nqn x":    `unknown command "conect" for "krpingctl nvme": did you mean connect?`,
		"nvme target ad":         `unknown command "ad" for "krpingctl nvme target": did you mean add?`,
		"completion bash extra":  `unexpected argument "extra"`,
		"completion bsh":         `unknown command "bsh" for "krpingctl completion": did you mean bash or zsh?`,
		"help clinet":            `unknown command "clinet" for "krpingctl": did you mean client?`,
		"help nvme target ad":    `unknown command "ad" for "krpingctl nvme target": did you mean add?`,

		"stop":                             "stop needs the argument NAME, or --all",
		"write --size 1MiB":                "write needs the argument DEVICE",
		"verify":                           "verify needs the argument DEVICE",
		"replay":                           "replay needs the arguments FILE and DEVICE",
		"replay x":                         "replay needs the arguments FILE and DEVICE",
		"link add":                         "link add needs the argument NAME",
		"link del":                         "link del needs the argument NAME",
		"link add rxe0 typ rxe":            `unexpected argument "typ"`,
		"link add rxe0 type":               `unexpected argument "type"`,
		"link add rxe0 type x netdev eth0": "--type x: must be rxe or siw",
		"link list extra":                  `unexpected argument "extra"`,
		"stop vol0 extra":                  `unexpected argument "extra"`,
		"trace /dev/x y":                   `unexpected argument "y"`,
		"stat --watch x":                   `unexpected argument "x"`,
		"stat --watch=5 2s":                `unexpected argument "2s"`,
		"stat --watch 10ms":                "--watch 10ms: must be 100ms or more",
		"stop --all vol0":                  "NAME and --all: give one of them",

		"client --addr 1.2.3.4 --addr6 ::1":                       "--addr and --addr6: give one of them",
		"client --addr 1.2.3.4 --port 0":                          "--port 0: must be 1 to 65535",
		"client --addr 1.2.3.4 --port 70000":                      "--port 70000: must be 1 to 65535",
		"client --addr 1.2.3.4 --port many":                       "--port many: must be 1 to 65535",
		"client --addr 1.2.3.4 --port=":                           `--port "": must be 1 to 65535`,
		"client --addr 1.2.3.4 --size 0":                          "--size 0: must be 1 to 1073741824 bytes",
		"client --addr 1.2.3.4 --size 2GiB":                       "--size 2GiB: must be 1 to 1073741824 bytes",
		"client --addr 1.2.3.4 --size big":                        "--size big: must be a size such as 4096, 64k, 1M or 1GiB (1024s), or 1GB (1000s)",
		"client --addr 1.2.3.4 --count -1":                        "--count -1: must be 0 to 4294967295",
		"client --addr 1.2.3.4 --tos 256":                         "--tos 256: must be 0 to 255",
		"client --addr 1.2.3.4 --timeout ten":                     "--timeout ten: must be a duration such as 10s or 5m; a number alone is seconds",
		"client --addr 1.2.3.4 --timeout 0":                       "--timeout 0: must be whole seconds, 1 to 86400",
		"client --addr 1.2.3.4:9 --port 8":                        "--addr 1.2.3.4:9 and --port 8: the ports differ",
		"client --addr 1.2.3.4:x":                                 `--addr 1.2.3.4:x: port "x": must be 1 to 65535`,
		"client --addr 1.2.3":                                     "--addr 1.2.3: must be an IP address or a host name, perhaps with a port",
		"client --addr 1.2.3.4 --source 203.0.113.77":             `source "203.0.113.77": no network interface of this host has this address; there are 127.0.0.1 (lo)`,
		"sweep --addr 1.2.3.4 --source nosuch":                    `source "nosuch": is neither an IP address nor a network interface of this host, which has lo`,
		"client --addr 1.2.3.4 --source ::1":                      "source ::1 and address 1.2.3.4: must both be IPv4 or both IPv6",
		"client --addr 1.2.3.4 --block a//b":                      `block "a//b": must be 1 to 63 letters`,
		"client --addr= --dry-run":                                "--addr has an empty value",
		"client --addr --port 9":                                  "--addr needs a value: --port is the next flag",
		"client -a -p 9":                                          "--addr needs a value: -p is the next flag",
		"client -x 1":                                             "unknown shorthand flag: 'x' in -x",
		"client --adress 1.2.3.4":                                 "unknown flag: --adress",
		"client --timout 3":                                       "unknown flag: --timout: did you mean --timeout?",
		"server --addr 1.2.3.4 --block v --json --backing ram:1M": "--json: a server of a volume prints nothing",
		"client --addr 1.2.3.4 -o yaml":                           "--output yaml: must be text or json",
		"client --addr 1.2.3.4 --timeout 0s":                      "--timeout 0s: must be whole seconds, 1 to 86400",
		"client --addr 1.2.3.4 --timeout 1500ms":                  "--timeout 1500ms: must be whole seconds, 1 to 86400",
		"client --addr 1.2.3.4 --duration 0s":                     "--duration 0s: must be longer than 0",
		"client --addr 1.2.3.4 --threads 0":                       "--threads 0: must be 1 to 4096",
		"client --addr 1.2.3.4 --bw --txdepth 0":                  "--txdepth 0: must be 1 to 16384",
		"client --addr 1.2.3.4 --bw --tx_depth 0":                 "--txdepth 0: must be 1 to 16384",
		"client --addr 1.2.3.4 --bw --qps 0":                      "--qps 0: must be 1 to 1024",
		"client --addr 1.2.3.4 --block v --depth 0":               "--depth 0: must be 1 to 1024",
		"client --addr 1.2.3.4 --block v --queues 0":              "--queues 0: must be 1 to 64",
		"client --addr 1.2.3.4 --block v --fast-fail 0s":          "--fast-fail 0s: must be whole seconds, 1 to 86400",
		"client --addr 1.2.3.4 --block v --fast-fail 0":           "--fast-fail 0: must be whole seconds, 1 to 86400",
		"client --addr 1.2.3.4 --block v --heartbeat 3601":        "--heartbeat 3601: must be whole seconds, 0 to 3600",
		"client --addr 1.2.3.4 --block v --pid 0":                 "--pid 0: must be 1 to 4194304",
		"server --addr 1.2.3.4 --block-size 8k":                   "--block-size 8k: must be 512 or 4096",
		"server --addr 1.2.3.4 --block-size 0":                    "--block-size 0: must be 512 or 4096",
		"client --addr 1.2.3.4 --json=perhaps":                    "--json perhaps: must be true or false",
		"write x --seed -1":                                       "--seed -1: must be a whole number, 0 or more",
		"write x --size 0":                                        "--size 0: must be 1 or more",
		"write x --count 17592186044417 --bs 1MiB":                "--count 17592186044417: blocks of 1048576 bytes, at most 8796093022207 of them",
		"write x --count -1":                                      "--count -1: must be 0 to ",
		"verify x --size 0":                                       "--size 0: must be 1 or more",
		"trace --slow 0s":                                         "--slow 0s: must be longer than 0",
		"trace --for -1s":                                         "--for -1s: must be longer than 0",
		"trace --pid 0":                                           "--pid 0: must be 1 to 4194304",
		"top --interval x":                                        "--interval x: must be a duration such as 10s or 5m",
		"sweep":                                                   "--addr is needed",
		"replay x y --speed fast":                                 "--speed fast: must be a number",
		"replay x y --depth many":                                 "--depth many: must be a whole number",
		"sweep --addr 1.2.3.4 --port 0":                           "--port 0: must be 1 to 65535",
		"sweep --addr 1.2.3.4 --txdepth 0":                        "--txdepth 0: must be 1 to 16384",
		"sweep --addr 1.2.3.4 --threads 1,x":                      "--threads 1,x: must be whole numbers, separated by commas",
		"doctor --port 0":                                         "--port 0: must be 1 to 65535",
		"capture --port x":                                        "--port x: must be whole numbers, separated by commas",
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard)
		if exitCode(err) != exitUsage || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v (%d), want %s (%d)", args, err, exitCode(err), want, exitUsage)
		}
	}
}

// An empty value, as of a variable that is not set, would mean more than what the flag is for: any address, no key.
func TestEmptyValues(t *testing.T) {
	for _, flag := range []string{"--key-file", "--allow", "--uuid"} {
		err := run(t.Context(), []string{"server", "--addr", "1.2.3.4", "--block", "v", "--backing", "/dev/vdb", "--dry-run", flag, ""}, io.Discard)
		if want := flag + " has an empty value"; err == nil || !strings.HasPrefix(err.Error(), want) || exitCode(err) != exitUsage {
			t.Errorf("%v, want %s", err, want)
		}
	}
}

// A flag that is given as 0 is passed to the module; one that is not given is left out.
func TestExplicitZeroes(t *testing.T) {
	const args = "client --addr 1.2.3.4 --block v --heartbeat 0 --dry-run"
	var out bytes.Buffer
	if err := run(t.Context(), strings.Fields(args), &out); err != nil || out.String() != "client,addr=1.2.3.4,port=9999,block=v,heartbeat=0\n" {
		t.Errorf("%s: %q, %v", args, out.String(), err)
	}
	out.Reset()
	if err := run(t.Context(), strings.Fields("client --addr 1.2.3.4 --tos 0 --count 0 --dry-run"), &out); err != nil || out.String() != "client,addr=1.2.3.4,port=9999,count=0,tos=0\n" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

// A command with subcommands, and help, print help with exit code 0.
func TestHelp(t *testing.T) {
	for args, want := range map[string]string{
		"": "Exit codes:", "link": "Add a software RDMA device", "nvme target": "Serve a disk or a file", "help link": "Add a software RDMA device",
		"help": "Exit codes:", "help options": "fast_fail=NUMBER", "help stat": "--watch 2s", "client --help": "(default 9999)",
		"help client": "-h, --help", "completion": "bash",
	} {
		var out bytes.Buffer
		if err := run(t.Context(), strings.Fields(args), &out); err != nil || !strings.Contains(out.String(), want) || strings.Contains(out.String(), "default 0s") {
			t.Errorf("%q: %v, printed %s, want %s", args, err, out.String(), want)
		}
	}
}
