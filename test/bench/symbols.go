// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"debug/elf"
	"debug/gosym"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Function is a function of a guest's kernel, or of a process.
type Function struct {
	Name   string `json:"name"`
	Module string `json:"module,omitempty"` // of the kernel; "" for the kernel itself
	User   bool   `json:"user,omitempty"`   // of a process; Name is "" where that is all that is known
}

// symbols tell the function at an address. Addresses below kernelSpace are a process's.
type symbols struct {
	starts    []uint64
	functions []Function

	program *gosym.Table // of the one Go program that matters, or nil
}

const kernelSpace = 1 << 63

// parseKallsyms reads /proc/kallsyms: address, type, name, module in brackets.
func parseKallsyms(text string) (*symbols, error) {
	type symbol struct {
		start uint64
		f     Function
	}
	var all []symbol
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		if len(fields) < 3 {
			return nil, fmt.Errorf("kallsyms: %q has fewer than three fields", line)
		}
		start, err := strconv.ParseUint(fields[0], 16, 64)
		if err != nil {
			return nil, fmt.Errorf("kallsyms: %w", err)
		}
		if kind := fields[1]; start < kernelSpace || !strings.Contains("tTwW", kind) {
			continue
		}
		s := symbol{start, Function{Name: fields[2]}}
		if len(fields) > 3 {
			s.f.Module = strings.Trim(fields[3], "[]")
		}
		all = append(all, s)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("kallsyms: no functions of the kernel")
	}
	slices.SortStableFunc(all, func(a, b symbol) int {
		switch {
		case a.start < b.start:
			return -1
		case a.start > b.start:
			return 1
		}
		return 0
	})
	s := &symbols{}
	for _, a := range all {
		s.starts, s.functions = append(s.starts, a.start), append(s.functions, a.f)
	}
	return s, nil
}

// addProgram adds the functions of a Go program that is linked to fixed addresses.
func (s *symbols) addProgram(path string) error {
	f, err := elf.Open(path)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	table, module := f.Section(".gopclntab"), f.Section(".go.module")
	if table == nil || module == nil {
		return fmt.Errorf("%s: not a program of Go 1.26 or later", path)
	}
	data, err := table.Data()
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	words := make([]uint64, textWord+1)
	if err := binary.Read(module.Open(), f.ByteOrder, words); err != nil || words[textWord] != words[firstWord] {
		return fmt.Errorf("%s: its runtime's module data has another layout: %v", path, err)
	}
	s.program, err = gosym.NewTable(nil, gosym.NewLineTable(data, words[textWord]))
	return err
}

// Words of runtime.moduledata: where Go's code begins, which is not the start of .text in a program with C code, and
// the address of its first function, which is the same.
const firstWord, textWord = 20, 22

// begins tells whether a function begins at an address.
func (s *symbols) begins(address uint64) bool {
	if address < kernelSpace {
		f := s.program.PCToFunc(address) // callOf knows it
		return f != nil && f.Entry == address
	}
	_, found := slices.BinarySearch(s.starts, address)
	return found
}

// at returns the function at an address.
func (s *symbols) at(address uint64) Function {
	if address < kernelSpace {
		f := Function{User: true}
		if s.program != nil {
			if found := s.program.PCToFunc(address); found != nil {
				f.Name = found.Name
			}
		}
		return f
	}
	i, found := slices.BinarySearch(s.starts, address)
	if !found {
		i--
	}
	if i < 0 {
		return Function{}
	}
	return s.functions[i]
}
