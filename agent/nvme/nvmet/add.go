// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"

	"krping/agent/host/kernel"
)

// The transports of the target.
const (
	RDMA = "rdma"
	TCP  = "tcp"
)

// MaxInline is the maximum in-capsule data size of nvmet over RDMA, in bytes, with pages of 4 KiB.
const MaxInline = 16384

// Serve describes what to serve, where and to whom. If neither Device nor Null is set, the subsystem
// must exist.
type Serve struct {
	NQN        string
	Device     string // path of a block device or a file
	Null       int64  // size in bytes of a new disk in memory
	Transport  string
	Addr       netip.AddrPort // not valid: no additional address
	Inline     *int           // in-capsule data size in bytes; nil: the port's or the kernel's
	AllowHosts []string       // NQNs; none: any host
}

// Errors about a subsystem that exists, or does not.
var (
	ErrExists  = errors.New("exists already")
	ErrUnknown = errors.New("no such subsystem")
)

// Add serves a new subsystem with one namespace, or an existing one at another address or to more hosts.
// It loads the modules that are needed. If it fails, nothing has changed.
func (t *Tree) Add(ctx context.Context, s Serve) error {
	config, err := t.Read()
	if err != nil {
		return err
	}
	fresh := s.Device != "" || s.Null != 0
	known := config.subsystem(s.NQN)
	switch {
	case fresh && known != nil:
		return fmt.Errorf("subsystem %s %w", s.NQN, ErrExists)
	case !fresh && known == nil:
		return fmt.Errorf("%w: %s", ErrUnknown, s.NQN)
	}
	if s.Device != "" {
		if s.Device, err = filepath.Abs(s.Device); err != nil {
			return err
		}
	}
	if err := t.load(ctx, s); err != nil {
		return err
	}
	_, err = t.apply(ctx, func(c *change) error {
		for _, nqn := range s.AllowHosts {
			if err := c.addHost(Host{NQN: nqn}); err != nil {
				return err
			}
		}
		if fresh {
			err = c.addFresh(s)
		} else {
			err = c.allow(*known, s.AllowHosts)
		}
		if err != nil || !s.Addr.IsValid() {
			return err
		}
		return c.serveAt(config.Ports, s)
	})
	return err
}

// addFresh adds a new subsystem with its disk.
func (c *change) addFresh(s Serve) error {
	n := Namespace{NSID: 1, Enable: true, Device: Attributes{"path": s.Device}}
	if uuid := StableUUID(s.NQN, s.Device); uuid != "" { // else the kernel generates a new one
		n.Device["uuid"] = uuid
	}
	if s.Null != 0 {
		device, err := c.addNull(s.Null)
		if err != nil {
			return err
		}
		n.Device = Attributes{"path": device} // new data: the kernel generates a new UUID
	}
	anyHost := "1"
	if len(s.AllowHosts) > 0 {
		anyHost = "0"
	}
	return c.addSubsystem(Subsystem{
		NQN: s.NQN, AllowedHosts: s.AllowHosts, Namespaces: []Namespace{n},
		Attr: Attributes{"allow_any_host": anyHost, "serial": StableSerial(s.NQN)},
	})
}

// StableSerial returns the serial number of a subsystem, 20 hexadecimal digits that depend on the NQN.
func StableSerial(nqn string) string {
	sum := sha256.Sum256([]byte(nqn))
	return fmt.Sprintf("%x", sum[:10])
}

// host returns the host of that NQN, or one without key.
func (c Config) host(nqn string) Host {
	i := slices.IndexFunc(c.Hosts, func(h Host) bool { return h.NQN == nqn })
	if i < 0 {
		return Host{NQN: nqn}
	}
	return c.Hosts[i]
}

// addHost adds a host with its keys. One that exists stays as it is.
func (c *change) addHost(h Host) error {
	dir := c.host(h.NQN)
	if exists(dir) {
		return nil
	}
	if err := c.mkdir(dir); err != nil {
		return err
	}
	if !h.hasKey() {
		return nil
	}
	if !exists(filepath.Join(dir, "dhchap_key")) {
		return &kernel.Failure{
			What: "cannot add host " + h.NQN, Cause: "it has a DH-HMAC-CHAP key, and this kernel cannot authenticate hosts",
			Fix: "use a kernel with CONFIG_NVME_TARGET_AUTH; or remove the host's dhchap from the file, and anyone with its NQN may connect", Err: unix.EOPNOTSUPP,
		}
	}
	// The kernel accepts a DH group and a hash with the key, and no empty key.
	dhchap := maps.Clone(h.DHChap)
	maps.DeleteFunc(dhchap, func(_, value string) bool { return value == "" })
	if err := c.attributes(dir, "dhchap", dhchap, "key", "ctrl_key"); err != nil {
		return fmt.Errorf("host %s: %w", h.NQN, err)
	}
	return nil
}

