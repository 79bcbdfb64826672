// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
)

// load loads the modules that serving s needs.
func (t *Tree) load(ctx context.Context, s Serve) error {
	var transports []string
	if s.Addr.IsValid() {
		transports = []string{s.Transport}
	}
	if err := t.loadFor(ctx, transports); err != nil || s.Null == 0 {
		return err
	}
	return t.loadNull(ctx)
}

// loadFor loads nvmet and the modules of the transports, and mounts configfs. It does nothing in tests.
func (t *Tree) loadFor(ctx context.Context, transports []string) error {
	if _, real := t.fs.(configfs); !real {
		return nil
	}
	if err := t.mountConfigfs(ctx); err != nil {
		return err
	}
	modules := []string{"nvmet"}
	for _, transport := range transports {
		switch transport {
		case "": // the kernel will report it
		case "loop":
			modules = append(modules, "nvme-loop")
		default:
			modules = append(modules, "nvmet-"+transport)
		}
	}
	if err := kernel.Load(ctx, modules...); err != nil {
		return err
	}
	if !exists(t.path()) {
		return &kernel.Failure{
			What: fmt.Sprintf("%s does not exist", t.path()), Cause: "nvmet is loaded, but configfs is not mounted at " + t.mount,
			Fix: "mount -t configfs none " + t.mount, Err: kernel.ErrNoModule,
		}
	}
	return nil
}

// mountConfigfs mounts configfs unless it is mounted.
func (t *Tree) mountConfigfs(ctx context.Context) error {
	if err := kernel.Load(ctx, "configfs"); err != nil {
		return err
	}
	var fs unix.Statfs_t
	const magic = 0x62656570 // CONFIGFS_MAGIC
	if err := unix.Statfs(t.mount, &fs); err == nil && int64(fs.Type) == magic {
		return nil
	}
	if err := unix.Mount("none", t.mount, "configfs", 0, ""); err != nil {
		return fmt.Errorf("mount configfs on %s: %w", t.mount, os.NewSyscallError("mount", err))
	}
	return nil
}
