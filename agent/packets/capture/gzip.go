// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"compress/gzip"
	"fmt"
)

// unpacked returns what a reader has, or what was packed in it.
func unpacked(r *bufio.Reader) (*bufio.Reader, error) {
	magic, err := r.Peek(2)
	if err != nil {
		return nil, fmt.Errorf("no capture file: %w", err)
	}
	if string(magic) != "\x1f\x8b" {
		return r, nil
	}
	packed, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("no gzip file: %w", err)
	}
	return bufio.NewReader(packed), nil
}
