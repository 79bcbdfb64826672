// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"strings"
)

// maxName is the most characters of a volume's name.
const maxName = 63

const nameChars = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._-"

var errName = errors.New("must be 1 to 63 letters, digits, '.', '_', '-', or such parts joined by '/'; no part is '.' or '..'")

// CheckVolumeName returns an error if name is not a valid name of a volume. The error says what would be
// right. The module has the same rule, in kmod/wire/name.c.
func CheckVolumeName(name string) error {
	if len(name) > maxName {
		return errName
	}
	for part := range strings.SplitSeq(name, "/") {
		if part == "" || part == "." || part == ".." || strings.Trim(part, nameChars) != "" {
			return errName
		}
	}
	return nil
}

// ValidVolumeName reports whether name is a valid name of a volume.
func ValidVolumeName(name string) bool { return CheckVolumeName(name) == nil }

// VolumeID is what a hello has to identify a volume: its name, or if that is longer than 27 characters,
// the first bytes of its SHA-256. Volumes with the same VolumeID have the same name.
type VolumeID struct {
	digest bool
	field  [volumeSize]byte
}

// VolumeIDOf returns the VolumeID of a valid name.
func VolumeIDOf(name string) VolumeID {
	var id VolumeID
	if id.digest = len(name) >= volumeSize; id.digest {
		sum := sha256.Sum256([]byte(name))
		copy(id.field[:], sum[:])
	} else {
		copy(id.field[:], name)
	}
	return id
}

// String returns the name, or the digest as a text that is no name.
func (v VolumeID) String() string {
	if v.digest {
		return fmt.Sprintf("sha256:%x", v.field)
	}
	return strings.TrimRight(string(v.field[:]), "\x00")
}
