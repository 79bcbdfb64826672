// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"

	"krping/agent/host/kernel"
)

// Restore adds the configuration of a save file to the current one, or replaces it if clear is set. It
// returns the attributes that were skipped because this kernel does not have them. If it fails or ctx
// ends, it restores the previous configuration; with clear, connections have been closed nevertheless.
// A host that has a DH-HMAC-CHAP key keeps it if the file has none.
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
	if !clear {
		return t.apply(ctx, func(change *change) error { return change.addAll(c) })
	}
	c = c.withKeysOf(before)
	if err = t.clear(ctx); err == nil {
		skipped, err = t.apply(ctx, func(change *change) error { return change.addAll(c) })
	}
	if err != nil {
		return nil, errors.Join(err, t.putBack(ctx, before))
	}
	unused := slices.DeleteFunc(before.Subsystems, c.hasDisksOf)
	return skipped, t.removeNulls(unused...)
}

// putBack adds what is missing of a configuration that Read has returned, even after ctx has ended. It
// goes on after an error, as each part that is served again helps.
func (t *Tree) putBack(ctx context.Context, before Config) error {
	c := &change{Tree: t, ctx: context.WithoutCancel(ctx), again: true}
	err := c.addAll(before)
	if err = errors.Join(append(c.failures, err)...); err != nil {
		return fmt.Errorf("restore the previous configuration: %w", err)
	}
	return nil
}

// withKeysOf returns the configuration with the keys of another one for the hosts that have none.
func (c Config) withKeysOf(other Config) Config {
	c.Hosts = slices.Clone(c.Hosts)
	for i, h := range c.Hosts {
		if !h.hasKey() {
			c.Hosts[i].DHChap = other.host(h.NQN).DHChap
		}
	}
	return c
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
	if err := c.tolerate(c.files(c.path(), config.More, c.set)); err != nil {
		return err
	}
	for _, h := range config.Hosts {
		if err := c.tolerate(c.addHost(h)); err != nil {
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

// conflict returns an error if a subsystem or port of the save file exists, or a host with another key.
func (c Config) conflict(there Config) error {
	for _, h := range c.Hosts {
		exists := slices.ContainsFunc(there.Hosts, func(o Host) bool { return o.NQN == h.NQN })
		if exists && h.hasKey() && !maps.Equal(h.DHChap, there.host(h.NQN).DHChap) {
			return &kernel.Failure{
				What: "host " + h.NQN, Cause: "exists already, and its DH-HMAC-CHAP key is not the one of the file", Err: ErrExists,
				Fix: "write the key that is right into /sys/kernel/config/nvmet/hosts/" + h.NQN + "/dhchap_key and into the file; or add --clear, which removes everything first",
			}
		}
	}
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
