// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// ourDisks are the names of the kernel's disks that this program is for.
var ourDisks = regexp.MustCompile(`^(krping|nvme)[0-9]+(n[0-9]+)?(p[0-9]+)?$`)

// devicePath returns the path of a disk or file: disks may be given without /dev/, as lsblk prints them.
// A name that is both a file in the working directory and a disk is an error.
func devicePath(name string) (string, error) {
	return devicePathIn("/dev", name, func(mode os.FileMode) bool {
		return mode&os.ModeDevice != 0 && mode&os.ModeCharDevice == 0
	})
}

// devicePathIn is devicePath with another directory than /dev, and another test for a disk.
func devicePathIn(dev, name string, isDisk func(os.FileMode) bool) (string, error) {
	if name == "" || filepath.IsAbs(name) || strings.HasPrefix(name, "./") || strings.HasPrefix(name, "../") {
		return name, nil
	}
	path := filepath.Join(dev, name)
	_, err := os.Lstat(name)
	isFile := err == nil
	info, err := os.Stat(path)
	switch found := err == nil && isDisk(info.Mode()); {
	case found && isFile:
		return "", usagef("%s is a file here and a disk: give ./%s or %s", name, name, path)
	case found, !isFile && ourDisks.MatchString(name): // so that a disk that is not there is no new file
		return path, nil
	}
	return name, nil
}