// allow adds hosts to an existing subsystem. If there are any, it no longer allows any host.
func (c *change) allow(s Subsystem, nqns []string) error {
	if len(nqns) > 0 && s.Attr["allow_any_host"] == "1" {
		if err := c.set(c.subsystem(s.NQN, "attr_allow_any_host"), "0"); err != nil {
			return err
		}
	}
	for _, nqn := range nqns {
		if slices.Contains(s.AllowedHosts, nqn) {
			continue
		}
		if err := c.symlink(c.host(nqn), c.subsystem(s.NQN, "allowed_hosts", nqn)); err != nil {
			return err
		}
	}
	return nil
}

// serveAt serves a subsystem at an address, through the port with that address or a new one.
func (c *change) serveAt(ports []Port, s Serve) error {
	want := Port{Addr: address(s), Subsystems: []string{s.NQN}, Param: Attributes{}}
	if s.Inline != nil {
		want.Param["inline_data_size"] = strconv.Itoa(*s.Inline)
	}
	free := 1
	for _, p := range ports {
		if p.ID == free {
			free++
		}
		if !p.at(want.Addr) {
			continue
		}
		if have := p.Param["inline_data_size"]; s.Inline != nil && have != want.Param["inline_data_size"] {
			return fmt.Errorf("port %d serves %v:%s with an inline size of %s, which cannot be changed: %w", p.ID, s.Addr.Addr(), p.Addr["trsvcid"], have, unix.EBUSY)
		}
		if slices.Contains(p.Subsystems, s.NQN) {
			return fmt.Errorf("subsystem %s %w at %s %v", s.NQN, ErrExists, s.Transport, s.Addr)
		}
		return c.link(p, s.NQN)
	}
	for slices.ContainsFunc(ports, func(p Port) bool { return p.ID == free }) {
		free++
	}
	want.ID = free
	return c.addPort(want)
}

// address returns the attributes of an address.
func address(s Serve) Attributes {
	family := "ipv4"
	if s.Addr.Addr().Is6() {
		family = "ipv6"
	}
	return Attributes{
		"trtype": s.Transport, "adrfam": family, "traddr": s.Addr.Addr().String(), "trsvcid": strconv.Itoa(int(s.Addr.Port())),
	}
}

// at reports whether a port has that address.
func (p Port) at(addr Attributes) bool {
	for name, value := range addr {
		if p.Addr[name] != value {
			return false
		}
	}
	return true
}

func (c Config) subsystem(nqn string) *Subsystem {
	i := slices.IndexFunc(c.Subsystems, func(s Subsystem) bool { return s.NQN == nqn })
	if i < 0 {
		return nil
	}
	return &c.Subsystems[i]
}

func (c *change) addSubsystem(s Subsystem) error {
	dir := c.subsystem(s.NQN)
	if !c.there(dir) {
		if err := c.mkdir(dir); err != nil {
			return c.tolerate(err)
		}
		// The kernel accepts allowed hosts only if allow_any_host is 0.
		if err := c.tolerate(c.attributes(dir, "attr", s.Attr, "allow_any_host")); err != nil {
			return err
		}
		if err := c.tolerate(c.files(dir, s.More, c.fs.write)); err != nil {
			return err
		}
	}
	for _, nqn := range s.AllowedHosts {
		link := filepath.Join(dir, "allowed_hosts", nqn)
		if c.there(link) {
			continue
		}
		if err := c.tolerate(c.symlink(c.host(nqn), link)); err != nil {
			return err
		}
	}
	for _, n := range s.Namespaces {
		if err := c.tolerate(c.addNamespace(s.NQN, n)); err != nil {
			return err
		}
	}
	for _, p := range s.Passthru {
		if err := c.tolerate(c.addPassthru(filepath.Join(dir, "passthru"), p)); err != nil {
			return err
		}
	}
	return nil
}

