// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// DefaultMount is where configfs is mounted.
const DefaultMount = "/sys/kernel/config"

// Tree is the target's directory in a mounted configfs.
type Tree struct {
	mount string
	fs    operations
}

// operations are the changes that configfs supports.
type operations interface {
	mkdir(path string) error
	rmdir(path string) error
	write(path, value string) error
	symlink(target, path string) error
	unlink(path string) error
}

// NewTree returns the target's directory in the configfs at mount. It does not access it.
func NewTree(mount string) *Tree { return &Tree{mount, configfs{}} }

func (t *Tree) path(names ...string) string {
	return filepath.Join(append([]string{t.mount, "nvmet"}, names...)...)
}

func (t *Tree) subsystem(nqn string, more ...string) string {
	return t.path(append([]string{"subsystems", nqn}, more...)...)
}

func (t *Tree) port(id int, more ...string) string {
	return t.path(append([]string{"ports", fmt.Sprint(id)}, more...)...)
}

func (t *Tree) host(nqn string) string { return t.path("hosts", nqn) }

type configfs struct{}

func (configfs) mkdir(path string) error           { return os.Mkdir(path, 0o755) }
func (configfs) rmdir(path string) error           { return os.Remove(path) }
func (configfs) symlink(target, path string) error { return os.Symlink(target, path) }
func (configfs) unlink(path string) error          { return os.Remove(path) }

func (configfs) write(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}

// names returns the sorted entries of a directory, or none if it does not exist.
func names(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	var list []string
	for _, e := range entries {
		list = append(list, e.Name())
	}
	return list, err
}

// change is a change of several steps that is made completely or not at all.
type change struct {
	*Tree
	ctx     context.Context
	undo    []func() error
	skipped []string // paths of attributes that this kernel does not have

	again    bool    // what exists stays as it is, and an error does not end the change
	failures []error // if again
}

// tolerate returns the error, or notes it if the change goes on after errors.
func (c *change) tolerate(err error) error {
	if err != nil && c.again {
		c.failures = append(c.failures, err)
		return nil
	}
	return err
}

// there reports whether something exists that need not be made again.
func (c *change) there(path string) bool { return c.again && exists(path) }

// apply runs the steps. If one fails, it undoes the completed ones.
func (t *Tree) apply(ctx context.Context, steps func(*change) error) (skipped []string, err error) {
	c := &change{Tree: t, ctx: ctx}
	if err := steps(c); err != nil {
		for _, undo := range slices.Backward(c.undo) {
			if failed := undo(); failed != nil {
				err = errors.Join(err, fmt.Errorf("undo: %w", failed))
			}
		}
		return nil, err
	}
	return c.skipped, nil
}

func (c *change) mkdir(path string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if err := c.fs.mkdir(path); err != nil {
		return err
	}
	c.undo = append(c.undo, func() error { return c.fs.rmdir(path) })
	return nil
}

func (c *change) symlink(target, path string) error {
	if err := c.ctx.Err(); err != nil {
		return err
	}
	if err := c.fs.symlink(target, path); err != nil {
		return err
	}
	c.undo = append(c.undo, func() error { return c.fs.unlink(path) })
	return nil
}

// set writes an attribute of a directory that existed before.
func (c *change) set(path, value string) error {
	before, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	if err := c.fs.write(path, value); err != nil {
		return err
	}
	c.undo = append(c.undo, func() error { return c.fs.write(path, strings.TrimSpace(string(before))) })
	return nil
}

// attributes writes the attributes of a group of a new directory: first the given ones in this order,
// then the others. Removing the directory undoes it. Attributes that this kernel does not have are
// skipped.
func (c *change) attributes(dir, group string, values Attributes, first ...string) error {
	order := slices.Clone(first)
	for name := range values {
		if !slices.Contains(first, name) {
			order = append(order, name)
		}
	}
	slices.Sort(order[len(first):])
	for _, name := range order {
		value, given := values[name]
		if !given {
			continue
		}
		path := filepath.Join(dir, group+"_"+name)
		if strings.ContainsRune(name, '/') || !exists(path) {
			c.skipped = append(c.skipped, path)
			continue
		}
		if err := c.fs.write(path, value); err != nil {
			if group == "dhchap" { // not the key
				return err
			}
			return fmt.Errorf("%w (%q)", err, value)
		}
	}
	return nil
}

// files writes those files of a new directory that do not have the value.
func (c *change) files(dir string, values Attributes) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		if now, err := attribute(dir, name); err == nil && now == values[name] {
			continue
		}
		if err := c.fs.write(filepath.Join(dir, name), values[name]); err != nil {
			return fmt.Errorf("%w (%q)", err, values[name])
		}
	}
	return nil
}
