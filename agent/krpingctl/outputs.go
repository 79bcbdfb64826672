// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"

	"krping/bridge/inuse"
)

// namedFile is a file that a command is given: by a flag or an argument, and its path. "" is no file, and
// "-" standard input.
type namedFile struct{ name, path string }

// checkOutputs returns an error if writing an output, or to standard output, would destroy an input or
// another output, by whatever path, symbolic link or hard link. It must be called before an output is opened.
func checkOutputs(inputs []namedFile, outputs ...namedFile) error {
	for _, in := range inputs {
		if sameFile(in.path, "/dev/stdout") {
			return usagef("%s and standard output: cannot be the same file, %s", in.name, in.path)
		}
	}
	for i, out := range outputs {
		for _, in := range inputs {
			if sameFile(in.path, out.path) {
				return usagef("%s and %s: cannot be the same file, %s", in.name, out.name, out.path)
			}
		}
		for _, other := range outputs[:i] {
			if sameFile(other.path, out.path) {
				return usagef("%s and %s: cannot be the same file, %s", other.name, out.name, out.path)
			}
		}
	}
	return nil
}

// checkNewFile returns an error if a file that is to be written would be one in /dev, or overwrite a disk.
func checkNewFile(out namedFile) error {
	if out.path == "" || out.path == "-" {
		return nil
	}
	if err := inuse.CheckPath(out.path); err != nil {
		return usagef("%s: %w", out.name, err)
	}
	if info, err := os.Stat(out.path); err == nil && info.Mode().Type() == os.ModeDevice { // a block device
		return usagef("%s %s: is a disk, and would be overwritten: give a file", out.name, out.path)
	}
	return nil
}

// sameFile reports whether writing to b changes what is in a, or would once both exist. A terminal, a
// pipe and /dev/null keep nothing.
func sameFile(a, b string) bool {
	if a == "" || b == "" {
		return false
	}
	x, err1 := stat(a)
	y, err2 := os.Stat(b)
	if err1 == nil && err2 == nil {
		return os.SameFile(x, y) && (x.Mode().IsRegular() || x.Mode().Type() == os.ModeDevice)
	}
	if err1 == nil || err2 == nil || a == "-" {
		return false
	}
	path1, err1 := inuse.Resolve(a)
	path2, err2 := inuse.Resolve(b)
	return err1 == nil && err2 == nil && path1 == path2
}

func stat(path string) (os.FileInfo, error) {
	if path == "-" {
		return os.Stdin.Stat()
	}
	return os.Stat(path)
}
