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

// Connect makes a controller, and returns its name. It loads the modules that are needed. A
// failure is a *kernel.Failure that says why.
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
		return "", fmt.Errorf("%s answered %q: no instance: %w", fabrics, answer, err)
	}
	name = fmt.Sprintf("nvme%d", instance)
	if ctx.Err() != nil { // the kernel cannot be interrupted meanwhile
		return "", errors.Join(ctx.Err(), s.Disconnect(name, true))
	}
	return name, nil
}

// Disks waits until a new controller's namespaces have devices, at most so long, and returns
// the controller. One without a namespace is no error.
func (s Sysfs) Disks(ctx context.Context, name string, limit time.Duration) (Controller, error) {
	deadline := time.Now().Add(limit)
	for {
		c, found := s.Controller(name)
		if !found {
			return c, fmt.Errorf("controller %s is gone again: %w", name, unix.ENODEV)
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

// ErrMounted is of a disk that would be taken from under a file system.
var ErrMounted = errors.New("is mounted")

// Disconnect removes a controller, and waits for that. Unless forced, it does not while it is
// the last way to a disk that is mounted.
func (s Sysfs) Disconnect(name string, force bool) error {
	c, found := s.Controller(name)
	if !found {
		return fmt.Errorf("no controller %s: %w", name, unix.ENODEV)
	}
	for _, d := range c.Namespaces {
		ways, _, err := s.Of(d.Device())
		if err != nil || force || len(ways) > 1 {
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
	return fmt.Errorf("disconnect %s: it is still there after 30 s: %w", name, unix.ETIMEDOUT)
}

// Find returns the controllers of a subsystem.
func (s Sysfs) Find(nqn string) ([]Controller, error) {
	all, err := s.Controllers()
	var found []Controller
	for _, c := range all {
		if c.NQN == nqn {
			found = append(found, c)
		}
	}
	return found, err
}
