// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
)

// nullPrefix is the prefix of the names of null_blk disks that this package adds and removes with their
// subsystem.
const nullPrefix = "nvmet_null"

// MiB is the unit of the size of a disk in memory, in bytes.
const MiB = 1 << 20

func (t *Tree) loadNull(ctx context.Context) error {
	if _, real := t.fs.(configfs); !real {
		return nil
	}
	// By default it would add a disk, nullb0.
	return kernel.LoadWith(ctx, "null_blk", "nr_devices=0")
}

func (t *Tree) null(name string) string { return filepath.Join(t.mount, "nullb", name) }

// addNull adds a disk in memory, a null_blk device that keeps its data, and returns its path.
func (c *change) addNull(size int64) (string, error) {
	if size <= 0 || size%MiB != 0 {
		return "", fmt.Errorf("size of a disk in memory is %d bytes, must be a multiple of 1 MiB: %w", size, unix.EINVAL)
	}
	name, dir := "", ""
	for i := 0; ; i++ {
		name = fmt.Sprintf("%s%d", nullPrefix, i)
		dir = c.null(name)
		if !exists(dir) && !exists("/dev/"+name) {
			break
		}
	}
	if err := c.mkdir(dir); err != nil {
		return "", fmt.Errorf("add a disk in memory: %w", err)
	}
	for _, a := range [][2]string{{"size", strconv.FormatInt(size/MiB, 10)}, {"memory_backed", "1"}, {"power", "1"}} {
		if err := c.fs.write(filepath.Join(dir, a[0]), a[1]); err != nil {
			return "", fmt.Errorf("add a disk in memory: %w (%q)", err, a[1])
		}
	}
	return "/dev/" + name, nil
}

// removeNull removes the disk at a path, if addNull has added it.
func (t *Tree) removeNull(path string) error {
	name := strings.TrimPrefix(path, "/dev/")
	if !isNull(path) || !exists(t.null(name)) {
		return nil
	}
	if err := t.fs.rmdir(t.null(name)); err != nil {
		return fmt.Errorf("remove the disk in memory: %w", err)
	}
	return nil
}

// isNull reports whether a path is that of a disk that addNull has added. A path that only begins like
// one may lead anywhere.
func isNull(path string) bool {
	number, found := strings.CutPrefix(path, "/dev/"+nullPrefix)
	_, err := strconv.ParseUint(number, 10, 31)
	return found && err == nil
}
