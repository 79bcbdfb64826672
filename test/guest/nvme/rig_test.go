// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package nvme sets up NVMe over fabrics targets and hosts in one VM with `krpingctl nvme`, over RDMA and TCP, and
// compares with nvme-cli. It also provokes failures: the error must explain each of them, and its fix must work.
package nvme

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"krping/agent/nvme/nvmehost"
	"krping/agent/nvme/nvmet"
	"krping/proc"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

const nqn = "nqn.2024-01.org.example:disk0"

// transports are the tested transports and their ports.
var transports = []struct{ name, port string }{{"rdma", "4420"}, {"tcp", "4421"}}

// An emulated host may not respond for longer than the default of 5 s.
const keepAlive = "--keep-alive-tmo=120"

// nvme runs krpingctl nvme, which must succeed, and returns its output.
func nvme(t *testing.T, args ...string) string {
	t.Helper()
	return guest.MustKrpingctl(t, append([]string{"nvme"}, args...)...)
}

// decode runs a command and decodes its JSON output.
func decode[T any](t *testing.T, argv ...string) (v T) {
	t.Helper()
	ran := guest.Exec(t, argv...)
	if err := json.Unmarshal([]byte(ran.Stdout), &v); err != nil {
		t.Fatalf("%v: exit code %d: %v\n%s%s", argv, ran.Code, err, ran.Stdout, ran.Stderr)
	}
	return v
}

// nvmeJSON runs krpingctl nvme with --json and decodes its output.
func nvmeJSON[T any](t *testing.T, args ...string) T {
	t.Helper()
	return decode[T](t, append(append([]string{guest.Binary(t, "krpingctl"), "nvme"}, args...), "--json")...)
}

// targets returns what this host serves.
func targets(t *testing.T) []nvmet.Target {
	t.Helper()
	return nvmeJSON[struct{ Targets []nvmet.Target }](t, "target", "list").Targets
}

// controllers returns this host's controllers.
func controllers(t *testing.T) []nvmehost.Controller {
	t.Helper()
	return nvmeJSON[struct{ Controllers []nvmehost.Controller }](t, "list").Controllers
}

// serve serves a disk or file, and removes it at the end of the test if the test has not.
func serve(t *testing.T, args ...string) nvmet.Target {
	t.Helper()
	target := nvmeJSON[nvmet.Target](t, append([]string{"target", "add", "--addr", guest.Addr(t)}, args...)...)
	t.Cleanup(func() {
		for _, there := range targets(t) {
			if there.NQN == target.NQN {
				nvme(t, "target", "remove", target.NQN)
			}
		}
	})
	return target
}

// connect connects to the only disk until the end of the test, and returns its path.
func connect(t *testing.T, args ...string) (nvmehost.Controller, string) {
	t.Helper()
	c := nvmeJSON[nvmehost.Controller](t, append([]string{"connect", "--traddr", guest.Addr(t), keepAlive}, args...)...)
	t.Cleanup(func() {
		if _, err := os.Stat("/sys/class/nvme/" + c.Name); err == nil {
			nvme(t, "disconnect", "--device", c.Name)
		}
	})
	if len(c.Namespaces) != 1 {
		t.Fatalf("%+v: want one disk", c)
	}
	return c, c.Namespaces[0].Device()
}

// newDisk makes a disk of 16 MiB that the target does not serve.
func newDisk(t *testing.T) string {
	t.Helper()
	return guest.NullDisk(t, "nvmetest", nil)
}

// clean checks that nothing is left in configfs, sysfs and /dev.
func clean(t *testing.T) {
	t.Helper()
	for _, pattern := range []string{
		"/sys/kernel/config/nvmet/*/*", "/sys/kernel/config/nullb/nvmet_null*", "/sys/class/nvme/*", "/sys/class/nvme-subsystem/*", "/dev/nvme[0-9]*",
		"/dev/nvmet_null*",
	} {
		var left []string
		ends := time.Now().Add(guest.Slow(late.Limit(20 * time.Second)))
		for left, _ = filepath.Glob(pattern); len(left) > 0 && time.Now().Before(ends); left, _ = filepath.Glob(pattern) {
			time.Sleep(20 * time.Millisecond) // a worker may drop the last reference
		}
		if len(left) > 0 {
			late.Errorf(t, "left behind: %q", left)
		}
	}
}

// quietly fails if the kernel logs an error before the end of the test.
func quietly(t *testing.T) {
	t.Helper()
	log, err := proc.FS{}.OpenKmsg(true)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		defer log.Close()
		const worst = 3 // KERN_ERR
		for {
			r, err := log.NextRecord(context.Background())
			if errors.Is(err, io.EOF) {
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			if r.Level <= worst {
				t.Errorf("the kernel logged: %s", r.Text)
			}
		}
	})
}

// failure is an error message of krpingctl and its fix.
type failure struct{ text, fix string }

var hinted = regexp.MustCompile(` ERR (.*?)(?: hint=("(?:[^"\\]|\\.)*"|\S+))?\n`)

// fails runs krpingctl nvme. It must fail with the exit code, a message that contains all words, and a fix, and must leave
// nothing behind.
func fails(t *testing.T, code int, words []string, args ...string) failure {
	t.Helper()
	before := state(t)
	ran := guest.Krpingctl(t, append([]string{"nvme"}, args...)...)
	match := hinted.FindStringSubmatch(ran.Stderr)
	if match == nil || match[2] == "" {
		t.Fatalf("%v: exit code %d, no error with a hint\n%s%s", args, ran.Code, ran.Stdout, ran.Stderr)
	}
	f := failure{match[1], match[2]}
	if fix, err := strconv.Unquote(f.fix); err == nil {
		f.fix = fix
	}
	t.Logf("krpingctl nvme %s\n%s\nfix: %s", strings.Join(args, " "), f.text, f.fix)
	if ran.Code != code || ran.Stdout != "" {
		t.Errorf("%v: exit code %d, want %d\n%s", args, ran.Code, code, ran.Stdout)
	}
	for _, word := range words {
		if !strings.Contains(f.text+"\n"+f.fix, word) {
			t.Errorf("%v: no %q in\n%s\nfix: %s", args, word, f.text, f.fix)
		}
	}
	if after := state(t); !slices.Equal(after, before) {
		t.Errorf("%v: left behind: before\n%q\nafter\n%q", args, before, after)
	}
	return f
}

// state returns what a failed command must not change, except for what modules add when they are loaded.
func state(t *testing.T) []string {
	t.Helper()
	var all []string
	for _, pattern := range []string{
		"/sys/kernel/config/nvmet/*/*", "/sys/kernel/config/nvmet/*/*/*/*", "/sys/kernel/config/nvmet/*/*/*/*/*", "/sys/kernel/config/nullb/*[0-9t]",
		"/sys/class/nvme/*", "/dev/nvme[0-9]*", "/dev/null*",
	} {
		found, err := filepath.Glob(pattern)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	return all
}

// applyFix runs the fix, or the first of several, as a user does.
func (f failure) applyFix(t *testing.T) {
	t.Helper()
	fix, _, _ := strings.Cut(f.fix, "; or")
	fix = strings.TrimPrefix(fix, "on the target: ")
	t.Setenv("PATH", filepath.Dir(guest.Binary(t, "krpingctl"))+":"+os.Getenv("PATH"))
	guest.Run(t, "sh", "-c", fix)
}
