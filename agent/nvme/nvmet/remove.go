// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
)

// Remove removes a subsystem, with the ports and allowed hosts that no other subsystem uses, and the
// disks in memory that Add has added for it. Connections are closed; hosts try to reconnect. A host
// with a DH-HMAC-CHAP key stays: made anew without its key, it would not have to authenticate.
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

// remove is Remove without the disks in memory.
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

// Clear removes everything, including what other programs have added.
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

// clear is Clear without the disks in memory.
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

// removeRest removes ports and hosts after all subsystems.
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

// removePort removes a port that serves nothing.
func (t *Tree) removePort(p Port) error {
	dir := t.port(p.ID)
	for _, r := range p.Referrals {
		if err := t.fs.rmdir(filepath.Join(dir, "referrals", r.Name)); err != nil {
			return err
		}
	}
	for _, g := range p.ANAGroups {
		if g.ID == 1 {
			continue // removed with the port
		}
		if err := t.fs.rmdir(filepath.Join(dir, "ana_groups", strconv.Itoa(g.ID))); err != nil {
			return err
		}
	}
	return t.fs.rmdir(dir)
}

// removeSubsystem removes a subsystem that no port serves.
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
		if slices.ContainsFunc(config.Subsystems, others) || config.host(nqn).hasKey() {
			continue
		}
		if err := t.fs.rmdir(t.host(nqn)); err != nil {
			return err
		}
	}
	return nil
}

// removeNulls removes the disks in memory of removed subsystems.
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
