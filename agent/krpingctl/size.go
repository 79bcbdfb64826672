// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"math"

	"github.com/dustin/go-humanize"

	"krping/bridge/input"
)

// sizeFlag is a number of bytes: 512, 64k or 64KiB (powers of 1024), 1GB (powers of 1000).
type sizeFlag int64

func (s *sizeFlag) String() string {
	if *s == 0 {
		return "0"
	}
	return humanize.IBytes(uint64(*s))
}

func (s *sizeFlag) Type() string { return "size" }

func (s *sizeFlag) Set(text string) error {
	n, err := input.Size(text)
	if err != nil {
		return wantError(err.Error())
	}
	*s = sizeFlag(n)
	return nil
}

// boundedSize is a size in a range. 0 means that the flag is not given.
type boundedSize struct {
	*sizeFlag
	min, max sizeFlag
}

func (b *boundedSize) Set(text string) error {
	var size sizeFlag
	if err := size.Set(text); err != nil {
		return err
	}
	switch {
	case size >= b.min && size <= b.max:
		*b.sizeFlag = size
		return nil
	case b.max == math.MaxInt64:
		return wantError(fmt.Sprintf("must be %d or more", b.min))
	}
	return wantError(fmt.Sprintf("must be %d to %d bytes", b.min, b.max))
}
