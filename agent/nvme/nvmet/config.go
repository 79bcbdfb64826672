// SPDX-License-Identifier: Apache-2.0

// Package nvmet configures the kernel's NVMe over Fabrics target through configfs
// (drivers/nvme/target/configfs.c), and reads and writes nvmetcli's save files. A change that fails is
// undone.
package nvmet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"krping/bridge/atomicfile"
	"krping/bridge/inuse"
)

// Config is the configuration of the whole target, in the JSON of nvmetcli's save files.
type Config struct {
	Hosts      []Host      `json:"hosts"`
	Ports      []Port      `json:"ports"`
	Subsystems []Subsystem `json:"subsystems"`
	More       Attributes  `json:"attributes,omitempty"` // of the whole target, such as discovery_nqn; nvmetcli ignores them
}

// attributesKey is the name of More in JSON.
const attributesKey = "attributes"

// Host is a host that subsystems can allow.
type Host struct {
	DHChap Attributes `json:"dhchap,omitempty"` // key, ctrl_key, hash, dhgroup
	NQN    string     `json:"nqn"`
}

// hasKey reports whether the host must authenticate.
func (h Host) hasKey() bool { return h.DHChap["key"] != "" }

// KeyedHosts returns the NQNs of the hosts that must authenticate.
func (c Config) KeyedHosts() []string {
	var nqns []string
	for _, h := range c.Hosts {
		if h.hasKey() {
			nqns = append(nqns, h.NQN)
		}
	}
	return nqns
}

// Subsystem is a set of namespaces with an NQN.
type Subsystem struct {
	AllowedHosts []string    `json:"allowed_hosts"`
	Attr         Attributes  `json:"attr"`
	Namespaces   []Namespace `json:"namespaces"`
	NQN          string      `json:"nqn"`
	Passthru     []Passthru  `json:"passthru,omitempty"`
	More         Attributes  `json:"attributes,omitempty"`
}

// Namespace is a disk or file of a subsystem.
type Namespace struct {
	ANAGroup int        `json:"ana_grpid,omitempty"` // 0: the kernel's default, 1
	Device   Attributes `json:"device"`              // path, uuid, nguid
	Enable   Switch     `json:"enable"`
	Identity string     `json:"identity,omitempty"` // of what was at the path when it was saved; nvmetcli ignores it
	NSID     int        `json:"nsid"`
	More     Attributes `json:"attributes,omitempty"` // files without a group, such as buffered_io; nvmetcli ignores them
}

// Passthru is an NVMe controller that a subsystem passes through.
type Passthru struct {
	Device Attributes `json:"device"`
	Enable Switch     `json:"enable"`
	More   Attributes `json:"attributes,omitempty"` // such as admin_timeout; nvmetcli ignores them
}

// Port is an address at which subsystems are served.
type Port struct {
	Addr       Attributes `json:"addr"` // trtype, adrfam, traddr, trsvcid, treq, tsas
	ANAGroups  []ANAGroup `json:"ana_groups"`
	Param      Attributes `json:"param"` // inline_data_size, pi_enable, max_queue_size
	ID         int        `json:"portid"`
	Referrals  []Referral `json:"referrals"`
	Subsystems []string   `json:"subsystems"`
	More       Attributes `json:"attributes,omitempty"`
}

// ANAGroup is the asymmetric namespace access state of a group of namespaces at a port.
type ANAGroup struct {
	ANA Attributes `json:"ana"`
	ID  int        `json:"grpid"`
}

// Referral is another discovery service that the port's discovery log refers to.
type Referral struct {
	Addr   Attributes `json:"addr"`
	Enable Switch     `json:"enable"`
	Name   string     `json:"name"`
}

// Attributes are the files GROUP_* of a configfs directory, without their prefix.
type Attributes map[string]string

// UnmarshalJSON accepts numbers, booleans and null, too, which files written by hand may have.
func (a *Attributes) UnmarshalJSON(data []byte) error {
	var values map[string]any
	if err := json.Unmarshal(data, &values); err != nil {
		return err
	}
	*a = Attributes{}
	for name, value := range values {
		switch v := value.(type) {
		case string:
			(*a)[name] = v
		case bool:
			(*a)[name] = map[bool]string{false: "0", true: "1"}[v]
		case float64:
			(*a)[name] = strconv.FormatFloat(v, 'f', -1, 64)
		case nil:
		default:
			return fmt.Errorf("%s: must be a string or a number", name)
		}
	}
	return nil
}

// Switch is 0 or 1 in JSON; false and true are accepted, too.
type Switch bool

// MarshalJSON implements json.Marshaler.
func (s Switch) MarshalJSON() ([]byte, error) {
	if s {
		return []byte("1"), nil
	}
	return []byte("0"), nil
}

// UnmarshalJSON implements json.Unmarshaler.
func (s *Switch) UnmarshalJSON(data []byte) error {
	switch text := string(data); text {
	case "1", "true", `"1"`:
		*s = true
	case "0", "false", `"0"`, "null":
		*s = false
	default:
		return fmt.Errorf("enable is %s: must be 0 or 1", text)
	}
	return nil
}

