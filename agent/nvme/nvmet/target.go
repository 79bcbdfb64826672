// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"cmp"
	"slices"
	"strconv"
)

// Target is a subsystem with its addresses and allowed hosts, for people and scripts.
type Target struct {
	NQN          string    `json:"nqn"`
	Serial       string    `json:"serial"`
	AllowAnyHost bool      `json:"allow_any_host"`
	AllowedHosts []string  `json:"allowed_hosts"`
	Disks        []Disk    `json:"namespaces"`
	Addresses    []Address `json:"addresses"`
}

// Disk is a namespace of a target.
type Disk struct {
	NSID    int    `json:"nsid"`
	Device  string `json:"device"`
	UUID    string `json:"uuid"`
	Enabled bool   `json:"enabled"`
}

// Address is an address at which a target is served.
type Address struct {
	Port      int    `json:"portid"` // number of the configfs directory, not trsvcid
	Transport string `json:"transport"`
	Addr      string `json:"traddr"`
	Service   string `json:"trsvcid"`
	Inline    int    `json:"inline_data_size"` // bytes
}

// Targets returns the subsystems of a configuration, sorted by NQN.
func (c Config) Targets() []Target {
	targets := []Target{}
	for _, s := range c.Subsystems {
		t := Target{
			NQN: s.NQN, Serial: s.Attr["serial"], AllowAnyHost: s.Attr["allow_any_host"] == "1", AllowedHosts: s.AllowedHosts,
			Disks: []Disk{}, Addresses: []Address{},
		}
		for _, n := range s.Namespaces {
			t.Disks = append(t.Disks, Disk{n.NSID, n.Device["path"], n.Device["uuid"], bool(n.Enable)})
		}
		for _, p := range c.Ports {
			if slices.Contains(p.Subsystems, s.NQN) {
				inline, _ := strconv.Atoi(p.Param["inline_data_size"]) // the kernel prints a number
				t.Addresses = append(t.Addresses, Address{p.ID, p.Addr["trtype"], p.Addr["traddr"], p.Addr["trsvcid"], inline})
			}
		}
		targets = append(targets, t)
	}
	slices.SortFunc(targets, func(a, b Target) int { return cmp.Compare(a.NQN, b.NQN) })
	return targets
}