// addPassthru has a new subsystem pass a controller through.
func (c *change) addPassthru(dir string, p Passthru) error {
	if enabled, err := attribute(dir, "enable"); err == nil && enabled == "1" {
		return nil // it was before
	}
	if p.Enable {
		if !exists(dir) {
			return &kernel.Failure{
				What: "cannot pass through " + p.Device["path"], Cause: "this kernel's target passes no controllers through",
				Fix: "use a kernel with CONFIG_NVME_TARGET_PASSTHRU", Err: unix.EOPNOTSUPP,
			}
		}
		if err := c.checkController(p.Device["path"]); err != nil {
			return err
		}
	}
	if err := c.attributes(dir, "device", p.Device); err != nil {
		return err
	}
	if err := c.files(dir, p.More, c.fs.write); err != nil {
		return err
	}
	if !p.Enable {
		return nil
	}
	return c.fs.write(filepath.Join(dir, "enable"), "1")
}

func (c *change) addNamespace(nqn string, n Namespace) error {
	dir := c.subsystem(nqn, "namespaces", strconv.Itoa(n.NSID))
	if c.there(dir) {
		return nil
	}
	path := n.Device["path"]
	more := maps.Clone(n.More)
	if !c.again && bool(n.Enable) && !isNull(path) {
		if err := n.checkIdentity(); err != nil {
			return err
		}
		buffered, err := c.checkDevice(path)
		if err != nil {
			return err
		}
		if buffered {
			if more == nil {
				more = Attributes{}
			}
			more["buffered_io"] = "1"
		}
	}
	if err := c.mkdir(dir); err != nil {
		return err
	}
	if err := c.attributes(dir, "device", n.Device); err != nil {
		return err
	}
	if n.ANAGroup > 1 {
		if err := c.fs.write(filepath.Join(dir, "ana_grpid"), strconv.Itoa(n.ANAGroup)); err != nil {
			return err
		}
	}
	if err := c.files(dir, more, c.fs.write); err != nil {
		return err
	}
	if !n.Enable {
		return nil
	}
	log := kernel.LogFromNow()
	defer log.Close()
	if err := c.fs.write(filepath.Join(dir, "enable"), "1"); err != nil {
		return explainEnable(path, err, log.Lines())
	}
	return nil
}

func (c *change) addPort(p Port) error {
	dir := c.port(p.ID)
	if !c.there(dir) {
		if err := c.mkdir(dir); err != nil {
			return c.tolerate(err)
		}
		// The kernel checks the others against trtype, and treq against tsas.
		if err := c.tolerate(c.attributes(dir, "addr", p.Addr, "trtype", "adrfam", "traddr", "trsvcid", "tsas", "treq")); err != nil {
			return err
		}
		if err := c.tolerate(c.attributes(dir, "param", p.Param)); err != nil {
			return err
		}
		if err := c.tolerate(c.files(dir, p.More, c.fs.write)); err != nil {
			return err
		}
	}
	for _, g := range p.ANAGroups {
		group := filepath.Join(dir, "ana_groups", strconv.Itoa(g.ID))
		if !exists(group) { // the kernel has created group 1
			if err := c.mkdir(group); err != nil {
				return c.tolerate(err)
			}
		}
		if err := c.tolerate(c.attributes(group, "ana", g.ANA)); err != nil {
			return err
		}
	}
	for _, r := range p.Referrals {
		if err := c.tolerate(c.addReferral(filepath.Join(dir, "referrals", r.Name), r)); err != nil {
			return err
		}
	}
	for _, nqn := range p.Subsystems {
		if c.there(c.port(p.ID, "subsystems", nqn)) {
			continue
		}
		if err := c.tolerate(c.link(p, nqn)); err != nil {
			return err
		}
	}
	return nil
}

func (c *change) addReferral(dir string, r Referral) error {
	if c.there(dir) {
		return nil
	}
	if err := c.mkdir(dir); err != nil {
		return err
	}
	if err := c.attributes(dir, "addr", r.Addr, "trtype"); err != nil {
		return err
	}
	if !r.Enable {
		return nil
	}
	return c.fs.write(filepath.Join(dir, "enable"), "1")
}

// link serves a subsystem at a port. The first one makes the port listen.
func (c *change) link(p Port, nqn string) error {
	log := kernel.LogFromNow()
	defer log.Close()
	err := c.symlink(c.subsystem(nqn), c.port(p.ID, "subsystems", nqn))
	if errors.Is(err, context.Canceled) {
		return err
	}
	if err != nil {
		return c.explainListen(p, err, log.Lines())
	}
	return nil
}
