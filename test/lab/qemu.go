// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
)

// QEMU is the emulator that runs the VMs.
type QEMU struct {
	Path    string
	Args    []string // before all others: where an unpacked one has its files
	Version string   // such as "10.0.2"
}

// FindQEMU returns the QEMU that scripts/unpack-packages has unpacked, else the installed one.
var FindQEMU = sync.OnceValues(func() (QEMU, error) {
	root := filepath.Join(Build(), "qemu", "usr")
	q := QEMU{Path: filepath.Join(root, "bin", "qemu-system-x86_64")}
	for _, files := range []string{"qemu", "seabios"} {
		q.Args = append(q.Args, "-L", filepath.Join(root, "share", files))
	}
	if _, err := os.Stat(q.Path); err != nil {
		q = QEMU{Path: "qemu-system-x86_64"}
	}
	out, err := exec.Command(q.Path, "--version").Output()
	if err != nil {
		return q, fmt.Errorf("run QEMU (package qemu-system-x86): %w", err)
	}
	q.Version, err = qemuVersion(string(out))
	return q, err
})

// qemuVersion returns the version in the output of --version: "QEMU emulator version 10.0.2 (Debian ...)".
func qemuVersion(out string) (string, error) {
	_, version, found := strings.Cut(out, "version ")
	version, _, _ = strings.Cut(version, " ")
	if version = strings.TrimSpace(version); !found || version == "" {
		return "", fmt.Errorf("QEMU tells no version: %q", out)
	}
	return version, nil
}

// patchedCode tells whether emulated CPUs that run at once see code that another one patches: see atOnce.
func (q QEMU) patchedCode() bool {
	major, _, _ := strings.Cut(q.Version, ".")
	n, err := strconv.Atoi(major)
	return err == nil && n >= 10
}
