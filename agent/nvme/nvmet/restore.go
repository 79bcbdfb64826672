// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"krping/agent/host/kernel"
)

// Restore adds the configuration of a save file to the current one, or replaces it if clear is set. It
// returns the attributes that were skipped because this kernel does not have them. If it fails, it
// restores the previous configuration; with clear, connections have been closed nevertheless.
func (t *Tree) Restore(ctx context.Context, c Config, clear bool) (skipped []string, err error) {
	if err := c.check(); err != nil {
		return nil, err
	}
	before, err := t.Read()
	if err != nil {
		return nil, err
	}
	if !clear {
		if err := c.conflict(before); err != nil {
			return nil, err
		}
	}
	if err := t.loadFor(ctx, c.transports()); err != nil {
		return nil, err
	}
	if clear {
		if err := t.clear(ctx); err != nil {
			return nil, err
		}
	}
	skipped, err = t.apply(ctx, func(change *change) error { return change.addAll(c) })
	switch {
	case err != nil && clear:
		_, again := t.apply(context.WithoutCancel(ctx), func(change *change) error { return change.addAll(before) })
		err = errors.Join(err, again)
	case clear:
		unused := slices.DeleteFunc(before.Subsystems, c.hasDisksOf)
		err = t.removeNulls(unused...)
	}
	return skipped, err
}

// hasDisksOf reports whether the configuration serves any disk of the subsystem.
func (c Config) hasDisksOf(other Subsystem) bool {
	for _, s := range c.Subsystems {
		for _, n := range s.Namespaces {
			if slices.ContainsFunc(other.Namespaces, func(o Namespace) bool { return o.Device["path"] == n.Device["path"] }) {
				return true
			}
		}
	}
	return false
}

func (c *change) addAll(config Config) error {
	for _, h := range config.Hosts {
		if err := c.addHost(h.NQN); err != nil {
			return err
		}
	}
	for _, s := range config.Subsystems {
		if err := c.addSubsystem(s); err != nil {
			return fmt.Errorf("subsystem %s: %w", s.NQN, err)
		}
	}
	for _, p := range config.Ports {
		if err := c.addPort(p); err != nil {
			return fmt.Errorf("port %d: %w", p.ID, err)
		}
	}
	return nil
}

// conflict returns an error if a subsystem or port of the save file exists.
func (c Config) conflict(there Config) error {
	for _, s := range c.Subsystems {
		if there.subsystem(s.NQN) != nil {
			return alreadyThere("subsystem " + s.NQN)
		}
	}
	for _, p := range c.Ports {
		if slices.ContainsFunc(there.Ports, func(o Port) bool { return o.ID == p.ID }) {
			return alreadyThere(fmt.Sprintf("port %d", p.ID))
		}
	}
	return nil
}

func alreadyThere(what string) error {
	return &kernel.Failure{
		What: what, Cause: ErrExists.Error(), Fix: "krpingctl nvme target remove it first; or add --clear, which removes everything first", Err: ErrExists,
	}
}

func (c Config) transports() []string {
	var all []string
	for _, p := range c.Ports {
		if t := p.Addr["trtype"]; len(p.Subsystems) > 0 && !slices.Contains(all, t) {
			all = append(all, t)
		}
	}
	return all
}
