// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package reboot follows the page "Operating" on hosts as users have them, Debian with systemd and the packages
// as built, and restarts them: everything has to come back by itself.
package reboot

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"krping/test/internal/late"
	"krping/test/lab"
	"krping/test/lab/distro"
)

// Limits of the issue of a user's host. A VM's own time counts: an emulated one boots for a minute.
const (
	backLimit  = 10 * time.Second // from the network of both hosts to the file system, or to its I/O
	dirtyLimit = 60 * time.Second // for a reboot of a client that has data to write
	awayLimit  = 30 * time.Second // for the end of a client whose target is away
	stepLimit  = 5 * time.Minute  // for any one thing, on a busy machine
	dkmsLimit  = 15 * time.Minute // for packages whose modules are compiled, in a file system of a host that is off
)

// The page's example.
const (
	volume = "vol0"
	mount  = "/srv/vol0"
	marker = mount + "/marker"
)

// rig is a target and a client.
type rig struct {
	t              *testing.T
	lab            *distro.Lab
	target, client *distro.Host
	page           page
	rounds         int // reboots so far, which the marker counts
	busy           int // how many times longer it may take until everything is back, beside other tests
}

// newRig makes two hosts with the disks of build/distro-IMAGE, and boots them.
func newRig(t *testing.T, image string) *rig {
	t.Helper()
	l, err := distro.New(t.Context(), image, filepath.Join(lab.Build(), "logs", "reboot", t.Name()), 2)
	if err != nil {
		t.Fatal(err)
	}
	r := &rig{t: t, lab: l, target: l.Hosts[0], client: l.Hosts[1], page: readPage(t)}
	t.Cleanup(func() {
		if t.Failed() {
			r.report()
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	r.boot(l.Hosts...)
	return r
}

// report logs what is known of a failure.
func (r *rig) report() {
	for _, h := range r.lab.Hosts {
		if h.VM == nil {
			continue
		}
		ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
		out, err := h.Output(ctx, "uname -r; systemctl --failed --no-legend; systemctl list-jobs --no-legend; krpingctl stat; rdma link; dkms status; "+
			"journalctl -b -o short-monotonic -n 60 -u 'krping*' -u '*krping*' -u srv-vol0.mount; journalctl -b -p 4 -n 40 -o short-monotonic")
		cancel()
		r.t.Logf("%s: %v\n%s", h.Name, err, out)
	}
}

// sh runs a script on a host, within a limit.
func (r *rig) sh(h *distro.Host, script string) string {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), stepLimit)
	defer cancel()
	out, err := h.Output(ctx, prologue+script)
	if err != nil {
		r.t.Fatalf("%s: %s: %v\n%s", h.Name, script, err, out)
	}
	return strings.TrimSpace(out)
}

// prologue begins the scripts: those of a host's administrator, who installs packages without questions.
const prologue = "set -e\nexport DEBIAN_FRONTEND=noninteractive PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root\n"

// each does something with several hosts at the same time. If that fails the test, it ends.
func (r *rig) each(hosts []*distro.Host, do func(*distro.Host) error) error {
	errs, failed := make([]error, len(hosts)), r.t.Failed()
	var all sync.WaitGroup
	for i, h := range hosts {
		all.Go(func() { errs[i] = do(h) })
	}
	all.Wait()
	if r.t.Failed() && !failed { // Fatal in another goroutine ends only that one
		r.t.FailNow()
	}
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// boot switches hosts on.
func (r *rig) boot(hosts ...*distro.Host) {
	r.t.Helper()
	if err := r.each(hosts, func(h *distro.Host) error { return h.Boot(r.t.Context()) }); err != nil {
		r.t.Fatal(err)
	}
}

// shutdown ends hosts by systemctl, and returns how long the longest took. What a kernel complained about fails the test.
func (r *rig) shutdown(verb string, hosts ...*distro.Host) time.Duration {
	r.t.Helper()
	ctx, cancel := context.WithTimeout(r.t.Context(), stepLimit)
	defer cancel()
	var longest time.Duration
	var mu sync.Mutex
	err := r.each(hosts, func(h *distro.Host) error {
		vm := h.VM
		took, err := h.Shutdown(ctx, verb)
		mu.Lock()
		defer mu.Unlock()
		longest = max(longest, took)
		if complaint := vm.Complaints(); err == nil && complaint != "" {
			err = fmt.Errorf("%s: %s", h.Name, complaint)
		}
		return err
	})
	if err != nil {
		r.t.Fatal(err)
	}
	return longest
}

// when returns at what time, by this host's clock, a unit of a host became active in this boot.
func (r *rig) when(h *distro.Host, unit string) time.Time {
	r.t.Helper()
	out := r.sh(h, "cut -d ' ' -f 1 /proc/uptime; systemctl show --value -p ActiveEnterTimestampMonotonic "+unit)
	now := time.Now()
	up, stamp, _ := strings.Cut(out, "\n")
	seconds, err := strconv.ParseFloat(up, 64)
	if err != nil {
		r.t.Fatalf("%s: %s: %q", h.Name, unit, out)
	}
	micros, err := strconv.ParseInt(strings.TrimSpace(stamp), 10, 64)
	if err != nil || micros == 0 {
		r.t.Fatalf("%s: %s has not become active: %q", h.Name, unit, out)
	}
	return now.Add(time.Duration(micros)*time.Microsecond - time.Duration(seconds*float64(time.Second)))
}

// online returns when the last of the hosts had its network.
func (r *rig) online() time.Time {
	r.t.Helper()
	last := r.when(r.target, "network-online.target")
	if client := r.when(r.client, "network-online.target"); client.After(last) {
		last = client
	}
	return last
}

// back waits until the file system is mounted and its contents are as they were. It returns how long after the
// network of both hosts the mount was there.
func (r *rig) back() time.Duration {
	r.t.Helper()
	r.sh(r.client, "for i in $(seq 600); do mountpoint -q "+mount+" && break; sleep 0.5; done")
	source := r.sh(r.client, "findmnt -rno SOURCE,UUID "+mount)
	if uuid := r.fstabUUID(); !strings.HasPrefix(source, "/dev/krping") || !strings.HasSuffix(source, " "+uuid) {
		r.t.Fatalf("%s is %q, want a disk of krping with UUID %s", mount, source, uuid)
	}
	if got := r.sh(r.client, "cat "+marker); got != strconv.Itoa(r.rounds) {
		r.t.Fatalf("%s holds %q, want %d", marker, got, r.rounds)
	}
	took := r.when(r.client, "srv-vol0.mount").Sub(r.online())
	if took > r.backLimit() {
		r.t.Log(r.sh(r.client, "journalctl -b -o short-monotonic | grep -E 'network-online|krping|vol0|fsck'; systemd-analyze critical-chain srv-vol0.mount"))
	}
	return took
}

func (r *rig) fstabUUID() string {
	return r.sh(r.client, `sed -n 's,^UUID=\([^ ]*\) `+mount+` .*,\1,p' /etc/fstab`)
}

// mark writes what the next back expects.
func (r *rig) mark() {
	r.t.Helper()
	r.rounds++
	r.sh(r.client, fmt.Sprintf("echo %d > %s; sync %s", r.rounds, marker, marker))
}

func (r *rig) backLimit() time.Duration { return backLimit * time.Duration(r.busy) }

// inTime fails the test, as late, if what took longer than it may.
func (r *rig) inTime(what string, took, limit time.Duration) {
	r.t.Helper()
	r.t.Logf("%s: %v", what, took.Round(time.Second/10))
	if took > limit {
		late.Errorf(r.t, "%s: %v, want at most %v", what, took.Round(time.Second/10), limit)
	}
}

// configure does what the page says, on hosts with the packages.
func (r *rig) configure() {
	r.t.Helper()
	link := r.page.block("The RDMA link", 0)
	for _, h := range r.lab.Hosts {
		r.sh(h, link)
	}
	r.sh(r.target, strings.Replace(r.page.block("A volume on the target", 0), "100GiB", "1GiB", 1))
	r.sh(r.client, "cat > /etc/krping/krping.yaml <<'END'\n"+r.page.block("Its disk on the client", 0)+"END")
	r.sh(r.client, r.page.block("Its disk on the client", 1))
	r.sh(r.client, "for i in $(seq 60); do systemctl status krping-agent | grep -q 'attached 1 of 1' && exit; sleep 1; done; systemctl status krping-agent; exit 1")
	r.sh(r.client, r.page.block("Its disk on the client", 2))
	r.mark()
}

// packages returns the paths of the packages as built, without those of other versions.
func packages(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(lab.Build(), "packages", "krping-*.deb"))
	if err != nil || len(paths) != 4 {
		t.Fatalf("packages in build/packages: %q, want those of one version (make packages)", paths)
	}
	return paths
}

// image makes the disks of a Debian, with packages if they are to be installed already.
func image(t *testing.T, release string, packages ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join(lab.Repo(), "scripts", "distro-image"), append([]string{release}, packages...)...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		t.Fatalf("scripts/distro-image: %v", err)
	}
}

// page is the page "Operating".
type page map[string][]string // code blocks by section

func readPage(t *testing.T) page {
	t.Helper()
	f, err := os.Open(filepath.Join(lab.Repo(), "scripts", "system", "OPERATING.md"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p := page{}
	section, inBlock := "", false
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		code, isCode := strings.CutPrefix(line, "    ")
		switch {
		case strings.HasPrefix(line, "## "):
			section, inBlock = line[3:], false
		case isCode && !inBlock:
			p[section] = append(p[section], code+"\n")
			inBlock = true
		case isCode:
			p[section][len(p[section])-1] += code + "\n"
		default:
			inBlock = false
		}
	}
	return p
}

func (p page) block(section string, n int) string {
	if len(p[section]) <= n {
		panic(fmt.Sprintf("the page has no code block %d in the section %q: %q", n, section, p))
	}
	return p[section][n]
}
