// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"krping/agent/host/kernel"
)

// Restore sets up what a save file has, beside what is there, or instead of it with clear. It
// returns the attributes that were left out, because this kernel does not have them. If it
// fails the target is as it was before, with new connections.
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
	skipped, err = t.make(ctx, func(change *change) error { return change.addAll(c) })
	switch {
	case err != nil && clear:
		_, again := t.make(context.WithoutCancel(ctx), func(change *change) error { return change.addAll(before) })
		err = errors.Join(err, again)
	case clear:
		unused := slices.DeleteFunc(before.Subsystems, c.hasDisksOf)
		err = t.removeNulls(unused...)
	}
	return skipped, err
}

// hasDisksOf says whether a subsystem's disks are served still.
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

// conflict finds what a save file has that is there already.
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
		What: what, Cause: ErrExists.Error(), Fix: "krpingctl nvme target remove, for what is in the way; or --clear, which removes everything first", Err: ErrExists,
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
