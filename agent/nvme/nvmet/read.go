// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// Read returns the current configuration. It is empty if nvmet is not loaded.
func (t *Tree) Read() (Config, error) {
	c := Config{Hosts: []Host{}, Ports: []Port{}, Subsystems: []Subsystem{}}
	var err error
	if c.More, err = readMore(t.path()); err != nil {
		return c, err
	}
	hosts, err := names(t.path("hosts"))
	if err != nil {
		return c, err
	}
	for _, nqn := range hosts {
		dhchap, err := readGroup(t.host(nqn), "dhchap")
		if err != nil {
			return c, fmt.Errorf("host %s: %w", nqn, err)
		}
		if dhchap["key"] == "" { // the others are the kernel's defaults
			dhchap = nil
		}
		c.Hosts = append(c.Hosts, Host{DHChap: dhchap, NQN: nqn})
	}
	subsystems, err := names(t.path("subsystems"))
	if err != nil {
		return c, err
	}
	for _, nqn := range subsystems {
		s, err := t.readSubsystem(nqn)
		if err != nil {
			return c, fmt.Errorf("subsystem %s: %w", nqn, err)
		}
		c.Subsystems = append(c.Subsystems, s)
	}
	ids, err := numbers(t.path("ports"))
	if err != nil {
		return c, err
	}
	for _, id := range ids {
		p, err := t.readPort(id)
		if err != nil {
			return c, fmt.Errorf("port %d: %w", id, err)
		}
		c.Ports = append(c.Ports, p)
	}
	return c, nil
}

func (t *Tree) readSubsystem(nqn string) (Subsystem, error) {
	dir := t.subsystem(nqn)
	s := Subsystem{NQN: nqn, Namespaces: []Namespace{}}
	var err error
	if s.AllowedHosts, err = list(filepath.Join(dir, "allowed_hosts")); err != nil {
		return s, err
	}
	if s.Attr, err = readGroup(dir, "attr"); err != nil {
		return s, err
	}
	if s.More, err = readMore(dir, "attr_"); err != nil {
		return s, err
	}
	ids, err := numbers(filepath.Join(dir, "namespaces"))
	if err != nil {
		return s, err
	}
	for _, id := range ids {
		n := Namespace{NSID: id}
		dir := filepath.Join(dir, "namespaces", strconv.Itoa(id))
		if n.Device, err = readGroup(dir, "device"); err != nil {
			return s, err
		}
		enable, err1 := attribute(dir, "enable")
		group, err2 := attribute(dir, "ana_grpid")
		if err := errors.Join(err1, err2); err != nil {
			return s, err
		}
		n.Enable = enable == "1"
		n.ANAGroup, _ = strconv.Atoi(group) // the kernel prints a number
		if n.More, err = readMore(dir, "device_", "ana_grpid"); err != nil {
			return s, err
		}
		s.Namespaces = append(s.Namespaces, n)
	}
	passthru := filepath.Join(dir, "passthru")
	if enable, err := attribute(passthru, "enable"); err == nil {
		device, err1 := readGroup(passthru, "device")
		more, err2 := readMore(passthru, "device_")
		if err := errors.Join(err1, err2); err != nil {
			return s, err
		}
		if device["path"] != "" {
			s.Passthru = []Passthru{{Device: device, Enable: enable == "1", More: more}}
		}
	}
	return s, nil
}

func (t *Tree) readPort(id int) (Port, error) {
	dir := t.port(id)
	p := Port{ID: id, ANAGroups: []ANAGroup{}, Referrals: []Referral{}}
	var err error
	if p.Addr, err = readGroup(dir, "addr"); err != nil {
		return p, err
	}
	if p.Param, err = readGroup(dir, "param"); err != nil {
		return p, err
	}
	if p.More, err = readMore(dir, "addr_", "param_"); err != nil {
		return p, err
	}
	if p.Subsystems, err = list(filepath.Join(dir, "subsystems")); err != nil {
		return p, err
	}
	groups, err := numbers(filepath.Join(dir, "ana_groups"))
	if err != nil {
		return p, err
	}
	for _, id := range groups {
		ana, err := readGroup(filepath.Join(dir, "ana_groups", strconv.Itoa(id)), "ana")
		if err != nil {
			return p, err
		}
		p.ANAGroups = append(p.ANAGroups, ANAGroup{ana, id})
	}
	referrals, err := names(filepath.Join(dir, "referrals"))
	if err != nil {
		return p, err
	}
	for _, name := range referrals {
		dir := filepath.Join(dir, "referrals", name)
		addr, err1 := readGroup(dir, "addr")
		enable, err2 := attribute(dir, "enable")
		if err := errors.Join(err1, err2); err != nil {
			return p, err
		}
		p.Referrals = append(p.Referrals, Referral{Addr: addr, Enable: enable == "1", Name: name})
	}
	return p, nil
}

// list is like names, but returns an empty slice instead of nil, for JSON.
func list(dir string) ([]string, error) {
	all, err := names(dir)
	return append([]string{}, all...), err
}

// numbers returns the entries of a directory that are numbers.
func numbers(dir string) ([]int, error) {
	all, err := names(dir)
	var ids []int
	for _, name := range all {
		if id, err := strconv.Atoi(name); err == nil {
			ids = append(ids, id)
		}
	}
	return ids, err
}

// readGroup reads the attributes of a group.
func readGroup(dir, group string) (Attributes, error) {
	values, err := readWritable(dir, func(name string) bool { return strings.HasPrefix(name, group+"_") })
	byName := Attributes{}
	for name, value := range values {
		byName[strings.TrimPrefix(name, group+"_")] = value
	}
	return byName, err
}

// readMore reads the attributes that have none of the prefixes, except for enable. It returns nil if
// there are none.
func readMore(dir string, prefixes ...string) (Attributes, error) {
	if !exists(dir) {
		return nil, nil
	}
	values, err := readWritable(dir, func(name string) bool {
		return name != "enable" && !slices.ContainsFunc(prefixes, func(p string) bool { return strings.HasPrefix(name, p) })
	})
	if len(values) == 0 {
		return nil, err
	}
	return values, err
}

// readWritable reads the wanted attributes that can be read and written.
func readWritable(dir string, wanted func(name string) bool) (Attributes, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	values := Attributes{}
	for _, e := range entries {
		info, err := e.Info()
		const readWrite = 0o600
		if !wanted(e.Name()) || err != nil || !info.Mode().IsRegular() || info.Mode()&readWrite != readWrite {
			continue
		}
		value, err := attribute(dir, e.Name())
		if err != nil {
			return nil, err
		}
		values[e.Name()] = value
	}
	return values, nil
}

func attribute(dir, name string) (string, error) {
	data, err := os.ReadFile(filepath.Join(dir, name))
	value := strings.TrimSpace(string(data))
	if value == "(null)" { // the kernel's text for a path that is not set
		value = ""
	}
	return value, err
}
