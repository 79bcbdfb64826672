// SPDX-License-Identifier: Apache-2.0

//go:build lab

package reboot

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"krping/test/lab"
	"krping/test/lab/distro"
)

// folder is where a user has the packages.
const folder = "/root/krping"

// install installs the packages as the page says. DKMS has built the module before, on a CPU that is not emulated.
func (r *rig) install() {
	r.t.Helper()
	packages(r.t)
	lines := strings.Split(strings.TrimSpace(r.page.block("Install", 0)), "\n")
	if len(lines) != 2 {
		r.t.Fatalf("the page has %d commands to install, want one for the target and one for the client: %q", len(lines), lines)
	}
	r.offline(r.client, "apt-get -qy install /lab/packages/krping-common_*.deb /lab/packages/krping-dkms_*.deb; dkms status")
	err := r.each(r.lab.Hosts, func(h *distro.Host) error {
		line := lines[0]
		if h == r.client {
			line = lines[1]
		}
		began := time.Now()
		r.sh(h, "mkdir -p "+folder+"; cp /lab/packages/*.deb "+folder+"; cd "+folder+"; "+yes(line))
		r.t.Logf("%s: packages installed in %v", h.Name, time.Since(began).Round(time.Second))
		return nil
	})
	if err != nil {
		r.t.Fatal(err)
	}
}

// offline switches a host off, runs a script in its file system on a CPU that is not emulated, and boots it. DKMS
// needs more than 25 minutes for a module on an emulated one.
func (r *rig) offline(h *distro.Host, script string) {
	r.t.Helper()
	r.shutdown("poweroff", h)
	began := time.Now()
	ctx, cancel := context.WithTimeout(r.t.Context(), dkmsLimit)
	defer cancel()
	out, err := h.Offline(ctx, prologue+script)
	if err != nil {
		r.t.Fatal(err)
	}
	last := strings.Split(out, "\n")
	r.t.Logf("%s: while it was off, in %v: %s: %s", h.Name, time.Since(began).Round(time.Second), script, last[len(last)-1])
	r.boot(h)
}

// yes is what apt-get asks for.
func yes(line string) string {
	return strings.NewReplacer("apt-get install", "apt-get -qy install", "apt-get purge", "apt-get -qy purge").Replace(line)
}

// upgradePackages installs a newer version of all programs under the mounted volume, while it is written.
func (r *rig) upgradePackages() {
	r.t.Helper()
	newer := `for p in ` + folder + `/krping-{common,target,client}_*.deb; do
	n=$(dpkg-deb -f $p Package); dpkg -s $n >/dev/null 2>&1 || continue
	dpkg-deb -R $p /tmp/newer; sed -i 's/^Version: .*/&+newer/' /tmp/newer/DEBIAN/control
	mkdir -p /tmp/debs; dpkg-deb -Znone -b /tmp/newer /tmp/debs/$n.deb; rm -r /tmp/newer
done
apt-get -qy install /tmp/debs/*.deb`
	r.mark()
	load, err := r.client.Start(lab.Cmd{Argv: []string{"sh", "-c", fmt.Sprintf(
		"i=0; while [ ! -e /run/stop ]; do i=$((i+1)); dd if=/dev/zero of=%s/load bs=64k count=1 oflag=direct status=none || exit 1; done; [ $i -gt 5 ]", mount)}})
	if err != nil {
		r.t.Fatal(err)
	}
	for _, h := range r.lab.Hosts {
		pids := "systemctl show -p MainPID krping-agent krping-bridge@vol0"
		old := r.sh(h, pids)
		r.sh(h, "bash -e <<'END'\n"+newer+"\nEND")
		if r.sh(h, pids) == old {
			r.t.Errorf("%s: the upgrade did not restart the service: %s", h.Name, old)
		}
		r.sh(h, "systemctl is-active "+map[string]string{"target": "krping-bridge@vol0", "client": "krping-agent"}[h.Name])
	}
	r.sh(r.client, "touch /run/stop")
	if err := load.Wait(r.t.Context()); err != nil {
		r.t.Errorf("I/O during the upgrade: %v", err)
	}
	r.back()
	if out := r.sh(r.client, `krpingctl stat`); !strings.Contains(out, volume) {
		r.t.Errorf("no session after the upgrade:\n%s", out)
	}
}

