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

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
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
			if err := c.skip(path, group+"_"+name, value); err != nil {
				return err
			}
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

// files writes those files of a directory that do not have the value, by write.
func (c *change) files(dir string, values Attributes, write func(path, value string) error) error {
	for _, name := range slices.Sorted(maps.Keys(values)) {
		path := filepath.Join(dir, name)
		if checkEntry(name) != nil || !exists(path) {
			if err := c.skip(path, name, values[name]); err != nil {
				return err
			}
			continue
		}
		if now, err := attribute(dir, name); err == nil && now == values[name] {
			continue
		}
		if err := write(path, values[name]); err != nil {
			return fmt.Errorf("%w (%q)", err, values[name])
		}
	}
	return nil
}

// skip notes an attribute that this kernel does not have. It is an error if the target would be less
// secure without it. Nothing is lost if it is off.
func (c *change) skip(path, name, value string) error {
	off := slices.Contains([]string{"", "0", "no", "off", "none"}, value)
	switch {
	case isSecurity(name, value) && !off:
		return &kernel.Failure{
			What: "cannot restore " + path, Cause: "this kernel has no such attribute, and without it the target would be less secure",
			Fix: "use a newer kernel; or remove the attribute from the file, if that is what you want", Err: unix.EOPNOTSUPP,
		}
	case !off || strings.HasPrefix(name, "attr_") || strings.HasPrefix(name, "addr_") || strings.HasPrefix(name, "param_"):
		c.skipped = append(c.skipped, path)
	}
	return nil
}

// isSecurity reports whether an attribute with that value limits who may connect, or encrypts.
func isSecurity(name, value string) bool {
	switch name {
	case "addr_treq": // whether hosts must use what tsas says
		return value == "required"
	case "addr_tsas":
		return strings.Contains(value, "tls")
	}
	return slices.ContainsFunc([]string{"dhchap", "key", "psk", "tls", "auth", "allow", "secur"}, func(word string) bool { return strings.Contains(name, word) })
}
