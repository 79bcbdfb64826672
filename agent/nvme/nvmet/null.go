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

// nullPrefix begins the names of disks of null_blk that were made here, and that go with their
// subsystem. The kernel's own are nullb0 and so on.
const nullPrefix = "nvmet_null"

// MiB is what the size of a disk in memory must be a multiple of.
const MiB = 1 << 20

func (t *Tree) loadNull(ctx context.Context) error {
	if _, real := t.fs.(configfs); !real {
		return nil
	}
	// Without the parameter it would make a disk, nullb0, by itself.
	return kernel.LoadWith(ctx, "null_blk", "nr_devices=0")
}

func (t *Tree) null(name string) string { return filepath.Join(t.mount, "nullb", name) }

// addNull makes a disk that keeps what is written to it in memory, and returns its path.
func (c *change) addNull(size int64) (string, error) {
	if size <= 0 || size%MiB != 0 {
		return "", fmt.Errorf("a null disk of %d bytes: must be a multiple of 1 MiB: %w", size, unix.EINVAL)
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
		return "", fmt.Errorf("make a null disk: %w", err)
	}
	for _, a := range [][2]string{{"size", strconv.FormatInt(size/MiB, 10)}, {"memory_backed", "1"}, {"power", "1"}} {
		if err := c.fs.write(filepath.Join(dir, a[0]), a[1]); err != nil {
			return "", fmt.Errorf("make a null disk: %w (%q)", err, a[1])
		}
	}
	return "/dev/" + name, nil
}

// removeNull removes the disk of that path, if it was made here.
func (t *Tree) removeNull(path string) error {
	name := strings.TrimPrefix(path, "/dev/")
	if !isNull(path) || !exists(t.null(name)) {
		return nil
	}
	if err := t.fs.rmdir(t.null(name)); err != nil {
		return fmt.Errorf("remove the null disk: %w", err)
	}
	return nil
}

func isNull(path string) bool { return strings.HasPrefix(path, "/dev/"+nullPrefix) }
