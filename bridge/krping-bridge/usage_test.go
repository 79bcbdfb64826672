// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"krping/bridge/cli"
)

// A wrong command line is a usage error, which ends the bridge with exit code 2. The message says what would be
// right, and nothing is created.
func TestUsage(t *testing.T) {
	dir := t.TempDir()
	for args, want := range map[string]string{
		"--lisen x":                          "unknown flag: --lisen: did you mean --listen?",
		"--ping --store file:/x":             "--ping needs a value: --store is the next flag",
		"--listen -v":                        "--listen needs a value: -v is the next flag",
		"":                                   "--listen ADDR:PORT (for volumes), --ping ADDR:PORT or both are needed",
		"--store file:/x":                    "--listen ADDR:PORT is needed to serve a volume",
		"--listen 1.2.3.4":                   "--store file:PATH or --volume is needed",
		"--listen 1.2.3 --store mem:":        "--listen 1.2.3: must be an IP address or a host name",
		"--listen 1.2.3.4:0 --store mem:":    `--listen 1.2.3.4:0: port "0": must be 1 to 65535`,
		"--ping 1.2.3.4 --ping 1.2.3.4:9999": "--ping 1.2.3.4:9999: the address and port are given twice",
		"--ping 1.2.3.4 --ping-max-size 4GB": "--ping-max-size 4GB: must be 1 byte to 2 GiB",
		"--ping 1.2.3.4 --ping-max-connections 70000":                  "--ping-max-connections 70000: must be 1 to 16384",
		"--ping 1.2.3.4 --ping-max-connections -1":                     "--ping-max-connections -1: must be 1 to 16384",
		"client --verb sned --bw":                                      `--verb "sned": must be one of send, write, write_imm, read, fetch_add, cmp_swap`,
		"client --verb send --bw --qp xrc":                             `--qp "xrc": must be rc, uc or ud`,
		"client --verb send":                                           "exactly one of --bw and --lat is needed",
		"client --verb send --bw --lat":                                "exactly one of --bw and --lat is needed",
		"client --verb send --lat --qps 2":                             "--qps does not go with --lat: one message is in flight",
		"client --verb write --bw --rxdepth 2":                         "--rxdepth does not go with --verb write",
		"client --verb read --bw --inline 64":                          "--inline does not go with --verb read",
		"client --verb send --bw --reads 2":                            "--reads does not go with --verb send",
		"client --verb fetch_add --bw --size 8":                        "--size does not go with --verb fetch_add, which is of 8 bytes",
		"client --verb send --bw --mtu 1024":                           "--mtu does not go with --qp rc",
		"client --verb send --bw --txdepth 0":                          "--txdepth 0: must be at least 1",
		"client --verb read --bw --reads 256":                          "--reads 256: must be 1 to 255",
		"client --verb send --bw -C 5 -d 1s":                           "--duration does not go with --count: give one of them",
		"client --verb send --bw -S 0":                                 "--size 0: must be 1 byte to 1 GiB",
		"client --verb send --bw -S 128 --inline 64":                   "--inline 64: must be at least the size, 128",
		"client --verb send --bw -d 1500ms":                            "--duration 1.5s: must be whole seconds",
		"client --verb send --bw":                                      "--addr ADDR is needed",
		"client --verb send --bw --srq --qps 4 --rxdepth 2 -a 1.2.3.4": "rxdepth 2: must be 4 to 16384",
		"client --verb read --qp uc --bw -a 1.2.3.4":                   "uc queue pairs have no read",
		"client --verb send --bw -a 1.2.3.4 --tos 256":                 "--tos 256: must be 0 to 255",
		"client --verb send --bw -a 1.2.3.4 --source x":                "--source x: must be an IP address",
		"--ping 1.2.3.4 --max-memory lots":                             `--max-memory: "lots": must be a size such as 4096, 64k`,
		"--ping 1.2.3.4 --allow x":                                     "--allow: ",
		"-l 1.2.3.4 -s mem: -S 4kk":                                    `--size: "4kk": must be a size such as 4096, 64k`,
		"-l 1.2.3.4 -s mem: -S 1M --block-size 8k":                     `--block-size: "8k": must be 512 or 4096`,
		"-l 1.2.3.4 -s mem: -S 1M --uuid x":                            "--uuid: ",
		"-l 1.2.3.4 -s mem: -S 1M -n a!b":                              `volume name "a!b": must be`,
		"-l 1.2.3.4 -s disk: -S 1M":                                    `volume vol0: store "disk:": must be mem: or file:PATH`,
		"-l 1.2.3.4 --volume a":                                        "--volume a: must begin with NAME=STORE",
		"-l 1.2.3.4 --volume a=mem:,size=1M,writable":                  `--volume a=mem:,size=1M,writable: unknown option "writable"`,
		"creat":                             `unknown command "creat" for "krping-bridge": did you mean create?`,
		"create x":                          `unexpected argument "x"`,
		"create --store file:" + dir + "/f": "--size SIZE is needed",
		"create --store file:" + dir + "/f --size 4x": "--size: ",
		"create --store mem: --size 4k":               "--store: ",
	} {
		err := run(t.Context(), strings.Fields(args))
		if !errors.As(err, new(cli.UsageError)) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: %v, want %s", args, err, want)
		}
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}

