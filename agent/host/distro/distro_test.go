// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
)

// The files of the distributions, as far as they matter.
var files = map[string]string{
	"debian":   "PRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\n",
	"ubuntu":   "ID=ubuntu\nID_LIKE=debian\n",
	"mint":     "ID=linuxmint\nID_LIKE=\"ubuntu debian\"\n",
	"rhel":     "ID=\"rhel\"\nID_LIKE=\"fedora\"\n",
	"rocky":    "ID=\"rocky\"\nID_LIKE=\"rhel centos fedora\"\n",
	"oracle":   "ID=\"ol\"\nID_LIKE=\"fedora\"\n",
	"fedora":   "ID=fedora\n",
	"sles":     "ID=\"sles\"\nID_LIKE=\"suse\"\n",
	"leap":     "ID=\"opensuse-leap\"\nID_LIKE=\"suse opensuse\"\n",
	"tumble":   "ID='opensuse-tumbleweed'\n",
	"arch":     "ID=arch\n",
	"manjaro":  "ID=manjaro\nID_LIKE=arch\n",
	"gentoo":   "ID=gentoo\n",
	"none":     "",
	"nonsense": "ID\n=\n\"ID=\"debian\n",
}

func TestPackages(t *testing.T) {
	for _, tc := range []struct{ distro, release, headers, modules string }{
		{"debian", "6.1.0-9-amd64", "apt install linux-headers-6.1.0-9-amd64", "apt install linux-image-" + runtime.GOARCH},
		{"ubuntu", "6.8.0-31-generic", "apt install linux-headers-6.8.0-31-generic", "apt install linux-modules-extra-6.8.0-31-generic"},
		{"mint", "6.8.0-31-generic", "apt install linux-headers-6.8.0-31-generic", "apt install linux-modules-extra-6.8.0-31-generic"},
		{"rhel", "5.14.0-427.el9.x86_64", "dnf install kernel-devel-5.14.0-427.el9.x86_64", "dnf install kernel-modules-5.14.0-427.el9.x86_64 kernel-modules-extra-5.14.0-427.el9.x86_64"},
		{"rocky", "5.14.0-427.el9.x86_64", "dnf install kernel-devel-5.14.0-427.el9.x86_64", "kernel-modules-extra-5.14.0-427.el9.x86_64"},
		{"oracle", "6.12.0-1.el10.x86_64", "dnf install kernel-devel-6.12.0-1.el10.x86_64", "dnf install"},
		{"fedora", "6.14.0-63.fc42.x86_64", "dnf install kernel-devel-6.14.0-63.fc42.x86_64", "dnf install"},
		{"sles", "6.4.0-150600.21-default", "zypper install kernel-default-devel", "zypper install kernel-default"},
		{"leap", "6.4.0-150600.21-default", "zypper install kernel-default-devel", "zypper install kernel-default"},
		{"tumble", "6.14.1-1-default", "zypper install kernel-default-devel", "zypper install kernel-default"},
		{"arch", "6.14.2-arch1-1", "pacman -S linux-headers", "pacman -S linux"},
		{"arch", "6.12.24-1-lts", "pacman -S linux-lts-headers", "pacman -S linux-lts"},
		{"manjaro", "6.12.24-1-MANJARO", "pacman -S linux-headers", "pacman -S linux"},
		{"gentoo", "6.12.1-gentoo", "install the headers of kernel 6.12.1-gentoo", "install all modules of kernel 6.12.1-gentoo"},
		{"none", "6.12.1", "install the headers of kernel 6.12.1", "install all modules"},
		{"nonsense", "6.12.1", "install the headers", "install all modules"},
	} {
		d := Parse(files[tc.distro], tc.release)
		if got := d.InstallHeaders(); !strings.HasPrefix(got, tc.headers) {
			t.Errorf("%s, headers: %q, want %q", tc.distro, got, tc.headers)
		}
		if got := d.InstallModules(); !strings.Contains(got, tc.modules) {
			t.Errorf("%s, modules: %q, want %q", tc.distro, got, tc.modules)
		}
	}
	if d := Parse(files["gentoo"], ""); d.ID != "gentoo" || d.Is("debian") || !strings.Contains(d.Install("ethtool"), "ethtool") {
		t.Errorf("%+v", d)
	}
	if d := Parse(files["mint"], ""); !d.Is("ubuntu") || d.Is("debian") {
		t.Errorf("%+v", d)
	}
}

func TestRead(t *testing.T) {
	root := t.TempDir()
	if d := Read(root, ""); d.ID != "" {
		t.Errorf("without a file: %+v", d)
	}
	for _, name := range []string{"usr/lib/os-release", "etc/os-release"} { // the second one comes first
		file := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte("ID="+filepath.Base(filepath.Dir(file))+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
		if d := Read(root, ""); d.ID != filepath.Base(filepath.Dir(file)) {
			t.Errorf("%s: %+v", name, d)
		}
	}
}
