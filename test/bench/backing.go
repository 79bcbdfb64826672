// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
)

// Backings returns the kinds of disk that can be served. All are in the serving VM's memory.
func Backings() []string { return []string{"brd", "null_blk"} }

const mountConfigfs = "mountpoint -q /sys/kernel/config || mount -t configfs none /sys/kernel/config\n"

// disksOf makes n equal disks in the serving VM, one for each contender: some open a disk exclusively, or
// have it in a page cache.
func (s *site) disksOf(ctx context.Context, kind string, n, mebibytes int) ([]string, error) {
	var script, format string
	switch kind {
	case "brd":
		script, format = fmt.Sprintf("modprobe brd rd_nr=%d rd_size=%d", n, mebibytes<<10), "/dev/ram%d"
	case "null_blk":
		format = "/dev/nullb%d"
		script = "modprobe null_blk nr_devices=0\n" + mountConfigfs + fmt.Sprintf(`for i in $(seq 0 %d); do
	disk=/sys/kernel/config/nullb/nullb$i
	mkdir $disk
	echo %d > $disk/size
	echo 1 > $disk/memory_backed
	nproc > $disk/submit_queues
	echo 1 > $disk/power
done`, n-1, mebibytes)
	default:
		return nil, fmt.Errorf("backing %s: must be brd or null_blk", kind)
	}
	if _, err := s.run(ctx, s.server, script); err != nil {
		return nil, fmt.Errorf("make the disks: %w", err)
	}
	disks := make([]string, n)
	for i := range disks {
		disks[i] = fmt.Sprintf(format, i)
		// Allocates all memory before anything is measured.
		if _, err := s.run(ctx, s.server, fmt.Sprintf("dd if=/dev/zero of=%s bs=1M count=%d oflag=direct", disks[i], mebibytes)); err != nil {
			return nil, fmt.Errorf("fill the disks: %w", err)
		}
	}
	return disks, nil
}
