// SPDX-License-Identifier: Apache-2.0

package biotrace

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Operations and flags in bi_opf, the same on 6.1 to 6.12: enum req_op and enum req_flag_bits in
// include/linux/blk_types.h.
var ops = map[uint32]string{
	0: "READ", 1: "WRITE", 2: "FLUSH", 3: "DISCARD", 5: "SECURE_ERASE", 9: "WRITE_ZEROES", 34: "DRV_IN", 35: "DRV_OUT",
}

const (
	opMask   = 0xff
	preflush = 1 << 18
	opFlush  = 2
)

var flags = []struct {
	bit  uint32
	name string
}{
	{11, "SYNC"}, {12, "META"}, {13, "PRIO"}, {17, "FUA"}, {18, "PREFLUSH"}, {19, "RAHEAD"},
}

// opName returns the name of an operation. An empty write with PREFLUSH, as file systems submit, is a
// FLUSH.
func opName(opf, bytes uint32) string {
	op := opf & opMask
	if opf&preflush != 0 && bytes == 0 {
		op = opFlush
	}
	if name, ok := ops[op]; ok {
		return name
	}
	return fmt.Sprintf("OP%d", op)
}

func opNumber(name string) (uint32, bool) {
	for number, op := range ops {
		if strings.EqualFold(op, name) {
			return number, true
		}
	}
	return 0, false
}

// OpNames returns the names of all operations.
func OpNames() []string { return slices.Sorted(maps.Values(ops)) }

func flagNames(opf uint32) string {
	var names []string
	for _, f := range flags {
		if opf&(1<<f.bit) != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, "|")
}
