// SPDX-License-Identifier: Apache-2.0

package distro

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"krping/test/lab"
)

// chroot runs a script in the file system of a host that is off: its arguments are the disks for / and /boot, a
// directory, this repository's build directory, and the script. Its mounts end with its mount namespace. What the
// script leaves running, as the sleep 3 of DKMS 3.2, would keep them busy.
const chroot = `set -e
mkdir -p "$3"
mount -o loop "$1" "$3"
mount -o loop "$2" "$3/boot"
mount -t proc proc "$3/proc"
mkdir -p "$3/lab"
mount --bind "$4" "$3/lab"
mount -o remount,bind,ro "$3/lab"
status=0
chroot "$3" sh -c "$5" || status=$?
kill -KILL -1 2>/dev/null || true
for i in $(seq 50); do umount -R "$3" && exit $status; sleep 0.1; done
exit 1`

// Offline runs a shell script in the file system of a host that is off, and returns what it printed. It is for what
// an emulated CPU takes an hour for, above all compiling.
func (h *Host) Offline(ctx context.Context, script string) (string, error) {
	if h.VM != nil {
		return "", fmt.Errorf("%s is on", h.Name)
	}
	if h.format != "raw" { // what a loop device can read
		raw := h.path("root") + ".raw"
		out, err := exec.CommandContext(ctx, "qemu-img", "convert", "-O", "raw", h.path("root"), raw).CombinedOutput()
		if err != nil {
			return "", fmt.Errorf("qemu-img convert: %w: %s", err, out)
		}
		if err := os.Rename(raw, h.path("root")); err != nil {
			return "", err
		}
		h.format = "raw"
	}
	dir := filepath.Join(h.lab.dir, h.Name+"-mounted")
	out, err := exec.CommandContext(ctx, "unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", chroot, "sh",
		h.path("root"), h.path("boot"), dir, lab.Build(), script).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("%s, in a chroot: %w: %s", h.Name, err, tail(string(out)))
	}
	return strings.TrimSpace(string(out)), nil
}
