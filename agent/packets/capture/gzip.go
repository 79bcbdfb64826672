// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"compress/gzip"
	"fmt"
)

// decompress returns a reader of the plain data: r itself unless it begins with gzip's magic number.
func decompress(r *bufio.Reader) (*bufio.Reader, error) {
	magic, err := r.Peek(2)
	if err != nil {
		return nil, fmt.Errorf("not a capture file: %w", err)
	}
	if string(magic) != "\x1f\x8b" {
		return r, nil
	}
	compressed, err := gzip.NewReader(r)
	if err != nil {
		return nil, fmt.Errorf("not a valid gzip file: %w", err)
	}
	return bufio.NewReader(compressed), nil
}
