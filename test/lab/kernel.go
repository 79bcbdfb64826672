// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// Kernels maps each supported kernel series to its Debian package.
var Kernels = map[string]string{
	"6.1":  "linux-image-amd64",
	"6.12": "linux-image-6.12-amd64",
}

// Kernels that scripts/debug-kernel builds from test/lab/config/NAME.config. They check themselves and
// modules for bugs, and are slow.
const (
	Debug = "debug" // memory errors, locking, lifetimes, leaks
	KCSAN = "kcsan" // data races
)

// builtSlow is how many times longer things may take on such a kernel.
const builtSlow = 5

// Kernel is an installed kernel.
type Kernel struct {
	Release string // as uname -r
	Image   string // path of its vmlinuz
	Root    string // its modules are in lib/modules/RELEASE below this directory
	Slow    int    // how many times longer things may take than on a stock kernel
	Built   bool   // by scripts/debug-kernel
}

// FindKernel returns the newest installed kernel of a series such as "6.1", or the built Debug or KCSAN kernel.
func FindKernel(series string) (Kernel, error) {
	if series == Debug || series == KCSAN {
		return findBuilt(filepath.Join(Build(), "kernel-"+series), series)
	}
	return findKernel("/boot", series)
}

func findBuilt(link, name string) (Kernel, error) {
	root, err := filepath.EvalSymlinks(link)
	if err != nil {
		return Kernel{}, fmt.Errorf("kernel %s is not built (scripts/debug-kernel %s): %w", name, name, err)
	}
	images, err := filepath.Glob(filepath.Join(root, "vmlinuz-*"))
	if err != nil {
		return Kernel{}, err
	}
	if len(images) != 1 {
		return Kernel{}, fmt.Errorf("kernel %s is not built (scripts/debug-kernel %s): %d images in %s", name, name, len(images), root)
	}
	return Kernel{Release: release(images[0]), Image: images[0], Root: root, Slow: builtSlow, Built: true}, nil
}

func findKernel(boot, series string) (Kernel, error) {
	pkg, ok := Kernels[series]
	if !ok {
		return Kernel{}, fmt.Errorf("kernel %q: 6.1 and 6.12 are supported, %s and %s", series, Debug, KCSAN)
	}
	images, err := filepath.Glob(filepath.Join(boot, "vmlinuz-"+series+".*"))
	if err != nil {
		return Kernel{}, err
	}
	if len(images) == 0 {
		return Kernel{}, fmt.Errorf("no kernel %s in %s: apt-get install %s", series, boot, pkg)
	}
	newest := slices.MaxFunc(images, func(a, b string) int { return semver.Compare(version(a), version(b)) })
	if _, err := os.Stat(newest); err != nil {
		return Kernel{}, fmt.Errorf("kernel %s: %w", series, err)
	}
	return Kernel{Release: release(newest), Image: newest, Root: "/", Slow: 1}, nil
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
