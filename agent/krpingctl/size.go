// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"
)

// sizeFlag is a number of bytes: 512, 64KiB (powers of 1024), 1GB (powers of 1000).
type sizeFlag int64

func (s *sizeFlag) String() string {
	if *s == 0 {
		return "0"
	}
	return humanize.IBytes(uint64(*s))
}

func (s *sizeFlag) Type() string { return "size" }

func (s *sizeFlag) Set(text string) error {
	n, err := humanize.ParseBytes(text)
	if err != nil || n > math.MaxInt64 {
		return fmt.Errorf("not a size: write it like 4096, 64KiB or 1GiB")
	}
	*s = sizeFlag(n)
	return nil
}
