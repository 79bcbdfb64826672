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

// vmlinux returns the path of the ELF image in a kernel's vmlinuz, unpacked into dir unless it is
// there: QEMU boots it by its PVH entry, and the guest is spared a third of its boot, in which it would
// unpack itself.
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
	temporary, err := os.CreateTemp(dir, "vmlinux-") // another lab may do the same
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

// unpackers are by what the packed data begin with.
var unpackers = []struct {
	magic []byte
	argv  []string
}{
	{[]byte("\xfd7zXZ\x00"), []string{"xz", "-dc"}},
	{[]byte("\x28\xb5\x2f\xfd"), []string{"zstd", "-dcq"}},
}

// Offsets in a bzImage, of Documentation/x86/boot.rst: the number of sectors in front of the
// protected-mode code less one, where its payload begins in that, and the payload's length.
const (
	setupSectors  = 0x1f1
	payloadOffset = 0x248
	payloadLength = 0x24c
	sector        = 512
	sizeSuffix    = 4 // the unpacked size, which is not the packer's
)

// unpack returns the ELF image of a bzImage.
func unpack(image []byte) ([]byte, error) {
	if len(image) < payloadLength+4 {
		return nil, fmt.Errorf("not a bzImage: %d bytes", len(image))
	}
	from := (int64(image[setupSectors])+1)*sector + int64(binary.LittleEndian.Uint32(image[payloadOffset:]))
	to := from + int64(binary.LittleEndian.Uint32(image[payloadLength:])) - sizeSuffix
	if from > to || to > int64(len(image)) {
		return nil, fmt.Errorf("not a bzImage: a payload from %d to %d of %d bytes", from, to, len(image))
	}
	for _, u := range unpackers {
		if !bytes.HasPrefix(image[from:to], u.magic) {
			continue
		}
		cmd := exec.Command(u.argv[0], u.argv[1:]...)
		cmd.Stdin = bytes.NewReader(image[from:to])
		var complaint bytes.Buffer
		cmd.Stderr = &complaint
		elf, err := cmd.Output()
		if err != nil {
			return nil, fmt.Errorf("%s: %w: %s", u.argv[0], err, bytes.TrimSpace(complaint.Bytes()))
		}
		return elf, nil
	}
	return nil, fmt.Errorf("packed by neither xz nor zstd: it begins with %x", image[from:min(from+8, to)])
}
