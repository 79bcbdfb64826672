// SPDX-License-Identifier: Apache-2.0

package nvmehost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/disk/rawio"
	"krping/agent/host/kernel"
)

const fabrics = "/dev/nvme-fabrics"

// Connect creates a controller, such as nvme0, and returns its name. It loads the modules that are
// needed. If the kernel fails to connect, the error is a *kernel.Failure with the cause and a fix.
func (s Sysfs) Connect(ctx context.Context, o Options) (name string, err error) {
	if err := kernel.Load(ctx, "nvme-fabrics", "nvme-"+o.Transport); err != nil {
		return "", err
	}
	log := kernel.LogFromNow()
	defer log.Close()
	f, err := os.OpenFile(fabrics, os.O_RDWR, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if _, err := f.WriteString(o.String()); err != nil {
		return "", explain(o, err, log.Lines())
	}
	answer, err := io.ReadAll(f)
	if err != nil {
		return "", fmt.Errorf("read the new controller's number: %w", err)
	}
	var instance int
	if _, err := fmt.Sscanf(string(answer), "instance=%d", &instance); err != nil {
		return "", fmt.Errorf("%s answered %q, want instance=N: %w", fabrics, answer, err)
	}
	name = fmt.Sprintf("nvme%d", instance)
	if ctx.Err() != nil { // the kernel could not be interrupted while it connected
		return "", errors.Join(ctx.Err(), s.Disconnect(name, true))
	}
	return name, nil
}

// Disks waits at most limit for the devices of a new controller's namespaces, and returns the
// controller. It is not an error if there are none.
func (s Sysfs) Disks(ctx context.Context, name string, limit time.Duration) (Controller, error) {
	deadline := time.Now().Add(limit)
	for {
		c, found := s.Controller(name)
		if !found {
			return c, fmt.Errorf("controller %s has disappeared: %w", name, unix.ENODEV)
		}
		if len(c.Namespaces) > 0 && haveDevices(c.Namespaces) || time.Now().After(deadline) {
			return c, nil
		}
		select {
		case <-ctx.Done():
			return c, ctx.Err()
		case <-time.After(20 * time.Millisecond):
		}
	}
}

func haveDevices(disks []Disk) bool {
	for _, d := range disks {
		if _, err := os.Stat(d.Device()); err != nil || d.Size == 0 || d.BlockSize == 0 {
			return false
		}
	}
	return true
}

// ErrMounted is the reason not to disconnect a disk with a mounted file system.
var ErrMounted = errors.New("is mounted")

// Disconnect removes a controller, and waits until it is gone. Unless force is set, it fails with EBUSY
// if the controller is the last path to a disk that is mounted.
func (s Sysfs) Disconnect(name string, force bool) error {
	c, found := s.Controller(name)
	if !found {
		return fmt.Errorf("no controller %s: %w", name, unix.ENODEV)
	}
	for _, d := range c.Namespaces {
		paths, _, err := s.Of(d.Device())
		if err != nil || force || len(paths) > 1 {
			continue
		}
		if where, err := rawio.MountedAt(d.Device()); err == nil && where != "" {
			return &kernel.Failure{
				What: "cannot disconnect " + name, Cause: fmt.Sprintf("%s %v at %s", d.Device(), ErrMounted, where), Fix: "umount " + where + "; or add --force: its I/O then fails", Err: unix.EBUSY,
			}
		}
	}
	path := filepath.Join(s.mount, "class/nvme", name, "delete_controller")
	if err := os.WriteFile(path, []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("disconnect %s: %w", name, err)
	}
	for deadline := time.Now().Add(30 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return nil
		}
	}
	return fmt.Errorf("disconnect %s: not gone after 30 s: %w", name, unix.ETIMEDOUT)
}
