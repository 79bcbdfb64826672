// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// Newest is the newest kernel that Debian has. Like others that this host's release does not have,
// scripts/unpack-packages unpacks it below build/.
const Newest = "newest"

// Kernels are the names of the kernels that the lab boots: series, and Newest.
var Kernels = []string{"6.1", "6.12", Newest}

// Kernels that scripts/debug-kernel builds from test/lab/config/NAME.config. They check themselves and
// modules for bugs, and are slow.
const (
	Debug = "debug" // memory errors, locking, lifetimes, leaks
	KCSAN = "kcsan" // data races
)

// builtSlow is how many times longer things may take on such a kernel.
const builtSlow = 5

// Kernel is a kernel that is installed or below build/.
type Kernel struct {
	Name    string // one of Kernels, Debug or KCSAN
	Release string // as uname -r
	Image   string // path of its vmlinuz
	Root    string // its modules are in lib/modules/RELEASE below this directory
	Slow    int    // how many times longer things may take than on a stock kernel
	Built   bool   // by scripts/debug-kernel
}

// FindKernel returns one of Kernels, the newest of its series, or the built Debug or KCSAN kernel. A kernel
// that is not installed in /boot is looked for below build/. The series of the newest kernel, such as 7.3, is
// a name of it, too.
func FindKernel(name string) (Kernel, error) {
	return findKernel("/boot", Build(), name)
}

func findKernel(boot, build, name string) (Kernel, error) {
	switch {
	case name == Debug || name == KCSAN:
		kernel, err := findLinked(build, name, "scripts/debug-kernel")
		kernel.Slow, kernel.Built = builtSlow, true
		return kernel, err
	case !slices.Contains(Kernels, name):
		if newest, err := findLinked(build, Newest, ""); err == nil && strings.HasPrefix(newest.Release, name+".") {
			return newest, nil
		}
		return Kernel{}, fmt.Errorf("kernel %q: there are %s, %s and %s", name, strings.Join(Kernels, ", "), Debug, KCSAN)
	}
	images, err := filepath.Glob(filepath.Join(boot, "vmlinuz-"+name+".*"))
	if err != nil {
		return Kernel{}, err
	}
	if len(images) == 0 {
		return findLinked(build, name, "scripts/install-deps")
	}
	newest := NewestImage(images)
	if _, err := os.Stat(newest); err != nil {
		return Kernel{}, fmt.Errorf("kernel %s: %w", name, err)
	}
	return Kernel{Name: name, Release: release(newest), Image: newest, Root: "/", Slow: 1}, nil
}

// findLinked returns the kernel that a script has put where build/kernel-NAME links to.
func findLinked(build, name, script string) (Kernel, error) {
	link := filepath.Join(build, "kernel-"+name)
	if why, err := os.ReadFile(link + ".failed"); err == nil {
		return Kernel{}, fmt.Errorf("there is no kernel %s: %s", name, bytes.TrimSpace(why))
	}
	root, err := filepath.EvalSymlinks(link)
	if err != nil {
		return Kernel{}, fmt.Errorf("there is no kernel %s (%s %s): %w", name, script, name, err)
	}
	images, err := filepath.Glob(filepath.Join(root, "vmlinuz-*"))
	if err != nil {
		return Kernel{}, err
	}
	if len(images) != 1 {
		return Kernel{}, fmt.Errorf("there is no kernel %s (%s %s): %d images in %s", name, script, name, len(images), root)
	}
	return Kernel{Name: name, Release: release(images[0]), Image: images[0], Root: root, Slow: 1}, nil
}

// NewestImage returns the newest of kernel images, by the version in their names, as a boot loader chooses it.
func NewestImage(images []string) string {
	return slices.MaxFunc(images, func(a, b string) int { return semver.Compare(version(a), version(b)) })
}

func release(image string) string { return strings.TrimPrefix(filepath.Base(image), "vmlinuz-") }

// version makes 6.1.0-56-amd64 and 6.12.117+deb12-amd64 comparable. A number after a dash is the ABI
// number of Debian's 6.1; it counts as the patch level.
func version(image string) string {
	r := strings.TrimSuffix(release(image), "-amd64")
	r, _, _ = strings.Cut(r, "+")
	base, abi, found := strings.Cut(r, "-")
	if !found {
		return "v" + base
	}
	major := base[:strings.LastIndex(base, ".")]
	return "v" + major + "." + abi
}