// A flag that would have no effect is refused: what it is for would be missing without a word.
func TestFlagsWithoutEffect(t *testing.T) {
	const belongs = " is of the volume of --store, which is missing; options of a --volume follow it after commas"
	at := []string{"--listen", "1.2.3.4", "--volume", "a=file:/a"}
	for want, args := range map[string][]string{
		"--key-file" + belongs:          append(at, "--key-file", "k"),
		"--read-only" + belongs:         append(at, "--read-only"),
		"--uuid" + belongs:              append(at, "--uuid", "6ba7b810-9dad-11d1-80b4-00c04fd430c8"),
		"--size" + belongs:              {"--ping", "1.2.3.4", "--size", "4k"},
		"--ping-poll needs --ping":      append(at, "--ping-poll"),
		"--allow has an empty value":    append(at, "--allow", ""),
		"--key-file has an empty value": {"--listen", "1.2.3.4", "--store", "file:/a", "--key-file", ""},
		"--store has an empty value":    {"create", "--store", "", "--size", "4k"},
		"--volume a=mem:,size=1M,writeback=no: writeback=no has no value: write writeback alone": {"--listen", "1.2.3.4", "--volume", "a=mem:,size=1M,writeback=no"},
		"--volume a=mem:,size=: size needs a value":                                              {"--listen", "1.2.3.4", "--volume", "a=mem:,size="},
		"--volume a=mem:,key-file=: key-file needs a value":                                      {"--listen", "1.2.3.4", "--volume", "a=mem:,key-file="},
		"--volume a=mem:,size=1M,size=2M: size is given twice":                                   {"--listen", "1.2.3.4", "--volume", "a=mem:,size=1M,size=2M"},
	} {
		if err := run(t.Context(), args); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", args, err, want)
		}
	}
}

// Sizes and options mean the same in --size, --volume and create, and as krpingctl spells them.
func TestVolumeSpecs(t *testing.T) {
	for text, want := range map[string]volumeSpec{
		"a=mem:,size=4k": {name: "a", store: "mem:", size: 4096, blockSize: 512},
		"a=mem:,size=64M,block-size=4k,read-only":    {name: "a", store: "mem:", size: 64 << 20, blockSize: 4096, readOnly: true},
		"a=/srv/a.img,read_only,block_size=4096":     {name: "a", store: "/srv/a.img", blockSize: 4096, readOnly: true},
		"a=file:/srv/a.img,size=1MB,readonly,shared": {name: "a", store: "file:/srv/a.img", size: 1e6, blockSize: 512, readOnly: true, shared: true},
	} {
		got, err := parseVolume(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v, want %+v", text, got, err, want)
		}
	}
	for text, want := range map[string]string{"/srv/a.img": "file:/srv/a.img", "file:a": "file:a", "mem:": "mem:"} {
		if got, err := storeOf(text); err != nil || got != want {
			t.Errorf("%s: %s, %v, want %s", text, got, err, want)
		}
	}
	path := filepath.Join(t.TempDir(), "a.img")
	if err := run(t.Context(), []string{"create", "-s", path, "-S", "64k"}); err != nil {
		t.Fatal(err)
	}
	if info, err := os.Stat(path); err != nil || info.Size() != 65536 {
		t.Errorf("%v %v", info, err)
	}
}

// An interrupted create leaves nothing.
func TestInterruptedCreate(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	err := run(ctx, []string{"create", "-s", filepath.Join(dir, "a.img"), "-S", "64k", "--preallocate"})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "interrupted") {
		t.Errorf("error %v", err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
		t.Errorf("left: %v %v", left, err)
	}
}
