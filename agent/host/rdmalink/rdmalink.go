// SPDX-License-Identifier: Apache-2.0

// Package rdmalink lists RDMA devices and their counters through netlink, and adds and deletes software
// RDMA devices.
package rdmalink

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"krping/bridge/sysfs"
)

// Link is an RDMA device.
type Link struct {
	Name     string `json:"name"`
	NodeGUID string `json:"node_guid"` // as sysfs has it: 5054:00ff:fe77:0002
	Ports    []Port `json:"ports"`
}

// Port is a port of an RDMA device.
type Port struct {
	Number int    `json:"port"`
	State  string `json:"state"`                // such as ACTIVE or DOWN
	Layer  string `json:"link_layer,omitempty"` // Ethernet or InfiniBand
	Netdev string `json:"netdev,omitempty"`     // network device of its first GID
}

// Active is the State of a port that works.
const Active = "ACTIVE"

// PortName returns the name of a port: that of its device, with the port's number if there are several.
func (l Link) PortName(p Port) string {
	if len(l.Ports) == 1 {
		return l.Name
	}
	return fmt.Sprintf("%s/%d", l.Name, p.Number)
}

const class = "/sys/class/infiniband"

// retry repeats a netlink dump that was interrupted by a change.
func retry[T any](call func() (T, error)) (T, error) {
	for range 10 {
		v, err := call()
		if !errors.Is(err, unix.EINTR) && !errors.Is(err, netlink.ErrDumpInterrupted) {
			return v, err
		}
	}
	return call()
}

func devices() ([]*netlink.RdmaLink, error) {
	devices, err := retry(netlink.RdmaLinkList)
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EPROTONOSUPPORT) || errors.Is(err, unix.ENOENT) {
		return nil, nil // no RDMA modules are loaded
	}
	if err != nil {
		return nil, fmt.Errorf("list the RDMA devices: %w", err)
	}
	return devices, nil
}

// List returns the RDMA devices of this host. It should not be called each second: when the state of a port is read,
// the kernel logs a warning if the device is Soft-RoCE on a network device that tells no speed, such as virtio's.
func List() ([]Link, error) {
	devices, err := devices()
	if err != nil {
		return nil, err
	}
	links := make([]Link, 0, len(devices))
	for _, d := range devices {
		links = append(links, read(class, d.Attrs.Name))
	}
	return links, nil
}

func attribute(device, name string) string { return sysfs.Text(class, device, name) }

// SoftRoCE returns the name of the Soft-RoCE device of a network device, "" if it has none.
func SoftRoCE(netdev string) (string, error) {
	devices, err := devices()
	if err != nil {
		return "", err
	}
	for _, d := range devices {
		if attribute(d.Attrs.Name, "parent") == netdev { // only Soft-RoCE has it
			return d.Attrs.Name, nil
		}
	}
	return "", nil
}

// Counters returns the hardware counters of a device by port and name. Not every device has some:
// Soft-iWARP has none.
func Counters(device string) (map[int]map[string]uint64, error) {
	link, err := retry(func() (*netlink.RdmaLink, error) { return netlink.RdmaLinkByName(device) })
	if err != nil {
		return nil, fmt.Errorf("RDMA device %s: %w", device, err)
	}
	stat, err := retry(func() (*netlink.RdmaDeviceStatistic, error) { return netlink.RdmaStatistic(link) })
	if errors.Is(err, unix.EINVAL) && !hasCounters(class, device) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("counters of RDMA device %s: %w", device, err)
	}
	counters := map[int]map[string]uint64{}
	for _, port := range stat.RdmaPortStatistics {
		counters[int(port.PortIndex)] = port.Statistics
	}
	return counters, nil
}
