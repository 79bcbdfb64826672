// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"io/fs"

	"github.com/prometheus/procfs/sysfs"
)

var (
	portUp      = desc("rdma_port_up", "Whether a port of an RDMA device is ACTIVE.", "device", "port", "link_layer")
	portRate    = desc("rdma_port_rate_bytes_per_second", "Link rate of a port.", "device", "port")
	portCounter = desc("rdma_port_stats_total", "Counters of a port by their names in sysfs; data counters are in bytes.", "device", "port", "counter")
	hwCounter   = desc("rdma_hw_stats_total", "Hardware counters of a device by the driver's names, summed over all ports.", "device", "counter")
)

func (c *collector) rdma(e emitter) error {
	sys, err := sysfs.NewFS(c.Sys)
	if err != nil {
		return fmt.Errorf("list the RDMA devices: %w", err)
	}
	devices, err := sys.InfiniBandClassDevices()
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no RDMA stack is loaded, so there are no devices
	}
	if err != nil {
		return fmt.Errorf("list the RDMA devices: %w", err)
	}
	for _, name := range devices {
		device, err := sys.InfiniBandDevice(name)
		if err == nil {
			for _, p := range device.Ports {
				e.port(name, p)
			}
		} else {
			err = fmt.Errorf("ports of RDMA device %s: %w", name, err)
		}
		counters, err2 := c.Counters(name) // may be readable even if the ports are not
		for counter, n := range counters {
			e.counter(hwCounter, float64(n), name, counter)
		}
		c.up(e, errors.Join(err, err2), "rdma", name)
	}
	return nil
}

func (e emitter) port(device string, p sysfs.InfiniBandPort) {
	const active = 4 // enum ib_port_state
	port := itoa(p.Port)
	e.gauge(portUp, truth(p.StateID == active), device, port, p.LinkLayer)
	e.gauge(portRate, float64(p.Rate), device, port)
	c := p.Counters
	for name, n := range map[string]*uint64{
		"VL15_dropped": c.VL15Dropped, "excessive_buffer_overrun_errors": c.ExcessiveBufferOverrunErrors, "link_downed": c.LinkDowned,
		"link_error_recovery": c.LinkErrorRecovery, "local_link_integrity_errors": c.LocalLinkIntegrityErrors,
		"multicast_rcv_packets": c.MulticastRcvPackets, "multicast_xmit_packets": c.MulticastXmitPackets,
		"port_rcv_constraint_errors": c.PortRcvConstraintErrors, "port_rcv_data": c.PortRcvData, "port_rcv_discards": c.PortRcvDiscards,
		"port_rcv_errors": c.PortRcvErrors, "port_rcv_packets": c.PortRcvPackets,
		"port_rcv_remote_physical_errors": c.PortRcvRemotePhysicalErrors, "port_rcv_switch_relay_errors": c.PortRcvSwitchRelayErrors,
		"port_xmit_constraint_errors": c.PortXmitConstraintErrors, "port_xmit_data": c.PortXmitData,
		"port_xmit_discards": c.PortXmitDiscards, "port_xmit_packets": c.PortXmitPackets, "port_xmit_wait": c.PortXmitWait,
		"symbol_error": c.SymbolError, "unicast_rcv_packets": c.UnicastRcvPackets, "unicast_xmit_packets": c.UnicastXmitPackets,
	} {
		if n != nil {
			e.counter(portCounter, float64(*n), device, port, name)
		}
	}
}
