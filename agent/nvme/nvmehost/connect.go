// SPDX-License-Identifier: Apache-2.0

package nvmehost

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
	"krping/bridge/inuse"
)

const fabrics = "/dev/nvme-fabrics"

// Connect creates a controller, such as nvme0, and returns its name. It loads the modules that are
// needed. If the kernel fails to connect, the error is a *kernel.Failure with the cause and a fix.
func (s Sysfs) Connect(ctx context.Context, o Options) (name string, err error) {
	if err := kernel.Load(ctx, "nvme-fabrics", "nvme-"+o.Transport); err != nil {
		return "", err
	}
	if has, err := os.ReadFile(fabrics); err == nil {
		if lacks := o.unsupported(string(has)); len(lacks) > 0 {
			return "", lacking(o, lacks)
		}
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
		return "", errors.Join(ctx.Err(), s.remove(name))
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

// Disconnect removes controllers, and waits until they are gone. Unless force is set, it fails with EBUSY,
// and removes none, if they are the last paths to a disk that is in use.
func (s Sysfs) Disconnect(controllers []Controller, force bool) error {
	if !force {
		if err := s.mayDisconnect(controllers); err != nil {
			return err
		}
	}
	for _, c := range controllers {
		if err := s.remove(c.Name); err != nil {
			return err
		}
	}
	return nil
}

// mayDisconnect returns an error if a disk in use would have no path left.
func (s Sysfs) mayDisconnect(controllers []Controller) error {
	for _, c := range controllers {
		for _, d := range c.Namespaces {
			paths, _, err := s.Of(d.Device())
			if err != nil { // it is gone
				continue
			}
			left := slices.DeleteFunc(paths, func(path Controller) bool {
				return path.State != stateLive || slices.ContainsFunc(controllers, func(c Controller) bool { return c.Name == path.Name })
			})
			if len(left) > 0 {
				continue
			}
			if used := inUse(d.Device()); used != nil {
				return &kernel.Failure{
					What: "cannot disconnect " + c.Name, Cause: used.Reasons(), Fix: used.Fix() + "; or add --force: its I/O then fails", Err: unix.EBUSY,
				}
			}
		}
	}
	return nil
}

// inUse returns the uses of a disk, or nil.
func inUse(device string) *inuse.Error {
	uses, err := inuse.Find(device)
	switch {
	case err != nil: // it is gone
		return nil
	case len(uses) > 0:
		return &inuse.Error{Path: device, Uses: uses}
	}
	checked := make(chan error, 1)
	go func() { checked <- inuse.Check(device) }()
	select {
	case err := <-checked:
		if used := new(inuse.Error); errors.As(err, &used) {
			return used
		}
	case <-time.After(openLimit):
	}
	return nil
}

// openLimit is how long the open of a disk may take whose target may be lost. Without it, what /proc and
// /sys tell must do.
const openLimit = 3 * time.Second

// remove removes a controller.
func (s Sysfs) remove(name string) error {
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