// check returns an error if something is missing, duplicate, a reference to something missing, or a
// name that would not be an entry of its own directory. Nothing is created before.
func (c Config) check() error {
	known := map[string]bool{}
	fresh := func(what string) bool {
		if known[what] {
			return false
		}
		known[what] = true
		return true
	}
	for i, h := range c.Hosts {
		if err := CheckNQN(h.NQN); err != nil {
			return wrong(fmt.Sprintf("hosts[%d].nqn", i), "%w", err)
		}
		if !fresh("host " + h.NQN) {
			return wrong(fmt.Sprintf("hosts[%d].nqn", i), "duplicate NQN %s", h.NQN)
		}
	}
	for i, s := range c.Subsystems {
		where := fmt.Sprintf("subsystems[%d]", i)
		if err := CheckNQN(s.NQN); err != nil {
			return wrong(where+".nqn", "%w", err)
		}
		if !fresh("subsystem " + s.NQN) {
			return wrong(where+".nqn", "duplicate NQN %s", s.NQN)
		}
		for j, n := range s.Namespaces {
			at := fmt.Sprintf("%s.namespaces[%d]", where, j)
			switch {
			case n.NSID < 1:
				return wrong(at+".nsid", "%d: must be 1 or more", n.NSID)
			case !fresh(fmt.Sprintf("%s namespace %d", where, n.NSID)):
				return wrong(at+".nsid", "%d: duplicate", n.NSID)
			case bool(n.Enable) && n.Device["path"] == "":
				return wrong(at+".device.path", "an enabled namespace needs one")
			}
		}
		for j, nqn := range s.AllowedHosts {
			at := fmt.Sprintf("%s.allowed_hosts[%d]", where, j)
			if !known["host "+nqn] {
				return wrong(at, "%q is not among the hosts", nqn)
			}
			if !fresh(where + " allows " + nqn) {
				return wrong(at, "%s is there twice", nqn)
			}
		}
		for j, p := range s.Passthru {
			if bool(p.Enable) && p.Device["path"] == "" {
				return wrong(fmt.Sprintf("%s.passthru[%d].device.path", where, j), "an enabled passthru needs one")
			}
		}
	}
	for i, p := range c.Ports {
		where := fmt.Sprintf("ports[%d]", i)
		if p.ID < 0 || p.ID > 65535 || !fresh(fmt.Sprint("port ", p.ID)) {
			return wrong(where+".portid", "%d: must be unique, and 0 to 65535", p.ID)
		}
		for j, g := range p.ANAGroups {
			if g.ID < 1 || !fresh(fmt.Sprintf("%s group %d", where, g.ID)) {
				return wrong(fmt.Sprintf("%s.ana_groups[%d].grpid", where, j), "%d: must be unique, and 1 or more", g.ID)
			}
		}
		for j, r := range p.Referrals {
			at := fmt.Sprintf("%s.referrals[%d].name", where, j)
			if err := checkEntry(r.Name); err != nil {
				return wrong(at, "%w", err)
			}
			if !fresh(where + " referral " + r.Name) {
				return wrong(at, "duplicate name %s", r.Name)
			}
		}
		for j, nqn := range p.Subsystems {
			at := fmt.Sprintf("%s.subsystems[%d]", where, j)
			if !known["subsystem "+nqn] {
				return wrong(at, "%q is not among the subsystems", nqn)
			}
			if !fresh(where + " serves " + nqn) {
				return wrong(at, "%s is there twice", nqn)
			}
		}
	}
	return nil
}

// checkEntry returns an error if a directory cannot have an entry of that name.
func checkEntry(name string) error {
	const longest = 255 // NAME_MAX
	if name == "" || name == "." || name == ".." || len(name) > longest || strings.ContainsFunc(name, func(r rune) bool { return r == '/' || r < ' ' || r == 0x7f }) {
		return fmt.Errorf("%.40q: must be 1 to %d bytes, without slashes and control characters, and neither '.' nor '..'", name, longest)
	}
	return nil
}

// Write writes a save file in nvmetcli's style: sorted, and indented by 2.
func (c Config) Write(out io.Writer) error {
	encoder := json.NewEncoder(out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	return encoder.Encode(c)
}

// Save writes a save file atomically, and creates its directory if needed. Its mode is 0600, as
// nvmetcli's. A symbolic link stays one, and so do a pipe and a device such as /dev/stdout.
func (c Config) Save(path string) error {
	if err := inuse.CheckPath(path); err != nil {
		return err
	}
	if to, err := filepath.EvalSymlinks(path); err == nil {
		path = to
	}
	info, err := os.Stat(path)
	switch {
	case err == nil && info.Mode()&(os.ModeCharDevice|os.ModeNamedPipe) != 0:
		f, err := os.OpenFile(path, os.O_WRONLY, 0)
		if err != nil {
			return err
		}
		return errors.Join(c.Write(f), f.Close())
	case err == nil && !info.Mode().IsRegular():
		return fmt.Errorf("%s: must be a regular file", path)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	var text bytes.Buffer
	if err := c.Write(&text); err != nil {
		return err
	}
	return atomicfile.Write(path, text.Bytes())
}
