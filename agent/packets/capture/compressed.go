// SPDX-License-Identifier: Apache-2.0

package capture

import (
	"bufio"
	"compress/bzip2"
	"compress/gzip"
	"fmt"
	"strings"
)

// compressions are the formats that a capture file may be compressed with: the bytes that it begins with,
// and the command that decompresses it.
var compressions = []struct{ magic, name, command string }{
	{"\x28\xb5\x2f\xfd", "zstd", "zstd -dc"},
	{"\xfd7zXZ\x00", "xz", "xz -dc"},
	{"\x04\x22\x4d\x18", "lz4", "lz4 -dc"},
	{"PK\x03\x04", "zip", "unzip -p"},
}

// decompress returns a reader of the plain data: r itself unless it begins with the magic number of gzip or
// bzip2.
func decompress(r *bufio.Reader) (*bufio.Reader, error) {
	magic, err := r.Peek(6)
	if len(magic) < 2 {
		return nil, fmt.Errorf("not a capture file: %w", err)
	}
	switch {
	case strings.HasPrefix(string(magic), "\x1f\x8b"):
		compressed, err := gzip.NewReader(r)
		if err != nil {
			return nil, fmt.Errorf("not a valid gzip file: %w", err)
		}
		return bufio.NewReader(compressed), nil
	case strings.HasPrefix(string(magic), "BZh"):
		return bufio.NewReader(bzip2.NewReader(r)), nil
	}
	for _, c := range compressions {
		if strings.HasPrefix(string(magic), c.magic) {
			return nil, fmt.Errorf("compressed with %s: use %s FILE | krpingctl capture --read -", c.name, c.command)
		}
	}
	return r, nil
}
