// SPDX-License-Identifier: Apache-2.0

// Package units checks the systemd units, the generator and the udev rules of scripts/system.
package units

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"krping/agent/service"
	"krping/test/docs"
)

func folder() string { return filepath.Join(docs.Root(), "scripts/system") }

func read(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(folder(), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// programs finds the paths of programs, which systemd checks to exist.
var programs = regexp.MustCompile(`(?m)^(Exec\w+=)/usr/bin/krp[\w-]+`)

// install writes the units, with programs that exist, and templates also as an instance.
func install(t *testing.T) (dir string, names []string) {
	t.Helper()
	dir = t.TempDir()
	var files []string
	for _, pattern := range []string{"*.service", "*.target"} {
		found, err := filepath.Glob(filepath.Join(folder(), pattern))
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, found...)
	}
	if len(files) < 7 {
		t.Fatalf("only %d units found", len(files))
	}
	for _, file := range files {
		name := filepath.Base(file)
		text := programs.ReplaceAllString(read(t, name), "${1}/bin/true")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		names = append(names, strings.Replace(name, "@.", "@x.", 1))
	}
	return dir, names
}

func analyze(t *testing.T, dir string, args ...string) (string, error) {
	t.Helper()
	cmd := exec.Command("systemd-analyze", args...)
	cmd.Env = append(os.Environ(), "SYSTEMD_UNIT_PATH="+dir+":/usr/lib/systemd/system:/lib/systemd/system")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// systemd understands every line of the units, and they name units that exist.
func TestUnitsAreValid(t *testing.T) {
	dir, names := install(t)
	for _, name := range names {
		out, err := analyze(t, dir, "verify", "--man=no", name)
		if err != nil || strings.Contains(out, "krping") {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	broken := "[Unit]\nAfter=krping-rdma.target\n[Service]\nExecStart=/bin/true\nProtectHomes=yes\n"
	if err := os.WriteFile(filepath.Join(dir, "krping-broken.service"), []byte(broken), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, _ := analyze(t, dir, "verify", "--man=no", "krping-broken.service"); !strings.Contains(out, "ProtectHomes") {
		t.Errorf("an unknown setting is not noticed: %s", out)
	}
}

// The services that peers reach are in a sandbox: systemd rates exposure from 0 to 10, times 10 here.
func TestSandboxes(t *testing.T) {
	dir, _ := install(t)
	for name, most := range map[string]string{"krping-bridge@x.service": "30", "krping-agent.service": "45"} {
		out, err := analyze(t, dir, "security", "--offline=true", "--no-pager", "--threshold="+most, name)
		if err != nil {
			t.Errorf("%s is more exposed than %s: %v\n%s", name, most, err, out)
		}
	}
}

// The agent's unit has what the agent relies on.
func TestAgentUnit(t *testing.T) {
	unit := read(t, "krping-agent.service")
	for _, want := range []string{"Type=notify\n", "WatchdogSec=", "ExecStart=/usr/bin/krpingctl agent\n", "RuntimeDirectory=" + filepath.Base(service.RunDir) + "\n"} {
		if !strings.Contains(unit, want) {
			t.Errorf("the unit has no %s", want)
		}
	}
}

// At boot and, in reverse, at shutdown: the links, the target, detaching, the agent, the mounts, and last
// what lets I/O fail.
func TestOrder(t *testing.T) {
	for _, tc := range []struct{ unit, line, other string }{
		{"krping-bridge@.service", "After", "krping-rdma.target"},
		{"krping-bridge@.service", "After", "network-online.target"},
		{"krping-detach.service", "Before", "remote-fs-pre.target"},
		{"krping-rxe@.service", "DefaultDependencies", "no"}, // before basic.target
		{"krping-rxe@.service", "Before", "krping-rdma.target"},
		{"krping-detach.service", "After", "network.target"},
		{"krping-agent.service", "After", "network.target"},
		{"krping-agent.service", "After", "krping-detach.service"},
		{"krping-agent.service", "Before", "remote-fs-pre.target"},
		{"krping-agent.service", "Wants", "remote-fs-pre.target"}, // else it does not order anything
		{"krping-shutdown.service", "After", "remote-fs.target"},
	} {
		var found []string
		for line := range strings.Lines(read(t, tc.unit)) {
			if value, ok := strings.CutPrefix(strings.TrimSpace(line), tc.line+"="); ok {
				found = append(found, strings.Fields(value)...)
			}
		}
		if !slices.Contains(found, tc.other) {
			t.Errorf("%s: no %s=%s", tc.unit, tc.line, tc.other)
		}
	}
}

// generate runs the generator on configuration files, and returns the drop-ins that it writes.
func generate(t *testing.T, files map[string]string) map[string]string {
	t.Helper()
	etc, out := t.TempDir(), t.TempDir()
	for name, text := range files {
		path := filepath.Join(etc, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command(filepath.Join(folder(), "krping-generator"), out, out, out)
	cmd.Env = append(os.Environ(), "KRPING_ETC="+etc)
	if text, err := cmd.CombinedOutput(); err != nil || len(text) > 0 {
		t.Errorf("generator: %v, %s", err, text)
	}
	dropins := map[string]string{}
	found, err := filepath.Glob(filepath.Join(out, "*.d/50-stores.conf"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range found {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		_, rest, _ := strings.Cut(string(text), "\n") // the first line says where it comes from
		dropins[strings.TrimSuffix(filepath.Base(filepath.Dir(path)), ".d")] = rest
	}
	return dropins
}

func TestGenerator(t *testing.T) {
	file := func(path, dir string) string {
		return "[Unit]\nRequiresMountsFor=" + path + "\n[Service]\nReadWritePaths=-" + dir + "\n"
	}
	device := func(path, unit string) string {
		return "[Unit]\nBindsTo=" + unit + "\nAfter=" + unit + "\n[Service]\nSupplementaryGroups=disk\nDeviceAllow=" + path + " rw\n"
	}
	for name, tc := range map[string]struct{ conf, want string }{
		"file":                    {"OPTIONS=--listen 10.0.0.1 --store file:/srv/vol0.img\n", file("/srv/vol0.img", "/srv")},
		"device":                  {"OPTIONS=--listen 10.0.0.1 --store file:/dev/vdb\n", device("/dev/vdb", "dev-vdb.device")},
		"device with odd letters": {"OPTIONS=--store=file:/dev/disk/by-id/a-b%c\n", device("/dev/disk/by-id/a-b%%c", `dev-disk-by\x2did-a\x2db\x25c.device`)},
		"several": {"OPTIONS=\"--volume a=file:/srv/a.img,size=1GiB --volume=b=file:/mnt/b/b.img,read-only\"\n",
			file("/mnt/b/b.img", "/mnt/b") + file("/srv/a.img", "/srv")},
		"next line":  {"OPTIONS=--listen 10.0.0.1 \\\n  --store file:/srv/vol0.img\n", file("/srv/vol0.img", "/srv")},
		"in quotes":  {"OPTIONS='--store file:/srv/vol0.img'\n", file("/srv/vol0.img", "/srv")},
		"percent":    {"OPTIONS=--store file:/srv/100%/v.img\n", file("/srv/100%%/v.img", "/srv/100%%")},
		"memory":     {"OPTIONS=--store mem: --size 1GiB\n", ""},
		"comment":    {"# OPTIONS=--store file:/srv/vol0.img\n ; file:/x\n", ""},
		"empty":      {"", ""},
		"key file":   {"OPTIONS=--store mem: --key-file /etc/krping/vol0.key\n", ""},
		"with a key": {"OPTIONS=--volume v=file:/srv/v.img,key-file=/etc/krping/v.key\n", file("/srv/v.img", "/srv")},
	} {
		t.Run(name, func(t *testing.T) {
			if got := generate(t, map[string]string{"targets/v.conf": tc.conf})["krping-bridge@v.service"]; got != tc.want {
				t.Errorf("%s\nwant\n%s", got, tc.want)
			}
		})
	}
	if got := generate(t, nil); len(got) > 0 {
		t.Errorf("without a configuration: %q", got)
	}
	got := generate(t, map[string]string{
		"servers/disk.conf": "OPTIONS=--addr 10.0.0.1 --backing /dev/vdb\n", "servers/ram.conf": "OPTIONS=--addr 10.0.0.1 --backing=ram:1G\n",
	})
	if want := "[Unit]\nBindsTo=dev-vdb.device\nAfter=dev-vdb.device\n"; len(got) != 1 || got["krping-server@disk.service"] != want {
		t.Errorf("servers: %q, want only %q", got, want)
	}
}
