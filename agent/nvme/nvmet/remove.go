// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
)

// Remove no longer serves a subsystem. What only it had goes with it: ports, allowed hosts, and
// null disks that were made here. Connections are closed; hosts try to connect again.
func (t *Tree) Remove(ctx context.Context, nqn string) error {
	config, err := t.Read()
	if err != nil {
		return err
	}
	s := config.subsystem(nqn)
	if s == nil {
		return fmt.Errorf("%w: %s", ErrUnknown, nqn)
	}
	if err := t.remove(ctx, config, *s); err != nil {
		return err
	}
	return t.removeNulls(*s)
}

// remove leaves the null disks.
func (t *Tree) remove(ctx context.Context, config Config, s Subsystem) error {
	for _, p := range config.Ports {
		if err := ctx.Err(); err != nil {
			return err
		}
		if !slices.Contains(p.Subsystems, s.NQN) {
			continue
		}
		if err := t.fs.unlink(t.port(p.ID, "subsystems", s.NQN)); err != nil {
			return err
		}
		if len(p.Subsystems) == 1 {
			if err := t.removePort(p); err != nil {
				return err
			}
		}
	}
	return t.removeSubsystem(config, s)
}

// Clear removes everything, also what other tools have set up.
func (t *Tree) Clear(ctx context.Context) error {
	config, err := t.Read()
	if err != nil {
		return err
	}
	if err := t.clear(ctx); err != nil {
		return err
	}
	return t.removeNulls(config.Subsystems...)
}

// clear leaves the null disks.
func (t *Tree) clear(ctx context.Context) error {
	for {
		config, err := t.Read()
		if err != nil {
			return err
		}
		if len(config.Subsystems) == 0 {
			return t.removeRest(config)
		}
		if err := t.remove(ctx, config, config.Subsystems[0]); err != nil {
			return err
		}
	}
}

// removeRest removes ports and hosts that no subsystem is left for.
func (t *Tree) removeRest(config Config) error {
	for _, p := range config.Ports {
		if err := t.removePort(p); err != nil {
			return err
		}
	}
	for _, h := range config.Hosts {
		if err := t.fs.rmdir(t.host(h.NQN)); err != nil {
			return err
		}
	}
	return nil
}

// removePort removes a port that serves nothing any more.
func (t *Tree) removePort(p Port) error {
	dir := t.port(p.ID)
	for _, r := range p.Referrals {
		if err := t.fs.rmdir(filepath.Join(dir, "referrals", r.Name)); err != nil {
			return err
		}
	}
	for _, g := range p.ANAGroups {
		if g.ID == 1 {
			continue // it goes with the port
		}
		if err := t.fs.rmdir(filepath.Join(dir, "ana_groups", strconv.Itoa(g.ID))); err != nil {
			return err
		}
	}
	return t.fs.rmdir(dir)
}

// removeSubsystem removes one that no port serves any more.
func (t *Tree) removeSubsystem(config Config, s Subsystem) error {
	for _, n := range s.Namespaces {
		if err := t.fs.rmdir(t.subsystem(s.NQN, "namespaces", strconv.Itoa(n.NSID))); err != nil {
			return err
		}
	}
	for _, nqn := range s.AllowedHosts {
		if err := t.fs.unlink(t.subsystem(s.NQN, "allowed_hosts", nqn)); err != nil {
			return err
		}
	}
	if err := t.fs.rmdir(t.subsystem(s.NQN)); err != nil {
		return err
	}
	for _, nqn := range s.AllowedHosts {
		others := func(o Subsystem) bool { return o.NQN != s.NQN && slices.Contains(o.AllowedHosts, nqn) }
		if slices.ContainsFunc(config.Subsystems, others) {
			continue
		}
		if err := t.fs.rmdir(t.host(nqn)); err != nil {
			return err
		}
	}
	return nil
}

// removeNulls removes the null disks of subsystems that are gone.
func (t *Tree) removeNulls(subsystems ...Subsystem) error {
	for _, s := range subsystems {
		for _, n := range s.Namespaces {
			if err := t.removeNull(n.Device["path"]); err != nil {
				return err
			}
		}
	}
	return nil
}
