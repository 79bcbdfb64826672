// SPDX-License-Identifier: Apache-2.0

package verify

import (
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"krping/agent/disk/rawio"
)

// Asker obtains digests of what the target has stored.
type Asker interface {
	// SHA256 returns the hexadecimal SHA-256 of a range of at most MaxDigest bytes.
	SHA256(r Range) (string, error)
}

// MaxDigest is the maximum length of a range, in bytes: KRPING_DIGEST_MAX.
const MaxDigest = 16 << 20

// ErrNoTarget is returned for a device that is not a krping device.
var ErrNoTarget = errors.New("the target cannot be asked for digests: this is not a krping device")

// digestArg is struct krping_digest of kmod/uapi/krping.h, in native byte order.
type digestArg struct {
	Offset, Length uint64
	Alg, DigestLen uint32
	Digest         [32]byte
}

const (
	iocDigest = 3<<30 | uint32(unsafe.Sizeof(digestArg{}))<<16 | 'K'<<8 | 0x70 // _IOWR('K', 0x70, struct krping_digest)
	algorithm = 1                                                              // KRPING_DIGEST_SHA256
)

// Target is the target of an open krping device.
type Target struct{ device *os.File }

// NewTarget returns the target of a device, or ErrNoTarget.
func NewTarget(device *os.File) (*Target, error) {
	t := &Target{device}
	_, err := t.SHA256(Range{0, 4096})
	if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) && !isBlock(device) {
		return nil, ErrNoTarget
	}
	if err != nil {
		return nil, fmt.Errorf("ask the target: %w", err)
	}
	return t, nil
}

func isBlock(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeDevice != 0 && info.Mode()&os.ModeCharDevice == 0
}

// SHA256 implements Asker.
func (t *Target) SHA256(r Range) (string, error) {
	arg := digestArg{Offset: uint64(r.Offset), Length: uint64(r.Length), Alg: algorithm}
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, t.device.Fd(), uintptr(iocDigest), uintptr(unsafe.Pointer(&arg)))
	if errno != 0 {
		return "", errno
	}
	if arg.DigestLen != 32 {
		return "", fmt.Errorf("digest has %d bytes, must be 32", arg.DigestLen)
	}
	return hex.EncodeToString(arg.Digest[:]), nil
}

// Backing is the disk or file that a target serves, if this host can read it.
type Backing struct{ io.ReaderAt }

// SHA256 implements Asker.
func (b Backing) SHA256(r Range) (string, error) {
	if r.Length < 0 || r.Length > MaxDigest {
		return "", fmt.Errorf("digest of a range of %d bytes: must be at most %d", r.Length, MaxDigest)
	}
	buf, err := rawio.Buffer(int(r.Length))
	if err != nil {
		return "", err
	}
	defer rawio.Free(buf)
	if _, err := b.ReadAt(buf, r.Offset); err != nil {
		return "", err
	}
	return digest(buf), nil
}

// Shifted asks for ranges of a partition, which are ranges of its disk behind the partition's start.
type Shifted struct {
	Disk  Asker
	Start int64 // of the partition, in bytes
}

// SHA256 implements Asker.
func (s Shifted) SHA256(r Range) (string, error) {
	return s.Disk.SHA256(Range{s.Start + r.Offset, r.Length})
}
