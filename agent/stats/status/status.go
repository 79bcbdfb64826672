// SPDX-License-Identifier: Apache-2.0

// Package status collects a host's current state: the module's threads and sessions, RDMA devices,
// and krping's disks.
package status

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/prometheus/procfs/blockdevice"
	"github.com/rs/zerolog"

	"krping/agent/host/rdmalink"
	"krping/agent/service/volumes"
	"krping/bridge/display"
	"krping/proc"
)

// Status is the state of a host. Problems lists what could not be read, and the agent's sessions whose
// target has another volume than the expected one.
type Status struct {
	Threads  []proc.Thread  `json:"threads"`
	Sessions []proc.Session `json:"sessions"`
	Devices  []Device       `json:"rdma_devices"`
	Disks    []Disk         `json:"disks"`
	Problems []string       `json:"problems,omitempty"`
}

// Device is an RDMA device.
type Device struct {
	Name     string `json:"name"`
	NodeGUID string `json:"node_guid"`
	Firmware string `json:"firmware,omitempty"`
	Ports    []Port `json:"ports"`
}

// Port is a port of an RDMA device.
type Port struct {
	rdmalink.Port
	Name     string            `json:"-"` // with its device
	Rate     uint64            `json:"rate_bytes_per_second,omitempty"`
	Counters map[string]uint64 `json:"counters"` // by the driver's names; empty if the device has none
}

// Disk has the block layer's counters of a krping block device.
type Disk struct {
	Name         string `json:"name"`
	Reads        uint64 `json:"reads"`
	ReadSectors  uint64 `json:"read_sectors"` // of 512 bytes
	ReadMillis   uint64 `json:"read_ms"`
	Writes       uint64 `json:"writes"`
	WriteSectors uint64 `json:"write_sectors"`
	WriteMillis  uint64 `json:"write_ms"`
	Inflight     uint64 `json:"inflight"`
}

// Collect reads everything.
func Collect(host proc.FS) Status {
	var s Status
	problem := func(err error) {
		if err != nil {
			s.Problems = append(s.Problems, err.Error())
		}
	}
	var err error
	s.Threads, err = host.Threads()
	sessions, missing := error(nil), "the module's threads and sessions are not shown"
	s.Sessions, sessions = host.Sessions()
	if err == nil {
		err, missing = sessions, "the module's sessions are not shown"
	}
	if err != nil { // of both files, the reason is probably the same
		problem(fmt.Errorf("%s: %w", missing, err))
	}
	links, err := rdmalink.List()
	problem(err)
	for _, link := range links {
		counters, err := rdmalink.Counters(link.Name)
		problem(err)
		s.Devices = append(s.Devices, device("/sys", link, counters))
	}
	s.Disks, err = disks()
	problem(err)
	refused, err := volumes.New(volumes.DefaultPath, zerolog.Nop()).Refused()
	if !errors.Is(err, fs.ErrPermission) { // only root may read what the agent remembers
		problem(err)
	}
	for _, session := range slices.Sorted(maps.Keys(refused)) {
		s.Problems = append(s.Problems, "session "+session+": "+refused[session])
	}
	return s
}

// Printable returns the status with all texts of others made safe to print.
func (s Status) Printable() Status {
	s.Threads, s.Sessions, s.Problems = slices.Clone(s.Threads), slices.Clone(s.Sessions), slices.Clone(s.Problems)
	for i := range s.Threads {
		s.Threads[i].Device = display.Text(s.Threads[i].Device)
	}
	for i := range s.Sessions {
		v := &s.Sessions[i]
		for _, text := range []*string{&v.Name, &v.Role, &v.Mode, &v.Dev, &v.State, &v.Peer, &v.Source, &v.IBDev, &v.UUID, &v.Writer, &v.Backing} {
			*text = display.Text(*text)
		}
	}
	for i := range s.Problems {
		s.Problems[i] = display.Lines(s.Problems[i])
	}
	return s
}

func device(sys string, link rdmalink.Link, counters map[int]map[string]uint64) Device {
	d := Device{Name: link.Name, NodeGUID: link.NodeGUID, Firmware: rdmalink.Firmware(sys, link.Name), Ports: []Port{}}
	for _, p := range link.Ports {
		port := Port{Port: p, Name: link.PortName(p), Rate: rdmalink.Rate(sys, link.Name, p.Number), Counters: counters[p.Number]}
		if port.Counters == nil {
			port.Counters = map[string]uint64{}
		}
		d.Ports = append(d.Ports, port)
	}
	return d
}

func disks() ([]Disk, error) {
	fs, err := blockdevice.NewDefaultFS()
	if err != nil {
		return nil, fmt.Errorf("read the disks' counters: %w", err)
	}
	all, err := fs.ProcDiskstats()
	if err != nil {
		return nil, fmt.Errorf("read the disks' counters: %w", err)
	}
	var disks []Disk
	for _, d := range all {
		if !strings.HasPrefix(d.DeviceName, "krping") {
			continue
		}
		disks = append(disks, Disk{
			Name: d.DeviceName, Reads: d.ReadIOs, ReadSectors: d.ReadSectors, ReadMillis: d.ReadTicks,
			Writes: d.WriteIOs, WriteSectors: d.WriteSectors, WriteMillis: d.WriteTicks, Inflight: d.IOsInProgress,
		})
	}
	return disks, nil
}
