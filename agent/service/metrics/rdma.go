// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"krping/agent/host/rdmalink"
)

func portDesc(name, help string, more ...string) *prometheus.Desc {
	return desc("rdma_port_"+name, help, append([]string{"device", "port"}, more...)...)
}

var (
	portUp     = portDesc("up", "Whether a port of an RDMA device is ACTIVE.", "link_layer")
	portRate   = portDesc("rate_bytes_per_second", "Link rate of a port.")
	portErrors = portDesc("errors_total", "Errors and dropped packets of a port, by the names of the counters in sysfs.", "counter")

	hwPackets = desc("rdma_hw_packets_total", "Packets that the driver counts, by its names of the counters.", "device", "port", "counter")
	hwBytes   = desc("rdma_hw_bytes_total", "Bytes that the driver counts, by its names of the counters.", "device", "port", "counter")
	hwEvents  = desc("rdma_hw_events_total", "What else the driver counts (operations, errors, retries), by its names of the counters.", "device", "port", "counter")
)

// traffic are a port's counters with a metric of their own, by their names in sysfs.
var traffic = map[string]*prometheus.Desc{
	"port_rcv_data":     portDesc("received_bytes_total", "Bytes that a port received."),
	"port_xmit_data":    portDesc("transmitted_bytes_total", "Bytes that a port transmitted."),
	"port_rcv_packets":  portDesc("received_packets_total", "Packets that a port received."),
	"port_xmit_packets": portDesc("transmitted_packets_total", "Packets that a port transmitted."),
}

// isError reports whether a port's counter counts errors. The others without a metric are parts of the
// traffic, and times.
func isError(counter string) bool {
	for _, part := range []string{"error", "discard", "dropped", "link_downed"} {
		if strings.Contains(counter, part) {
			return true
		}
	}
	return false
}

// hwCounter returns the metric of a driver's counter, or nil for one that is not only ever increased.
func hwCounter(counter string) *prometheus.Desc {
	has := func(parts ...string) bool {
		for _, part := range parts {
			if strings.Contains(strings.ToLower(counter), part) {
				return true
			}
		}
		return false
	}
	switch {
	case has("active_", "watermark", "lifespan"):
		return nil
	case has("bytes", "octets"):
		return hwBytes
	case has("pkt", "packet"):
		return hwPackets
	}
	return hwEvents
}

func (c *collector) rdma(e emitter) error {
	devices, err := os.ReadDir(filepath.Join(c.Sys, "class/infiniband"))
	if errors.Is(err, fs.ErrNotExist) {
		return nil // no RDMA stack is loaded, so there are no devices
	}
	if err != nil {
		return fmt.Errorf("list the RDMA devices: %w", err)
	}
	for _, entry := range devices {
		device := entry.Name()
		ports, err := rdmalink.Ports(c.Sys, device)
		for _, p := range ports {
			e.port(device, p)
		}
		counters, err2 := c.Counters(device) // may be readable even if the ports are not
		for port, values := range counters {
			for counter, n := range values {
				if d := hwCounter(counter); d != nil {
					e.counter(d, float64(n), device, itoa(port), counter)
				}
			}
		}
		c.up(e, errors.Join(err, err2), "rdma", device)
	}
	return nil
}

func (e emitter) port(device string, p rdmalink.Details) {
	port := itoa(p.Number)
	e.gauge(portUp, truth(p.State == rdmalink.Active), device, port, p.Layer)
	if p.Rate > 0 {
		e.gauge(portRate, float64(p.Rate), device, port)
	}
	for name, n := range p.Counters {
		if d := traffic[name]; d != nil {
			e.counter(d, float64(n), device, port)
		} else if isError(name) {
			e.counter(portErrors, float64(n), device, port, name)
		}
	}
}
