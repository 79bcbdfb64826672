// SPDX-License-Identifier: Apache-2.0

// Package distro knows the commands and packages of the distribution that a host runs, for advice that can be
// copied.
package distro

import (
	"bufio"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
)

// Distro is a distribution. The zero value is an unknown one.
type Distro struct {
	ID      string // of /etc/os-release, such as rocky
	release string // of the kernel, as uname -r prints it
	family
}

// family is what distributions have in common.
type family struct {
	ids      []string // in ID or ID_LIKE
	install  string   // the command that installs packages
	headers  string   // package with what modules are built with
	modules  string   // packages with the kernel's RDMA modules
	nftables string   // file with the rules that nftables.service loads
	iptables string   // command that saves the rules of iptables
}

// In package names RELEASE is the kernel's release, FLAVOUR its last part, ARCH Debian's name of the processor,
// and LINUX the package of an Arch kernel. The first family whose ID fits counts.
var families = []family{
	{
		ids: []string{"ubuntu"}, install: "apt install", headers: "linux-headers-RELEASE", modules: "linux-modules-extra-RELEASE",
		nftables: "/etc/nftables.conf", iptables: "netfilter-persistent save",
	},
	{
		ids: []string{"debian"}, install: "apt install", headers: "linux-headers-RELEASE", modules: "linux-image-ARCH",
		nftables: "/etc/nftables.conf", iptables: "netfilter-persistent save",
	},
	{
		ids: []string{"rhel", "fedora", "centos"}, install: "dnf install", headers: "kernel-devel-RELEASE", modules: "kernel-modules-RELEASE kernel-modules-extra-RELEASE",
		nftables: "/etc/sysconfig/nftables.conf", iptables: "service iptables save",
	},
	{
		ids: []string{"suse", "sles", "opensuse"}, install: "zypper install", headers: "kernel-FLAVOUR-devel", modules: "kernel-FLAVOUR",
		nftables: "/etc/nftables.conf", iptables: "iptables-save > /etc/sysconfig/iptables",
	},
	{
		ids: []string{"arch"}, install: "pacman -S", headers: "LINUX-headers", modules: "LINUX",
		nftables: "/etc/nftables.conf", iptables: "iptables-save -f /etc/iptables/iptables.rules",
	},
}

// Read returns the distribution whose files are below root, "/" for this host's, and that runs a kernel.
func Read(root, release string) Distro {
	text, err := os.ReadFile(filepath.Join(root, "etc/os-release"))
	if err != nil {
		text, _ = os.ReadFile(filepath.Join(root, "usr/lib/os-release")) // unknown without it
	}
	return Parse(string(text), release)
}

// Parse is Read for the text of an os-release file.
func Parse(osRelease, release string) Distro {
	d := Distro{release: release}
	var like []string
	for s := bufio.NewScanner(strings.NewReader(osRelease)); s.Scan(); {
		key, value, _ := strings.Cut(strings.TrimSpace(s.Text()), "=")
		if plain, err := strconv.Unquote(value); err == nil {
			value = plain
		}
		value = strings.ToLower(strings.Trim(value, "'"))
		switch key {
		case "ID":
			d.ID = value
		case "ID_LIKE":
			like = strings.Fields(value)
		}
	}
	for _, id := range append([]string{d.ID}, like...) {
		i := slices.IndexFunc(families, func(f family) bool {
			return slices.ContainsFunc(f.ids, func(known string) bool { return id == known || strings.HasPrefix(id, known+"-") })
		})
		if i >= 0 {
			d.family = families[i]
			break
		}
	}
	return d
}

// Is reports whether the distribution is of the family that has an ID, such as ubuntu.
func (d Distro) Is(id string) bool { return slices.Contains(d.ids, id) }

// Install returns the command that installs packages, or what to do on an unknown distribution.
func (d Distro) Install(packages string) string {
	if d.install == "" {
		return "install the package of this distribution that is called " + packages + " on others"
	}
	return d.install + " " + packages
}

// InstallHeaders returns the command that installs what modules are built with for the running kernel.
func (d Distro) InstallHeaders() string {
	if d.headers == "" {
		return "install the headers of kernel " + d.release
	}
	return d.Install(d.name(d.headers))
}

// InstallModules returns the command that installs the kernel's RDMA modules.
func (d Distro) InstallModules() string {
	if d.modules == "" {
		return "install all modules of kernel " + d.release
	}
	return d.Install(d.name(d.modules))
}

// name fills in the name of a package.
func (d Distro) name(pattern string) string {
	arch, known := map[string]string{"386": "686-pae", "arm": "armmp", "ppc64le": "powerpc64le"}[runtime.GOARCH]
	if !known {
		arch = runtime.GOARCH
	}
	flavour := d.release[strings.LastIndex(d.release, "-")+1:]
	linux := "linux"
	for _, kind := range []string{"lts", "zen", "hardened", "rt"} {
		if flavour == kind {
			linux = "linux-" + kind
		}
	}
	return strings.NewReplacer("RELEASE", d.release, "FLAVOUR", flavour, "ARCH", arch, "LINUX", linux).Replace(pattern)
}

// NftablesFile is the file whose rules nftables.service loads at boot, "" if it is not known.
func (d Distro) NftablesFile() string { return d.nftables }

// SigningKey is the key with which DKMS signs modules, for mokutil.
func (d Distro) SigningKey() string {
	if d.Is("ubuntu") {
		return "/var/lib/shim-signed/mok/MOK.der"
	}
	return "/var/lib/dkms/mok.pub"
}

// SaveIptables is the command that saves the rules of iptables for the next boot, "" if it is not known.
func (d Distro) SaveIptables() string { return d.iptables }
