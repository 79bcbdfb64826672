// SPDX-License-Identifier: Apache-2.0

//go:build lab

package reboot

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"krping/test/internal/needs"
	"krping/test/lab"
	"krping/test/lab/distro"
)

// rebootTarget restarts the target under the client, whose I/O waits for it.
func (r *rig) rebootTarget() {
	r.t.Helper()
	r.mark()
	r.shutdown("reboot", r.target)
	io, err := r.client.Start(lab.Cmd{Argv: []string{"sh", "-c", fmt.Sprintf("echo %d > %s && sync %[2]s", r.rounds, marker)}})
	if err != nil {
		r.t.Fatal(err)
	}
	r.boot(r.target)
	select {
	case <-io.Done():
	case <-time.After(stepLimit):
		r.t.Fatalf("the client's I/O does not go on")
	}
	resumed := time.Now()
	if err := io.Wait(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	r.inTime("target rebooted: I/O after its network", resumed.Sub(r.when(r.target, "network-online.target")), r.backLimit())
}

// rebootClient restarts the client.
func (r *rig) rebootClient() {
	r.t.Helper()
	r.mark()
	r.inTime("client shut down", r.shutdown("reboot", r.client), dirtyLimit)
	r.boot(r.client)
	r.inTime("client rebooted: mount after its network", r.back(), r.backLimit())
}

// rebootBoth restarts both at once, and the second one only when the first one is there.
func (r *rig) rebootBoth(first, second *distro.Host) {
	r.t.Helper()
	r.mark()
	r.shutdown("reboot", r.client) // a target cannot know that its clients still write
	r.shutdown("reboot", r.target)
	if second == nil {
		r.boot(r.lab.Hosts...)
		r.inTime("both rebooted: mount after the network of both", r.back(), r.backLimit())
		return
	}
	r.boot(first)
	r.boot(second)
	r.inTime(fmt.Sprintf("both rebooted, %s first: mount after the network of both", first.Name), r.back(), r.backLimit())
}

// dirty restarts the client with data that it has not written yet.
func (r *rig) dirty() {
	r.t.Helper()
	r.mark()
	sum := r.sh(r.client, fmt.Sprintf("dd if=/dev/urandom of=%s/data bs=1M count=64 status=none; sha256sum < %[1]s/data", mount))
	r.t.Logf("to be written: %s", r.sh(r.client, "grep -E '^(Dirty|Writeback):' /proc/meminfo | tr -s ' \n' ' '"))
	r.inTime("client with dirty data shut down", r.shutdown("reboot", r.client), dirtyLimit)
	r.boot(r.client)
	r.inTime("client with dirty data rebooted: mount after its network", r.back(), r.backLimit())
	if after := r.sh(r.client, fmt.Sprintf("sha256sum < %s/data", mount)); after != sum {
		r.t.Errorf("data written before the reboot is lost: %s, was %s", after, sum)
	}
	if out := r.sh(r.client, `journalctl -b -k -o cat | grep -E 'EXT4-fs \(krping0\).*(recovery|error)' || true`); out != "" {
		r.t.Errorf("the file system was not clean: %s", out)
	}
}

// loss begins what is said of data that was not written.
const loss = "data was not written to /dev/krping0 during "

// away shuts the client down while its target is gone.
func (r *rig) away() {
	r.t.Helper()
	r.sh(r.client, fmt.Sprintf("dd if=/dev/urandom of=%s/lost bs=1M count=16 status=none", mount))
	r.target.Kill()
	before := len(r.client.Console())
	vm := r.client.VM
	r.inTime("client without its target shut down", r.shutdown("poweroff", r.client), awayLimit)
	if said := vm.Console()[before:]; !strings.Contains(said, loss+"this shutdown") {
		r.t.Errorf("the console does not say what was not written:\n%s", said)
	}
}

// awayAndBack is away, and switches both on again.
func (r *rig) awayAndBack() {
	r.t.Helper()
	r.mark()
	r.away()
	r.boot(r.lab.Hosts...)
	r.inTime("both switched on again: mount after the network of both", r.back(), r.backLimit())
	if log := r.sh(r.client, "journalctl -b -o cat -u krping-agent"); !strings.Contains(log, loss+"the shutdown at") {
		r.t.Errorf("the agent's log after the boot does not say what was not written:\n%s", log)
	}
}

// survives tests what doctor says of the next boot: nothing is lost, but for a disk whose agent is not enabled.
func (r *rig) survives() {
	r.t.Helper()
	boot := func(h *distro.Host, want string) {
		r.t.Helper()
		var report struct {
			Findings []struct{ Check, Found string }
		}
		if err := json.Unmarshal([]byte(r.sh(h, "krpingctl doctor --json 2>/dev/null || true")), &report); err != nil {
			r.t.Fatal(err)
		}
		var found []string
		for _, f := range report.Findings {
			if f.Check == "boot" {
				found = append(found, f.Found)
			}
		}
		if len(found) != 1 || !strings.Contains(found[0], want) {
			r.t.Errorf("%s: doctor says of the next boot %q, want %q", h.Name, found, want)
		}
	}
	for _, h := range r.lab.Hosts {
		boot(h, "is there after a boot, too")
	}
	r.sh(r.client, "systemctl disable krping-agent")
	boot(r.client, "is not there after a boot")
	r.sh(r.client, "systemctl enable krping-agent")
}

// A short form, on Debian 12 with the packages installed as its image is made, without an emulated compiler. It runs
// beside other suites, on a busy machine.
func TestReboots(t *testing.T) {
	image(t, "12", packages(t)...)
	r := newRig(t, "12-installed")
	r.busy = 10
	r.configure()
	r.survives()
	r.dirty()
	r.away()
}

// The whole page, from a clean host: packages with DKMS, every order of reboots, upgrades of the kernel and of the
// packages, removal.
func TestOperating(t *testing.T) {
	needs.Test(t, needs.Long)
	for _, c := range []struct{ release, upgrade, want string }{
		{"12", "linux-image-6.12-amd64 linux-headers-6.12-amd64", "6.12."},
		{"13", "linux-image-amd64/trixie-backports linux-headers-amd64/trixie-backports", "7."},
	} {
		t.Run("Debian"+c.release, func(t *testing.T) {
			image(t, c.release)
			r := newRig(t, c.release)
			r.busy = 1
			before := r.files()
			r.install()
			r.configure()
			r.survives()
			rounds := 10
			if testing.Short() {
				rounds = 1
			}
			for range rounds {
				r.rebootTarget()
				r.rebootClient()
				r.rebootBoth(nil, nil)
				r.rebootBoth(r.target, r.client)
				r.rebootBoth(r.client, r.target)
			}
			r.dirty()
			r.awayAndBack()
			r.upgradePackages()
			r.upgradeKernel(c.upgrade, c.want, before)
			r.dirty()
			r.remove(before)
		})
	}
}
