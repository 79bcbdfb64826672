// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// vmlinux returns the path of the ELF image in a kernel's vmlinuz, which it unpacks into dir once. QEMU
// boots it by its PVH entry, which saves the guest a third of its boot: the time to unpack itself.
func vmlinux(kernel Kernel, dir string) (string, error) {
	path := filepath.Join(dir, "vmlinux-"+kernel.Release)
	packed, err := os.Stat(kernel.Image)
	if err != nil {
		return "", err
	}
	if unpacked, err := os.Stat(path); err == nil && unpacked.ModTime().After(packed.ModTime()) {
		return path, nil
	}
	image, err := os.ReadFile(kernel.Image)
	if err != nil {
		return "", err
	}
	elf, err := unpack(image)
	if err != nil {
		return "", fmt.Errorf("unpack %s: %w", kernel.Image, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", err
	}
	temporary, err := os.CreateTemp(dir, "vmlinux-") // other labs may do the same at the same time
	if err != nil {
		return "", err
	}
	defer os.Remove(temporary.Name()) // fails once it is renamed
	_, err = temporary.Write(elf)
	if err := errors.Join(err, temporary.Close()); err != nil {
		return "", err
	}
	return path, os.Rename(temporary.Name(), path)
}

// unpackers are chosen by the first bytes of the packed data.
var unpackers = []struct {
	magic []byte
	argv  []string
}{
	{[]byte("\xfd7zXZ\x00"), []string{"xz", "-dc"}},
	{[]byte("\x28\xb5\x2f\xfd"), []string{"zstd", "-dcq"}},
}

// Offsets in a bzImage (Documentation/x86/boot.rst): the number of set-up sectors before the protected-mode
// code, less one; the payload's offset in that code; the payload's length.
const (
	setupSectors  = 0x1f1
	payloadOffset = 0x248
	payloadLength = 0x24c
	sector        = 512
	sizeSuffix    = 4 // bytes after the packed data: the unpacked size
)

// unpack returns the ELF image of a bzImage.
func unpack(image []byte) ([]byte, error) {
	if len(image) < payloadLength+4 {
		return nil, fmt.Errorf("not a bzImage: %d bytes", len(image))
	}
	from := (int64(image[setupSectors])+1)*sector + int64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	to := from + int64(binary.LittleEndian.Uint32(image[payloadLength:])) - sizeSuffix
	if from > to || to > int64(len(image)) {
		return nil, fmt.Errorf("not a bzImage: payload from %d to %d in %d bytes", from, to, len(image))
	}
	return decompress(image[from:to])
}

// decompress unpacks what xz or zstd has packed.
func decompress(data []byte) ([]byte, error) {
	for _, u := range unpackers {
		if !bytes.HasPrefix(data, u.magic) {
			continue
		}
		cmd := exec.Command(u.argv[0], u.argv[1:]...)
		cmd.Stdin = bytes.NewReader(data)
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		out, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", u.argv[0], err, bytes.TrimSpace(complaint.Bytes()))
		}
		return out, nil
	}
	return nil, fmt.Errorf("unknown compression, want xz or zstd: the data begin with %x", data[:min(len(data), 8)])
}
