// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/u-root/u-root/pkg/cpio"
	"github.com/u-root/u-root/pkg/kmodule"
)

// initModules are what the guest needs to reach the host's root, and what its RDMA device and rdma_krping
// need: modprobe in the guest takes longer. Their dependencies are added. A module that is built in is not
// needed.
var initModules = []string{
	"virtio_pci", "9pnet_virtio", "9p", "overlay", "virtio_net", "virtio_console",
	"rdma_rxe", "rdma_ucm", "ib_uverbs",
}

// checksumModules are needed, too. Newer kernels do not have them: the checksums are built in.
var checksumModules = []string{"crc32_generic", "crc32c_generic", "libcrc32c"}

// fastChecksums do with the instructions of a host's CPU what checksumModules do without: see counted. They are
// loaded before those, as libcrc32c keeps what it found first.
var fastChecksums = []string{"crc32-pclmul", "crc32c-intel"}

// initScript mounts the host's root read-only with a tmpfs on top, mounts the repository over it (it may
// be in /tmp, which is hidden), and starts the guest agent.
const initScript = `#!/bin/busybox sh
/bin/busybox mkdir -p /sbin /usr/bin /usr/sbin /proc /sys /dev /host /rw /new
/bin/busybox --install -s
mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for m in $(find /modules -name "*.ko*" | sort); do insmod $m || echo "lab: insmod $m failed"; done
P9=trans=virtio,version=9p2000.L,msize=512000
mount -t 9p -o ro,$P9,cache=loose hostroot /host || exec sh
mount -t tmpfs tmpfs /rw
mkdir /rw/upper /rw/work
mount -t overlay -o lowerdir=/host,upperdir=/rw/upper,workdir=/rw/work overlay /new
mount -t tmpfs tmpfs /new/tmp
mount -t tmpfs tmpfs /new/run
mkdir -p /new%[1]s /new/lab/out
mount -t 9p -o ro,$P9,cache=loose repo /new%[1]s
mount -t 9p -o rw,$P9,cache=none out /new/lab/out
[ -e /new/lib/modules/%[3]s ] || ln -s %[4]s/lib/modules/%[3]s /new/lib/modules/
for d in proc sys dev; do mount --move /$d /new/$d; done
exec switch_root /new %[2]s
`

// initramfs builds an archive of busybox, the modules in load order and the script.
func initramfs(kernel Kernel, repo, agent string, counts bool) ([]byte, error) {
	var names []string
	if counts {
		names = existing(kernel, fastChecksums)
	}
	modules, err := moduleClosure(kernel, slices.Concat(names, initModules, existing(kernel, checksumModules)))
	if err != nil {
		return nil, err
	}
	busybox, err := os.ReadFile("/bin/busybox")
	if err != nil {
		return nil, fmt.Errorf("read busybox (package busybox-static): %w", err)
	}
	records := []cpio.Record{
		cpio.Directory("bin", 0o755), cpio.Directory("dev", 0o755), cpio.Directory("modules", 0o755),
		cpio.CharDev("dev/console", 0o600, 5, 1),
		cpio.StaticFile("bin/busybox", string(busybox), 0o755),
		cpio.StaticFile("init", fmt.Sprintf(initScript, repo, agent, kernel.Release, kernel.Root), 0o755),
	}
	for i, path := range modules {
		data, err := readModule(path)
		if err != nil {
			return nil, err
		}
		name, _, _ := strings.Cut(filepath.Base(path), ".")
		records = append(records, cpio.StaticFile(fmt.Sprintf("modules/%02d-%s.ko", i, name), string(data), 0o644))
	}
	var out bytes.Buffer
	w := cpio.Newc.Writer(&out) // not compressed: an emulated guest takes longer to unpack it than to read it
	if err := cpio.WriteRecords(w, records); err != nil {
		return nil, fmt.Errorf("write the initramfs: %w", err)
	}
	if err := cpio.WriteTrailer(w); err != nil {
		return nil, fmt.Errorf("write the initramfs: %w", err)
	}
	return out.Bytes(), nil
}

// moduleClosure returns the paths of the modules and, before each, of its dependencies.
func moduleClosure(kernel Kernel, names []string) ([]string, error) {
	var (
		mu    sync.Mutex // kmodule calls back concurrently
		paths []string
	)
	for _, name := range names {
		var closure []string
		err := kmodule.ProbeOptions(name, "", kmodule.ProbeOpts{
			RootDir:        kernel.Root,
			KVer:           kernel.Release,
			IgnoreProcMods: true,
			DryRunCB: func(path string) {
				mu.Lock()
				defer mu.Unlock()
				closure = append(closure, path)
			},
		})
		if errors.Is(err, os.ErrNotExist) || err != nil && strings.Contains(err.Error(), "could not find path to module") {
			if builtIn(kernel, name) {
				continue
			}
		}
		if err != nil {
			return nil, fmt.Errorf("module %s of kernel %s: %w", name, kernel.Release, err)
		}
		for _, path := range closure {
			if !slices.Contains(paths, path) {
				paths = append(paths, path)
			}
		}
	}
	return paths, nil
}

func builtIn(kernel Kernel, name string) bool {
	list, err := os.ReadFile(filepath.Join(kernel.Root, "lib/modules", kernel.Release, "modules.builtin"))
	return err == nil && bytes.Contains(list, []byte("/"+name+".ko\n"))
}

// existing returns those of the modules that the kernel has, as a file or built in.
func existing(kernel Kernel, names []string) []string {
	order, _ := os.ReadFile(filepath.Join(kernel.Root, "lib/modules", kernel.Release, "modules.order"))
	return slices.DeleteFunc(slices.Clone(names), func(name string) bool {
		return !bytes.Contains(order, []byte("/"+name+".")) && !builtIn(kernel, name)
	})
}

// readModule returns a module's ELF image. Its file may be compressed.
func readModule(path string) ([]byte, error) {
	data, err := os.ReadFile(path)
	if err != nil || strings.HasSuffix(path, ".ko") {
		return data, err
	}
	data, err = decompress(data)
	if err != nil {
		return nil, fmt.Errorf("unpack %s: %w", path, err)
	}
	return data, nil
}
