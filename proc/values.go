// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"krping/bridge/access"
	"krping/bridge/input"
	"krping/bridge/wire"
)

// Backing returns a backing as the module spells it: ram:64MiB is ram:64M, and vdb is /dev/vdb. It returns
// other texts as they are.
func Backing(text string) string {
	if size, ok := strings.CutPrefix(text, "ram:"); ok {
		if n, err := input.Size(size); err == nil {
			return "ram:" + formatRAM(n)
		}
		return text
	}
	if path := "/dev/" + text; !strings.HasPrefix(text, ".") && !strings.HasPrefix(text, "/") && devicePath.MatchString(path) {
		return path
	}
	return text
}

// formatRAM writes a size with the module's units, K, M, G and T.
func formatRAM(n int64) string {
	unit := ""
	for _, u := range []string{"K", "M", "G", "T"} {
		if n == 0 || n%1024 != 0 {
			break
		}
		n, unit = n/1024, u
	}
	return strconv.FormatInt(n, 10) + unit
}

// CheckValue returns an error if the option cannot have that value in any command. The error says
// what would be right. It does not check addresses, which Command holds parsed.
func (o Option) CheckValue(value string) error {
	valid, want := true, o.Range()
	switch o.Value {
	case "number":
		n, err := ParseNumber(value)
		valid = err == nil && n >= o.Min && n <= o.Max
	case "name":
		if err := wire.CheckVolumeName(value); err != nil {
			return fmt.Errorf("%s %q: %w", o.Name, value, err)
		}
	case "dma or reg":
		valid = value == "dma" || value == "reg"
	case "operation":
		valid, want = slices.Contains(verbNames, value), "send, write, write_imm, read, fetch_add or cmp_swap"
	case "queue pair type":
		valid, want = slices.Contains(queuePairs, value), "rc, uc or ud"
	case "mode":
		valid, want = value == "remote" || value == "tap", "remote or tap"
	case "/dev/NAME or ram:SIZE":
		valid, want = validBacking(value), "/dev/NAME, or ram:SIZE from 1M to 1T in multiples of 4K"
	case "process name":
		valid, want = processName.MatchString(value), "1 to 15 printable characters, no ','"
	case "operations":
		valid, want = validOps(value), "some of read, write, flush and discard, joined by '+'"
	case "krping:NAME":
		valid, want = keyName.MatchString(value), "krping:NAME, of at most 71 printable characters, no ','"
	case "addresses":
		valid, want = validAllow(value), "1 to 16 of ADDR or ADDR/BITS, IP addresses, joined by '+'"
	case "UUID":
		valid, want = uuid.MatchString(value) && strings.Trim(value, "0-") != "", "like 123e4567-e89b-12d3-a456-426614174000, not all zero"
	case "IP address":
		valid, want = validSource(value), "an IP address, with %INTERFACE if link-local, a network interface or an RDMA device"
	case "FIRST-LAST":
		valid, want = validSectors(value), "FIRST-LAST, in sectors of 512 bytes"
	}
	if !valid {
		return fmt.Errorf("%s %q: must be %s", o.Name, value, want)
	}
	return nil
}

// ParseNumber parses a number as the module does: 0x begins a hexadecimal one, another 0 an octal one.
func ParseNumber(text string) (uint32, error) {
	digits, base := text, 10
	if strings.HasPrefix(text, "0") {
		base = 8
		if hex := strings.TrimLeft(text[1:], "xX"); len(hex) == len(text)-2 {
			digits, base = hex, 16
		}
	}
	n, err := strconv.ParseUint(digits, base, 32)
	return uint32(n), err
}

var (
	processName = regexp.MustCompile(`^[ -+\--~]{1,15}$`)
	devicePath  = regexp.MustCompile(`^/dev/[!-+\--~]{1,122}$`)
	ramSize     = regexp.MustCompile(`^ram:([0-9]{1,16})([KMGT]?)$`)
	keyName     = regexp.MustCompile(`^krping:[!-+\--~]{1,64}$`)
	uuid        = regexp.MustCompile(`^[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}$`)
	sectorRange = regexp.MustCompile(`^([0-9]{1,16})-([0-9]{1,16})$`)
)

func validBacking(backing string) bool {
	if devicePath.MatchString(backing) {
		return true
	}
	m := ramSize.FindStringSubmatch(backing)
	if m == nil {
		return false
	}
	n, err := strconv.ParseUint(m[1], 10, 64)
	shift := 10 * (strings.Index("KMGT", m[2]) + 1) * len(m[2])
	if err != nil || n > 1<<40>>shift {
		return false
	}
	n <<= shift
	return n >= 1<<20 && n%4096 == 0
}

func validOps(text string) bool {
	ops := strings.Split(text, "+")
	for i, op := range ops {
		if !slices.Contains([]string{"read", "write", "flush", "discard"}, op) || slices.Contains(ops[:i], op) {
			return false
		}
	}
	return true
}

func validAllow(text string) bool {
	list, err := access.ParseList(strings.Split(text, "+"))
	return err == nil && len(list) <= 16
}

func validSectors(text string) bool {
	m := sectorRange.FindStringSubmatch(text)
	if m == nil {
		return false
	}
	first, err := strconv.ParseUint(m[1], 10, 64)
	last, err2 := strconv.ParseUint(m[2], 10, 64)
	return err == nil && err2 == nil && first <= last
}
