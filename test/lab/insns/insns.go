// SPDX-License-Identifier: Apache-2.0

// Package insns counts the instructions that an emulated guest executes, and calls of its functions, with a plugin of
// QEMU. Unlike times, these figures do not depend on what else the host does.
package insns

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

//go:embed plugin.c
var source []byte

// Build compiles the plugin into a directory and returns its path.
func Build(dir string) (string, error) {
	code, plugin := filepath.Join(dir, "insns.c"), filepath.Join(dir, "insns.so")
	if err := os.WriteFile(code, source, 0o644); err != nil {
		return "", err
	}
	out, err := exec.Command("cc", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-o", plugin, code).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("compile the plugin of QEMU: %w\n%s", err, out)
	}
	return plugin, nil
}

// Counts are what a guest has executed since its start, by the address of the translation block in the guest's
// address space.
type Counts map[uint64]Count

// Count is what a guest has executed of a translation block. One begins where a call leads, so the runs of the block
// at the start of a function are its calls.
type Count struct {
	Insns uint64 // instructions
	Runs  uint64
}

const (
	headSize  = 8  // blocks that found no place
	blockSize = 24 // address, instructions, runs
)

// Read reads a plugin's file, in which the counters of a running guest may still change.
func Read(path string) (Counts, error) {
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	return parse(data)
}

func parse(data []byte) (Counts, error) {
	if len(data) < headSize || (len(data)-headSize)%blockSize != 0 {
		return nil, fmt.Errorf("%d bytes are not a table of instructions", len(data))
	}
	if binary.NativeEndian.Uint64(data) > 0 {
		return nil, errors.New("the table of instructions is full: the guest ran too much code")
	}
	c := Counts{}
	for b := data[headSize:]; len(b) > 0; b = b[blockSize:] {
		if n := (Count{binary.NativeEndian.Uint64(b[8:]), binary.NativeEndian.Uint64(b[16:])}); n.Insns > 0 {
			c[binary.NativeEndian.Uint64(b)] = n
		}
	}
	return c, nil
}

// Sub returns what was executed between two moments.
func (c Counts) Sub(earlier Counts) Counts {
	d := Counts{}
	for address, n := range c {
		n.Insns -= earlier[address].Insns
		n.Runs -= earlier[address].Runs
		if n.Insns > 0 {
			d[address] = n
		}
	}
	return d
}
