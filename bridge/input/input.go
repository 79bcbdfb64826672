// SPDX-License-Identifier: Apache-2.0

// Package input reads sizes, durations and addresses as people write them. Each flag and configuration key
// that takes one uses this package, so that 4k means the same everywhere.
package input

import (
	"errors"
	"math"
	"math/big"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// Errors, to be printed after the option and its value.
var (
	ErrSize     = errors.New("must be a size such as 4096, 64k, 1M or 1GiB (1024s), or 1GB (1000s)")
	ErrDuration = errors.New("must be a duration such as 10s or 5m; a number alone is seconds")
)

var sizePattern = regexp.MustCompile(`^([0-9]+|[0-9]*\.[0-9]+|0[xX][0-9a-fA-F]+) ?([kKmMgGtTpPeE]?)(|[iI]|[iI]?[bB])$`)

// Size returns a number of bytes. As in fio, dd and qemu, k, M, G, T, P and E are powers of 1024, in either
// case, as are KiB and Ki; KB, MB and so on are powers of 1000, as they spell. A fraction must amount to
// whole bytes.
func Size(text string) (int64, error) {
	m := sizePattern.FindStringSubmatch(text)
	if m == nil {
		return 0, ErrSize
	}
	number, prefix, suffix := m[1], strings.ToLower(m[2]), strings.ToLower(m[3])
	if prefix == "" && suffix != "" && m[3] != "B" { // b is 512 bytes to dd; iB is no unit
		return 0, ErrSize
	}
	n, ok := new(big.Rat), false
	if hex := strings.TrimPrefix(strings.ToLower(number), "0x"); len(hex) != len(number) {
		var i *big.Int
		if i, ok = new(big.Int).SetString(hex, 16); ok {
			n.SetInt(i)
		}
	} else {
		n, ok = n.SetString(number)
	}
	if !ok {
		return 0, ErrSize
	}
	base := int64(1024)
	if suffix == "b" {
		base = 1000
	}
	if prefix != "" {
		for range strings.Index("kmgtpe", prefix) + 1 {
			n.Mul(n, big.NewRat(base, 1))
		}
	}
	if !n.IsInt() || !n.Num().IsInt64() {
		return 0, ErrSize
	}
	return n.Num().Int64(), nil
}

// Duration returns a duration, which may be negative: 10s, 1h30m, or a number of seconds.
func Duration(text string) (time.Duration, error) {
	if d, err := time.ParseDuration(text); err == nil {
		return d, nil
	}
	if strings.Trim(text, "+-.0123456789") != "" {
		return 0, ErrDuration // else ParseFloat takes inf, hexadecimal and exponents
	}
	seconds, err := strconv.ParseFloat(text, 64)
	if ns := seconds * float64(time.Second); err == nil && math.Abs(ns) < math.MaxInt64 {
		return time.Duration(math.Round(ns)), nil
	}
	return 0, ErrDuration
}