// upgradeKernel installs a newer kernel on the client, by DKMS with the module, and boots it. It adds to before what
// the kernel's packages need.
func (r *rig) upgradeKernel(names, want string, before map[string][]string) {
	r.t.Helper()
	r.mark()
	was := r.files()["client"]
	r.offline(r.client, "apt-get -qy install "+names+"; dkms status")
	r.back()
	for _, path := range r.files()["client"] {
		if !slices.Contains(was, path) && !strings.Contains(path, "krping") {
			before["client"] = append(before["client"], path)
		}
	}
	if release := r.sh(r.client, "uname -r"); !strings.HasPrefix(release, want) {
		r.t.Errorf("the client runs %s, want %s", release, want)
	}
}

// files lists the files of both hosts that packages may leave behind, and the users.
func (r *rig) files() map[string][]string {
	found := map[string][]string{}
	for _, h := range r.lab.Hosts {
		out := r.sh(h, `find /etc /usr /var /srv /opt /root /boot /lib/modules/ -xdev \( -path /var/log -o -path /var/cache -o -path /var/tmp \
-o -path /var/lib/systemd -o -path /var/lib/apt -o -path `+folder+` \) -prune -o -print; cut -d : -f 1 /etc/passwd | sed 's/^/user /'; cut -d : -f 1 /etc/group | sed 's/^/group /'`)
		found[h.Name] = strings.Split(out, "\n")
	}
	return found
}

// remains are what stays after a purge: the administrator's files, and the user that owns them.
func remains(name string) bool {
	switch name {
	case "/srv/vol0", "user krping", "group krping": // the page's mkdir
		return true
	}
	return strings.HasPrefix(name, "/etc/krping") || strings.HasPrefix(name, "/var/lib/krping") ||
		strings.Contains(name, "linux-") || strings.Contains(name, "/lib/modules/6.12") || strings.Contains(name, "/lib/modules/7.")
}

// remove purges all packages: nothing of them is left, neither files nor modules nor units.
func (r *rig) remove(before map[string][]string) {
	r.t.Helper()
	r.sh(r.client, "systemctl disable --now krping-agent; umount "+mount+"; sed -i '\\,"+mount+",d' /etc/fstab; krpingctl stop "+volume)
	for _, h := range r.lab.Hosts {
		r.sh(h, "apt-get -qy purge 'krping-*'")
	}
	for name, list := range r.files() {
		known := maps.Collect(func(yield func(string, bool) bool) {
			for _, path := range before[name] {
				if !yield(path, true) {
					return
				}
			}
		})
		left := slices.DeleteFunc(list, func(path string) bool { return known[path] || remains(path) })
		if len(left) > 0 {
			r.t.Errorf("%s: left by the packages: %q", name, left)
		}
	}
	for _, h := range r.lab.Hosts {
		if out := r.sh(h, "systemctl list-unit-files --no-legend 'krping*' || true; systemctl --failed --no-legend; find /lib/modules -name 'rdma_krping*'; ls /var/lib/dkms 2>/dev/null || true"); strings.Contains(out, "krping") {
			r.t.Errorf("%s: left by the packages:\n%s", h.Name, out)
		}
	}
	r.shutdown("reboot", r.lab.Hosts...)
	r.boot(r.lab.Hosts...)
	for _, h := range r.lab.Hosts {
		if out := r.sh(h, "lsmod; systemctl --failed --no-legend"); strings.Contains(out, "krping") {
			r.t.Errorf("%s: still there after a reboot:\n%s", h.Name, out)
		}
	}
}
