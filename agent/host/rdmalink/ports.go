// SPDX-License-Identifier: Apache-2.0

package rdmalink

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"krping/bridge/sysfs"
)

// Details are what sysfs has of a port beside its state.
type Details struct {
	Port
	Rate     uint64            // in bytes per second; 0 if unknown
	Counters map[string]uint64 // by their names in sysfs, data in bytes; without those that the device lacks
}

// read reads a device from its sysfs class. Attributes that are missing, or vanish with the device, are
// left empty.
func read(class, device string) Link {
	dir := filepath.Join(class, device)
	l := Link{Name: device, NodeGUID: sysfs.Text(dir, "node_guid"), Ports: []Port{}}
	for _, number := range numbers(filepath.Join(dir, "ports")) {
		l.Ports = append(l.Ports, readPort(dir, number))
	}
	return l
}

func readPort(dir string, number int) Port {
	port := filepath.Join(dir, "ports", strconv.Itoa(number))
	state := sysfs.Text(port, "state") // such as "4: ACTIVE"
	if _, name, ok := strings.Cut(state, ": "); ok {
		state = name
	}
	return Port{
		Number: number, State: state,
		Layer: sysfs.Text(port, "link_layer"), Netdev: sysfs.Text(port, "gid_attrs/ndevs/0"),
	}
}

// Ports returns the ports of a device with their details. sys is the mount point of sysfs. With an error
// it returns what it could read. A device that has no counters, or not all, is no error.
func Ports(sys, device string) ([]Details, error) {
	dir := filepath.Join(sys, "class/infiniband", device)
	var (
		ports []Details
		errs  []error
	)
	for _, number := range numbers(filepath.Join(dir, "ports")) {
		d := Details{Port: readPort(dir, number)}
		if d.State == "" {
			errs = append(errs, fmt.Errorf("port %d of RDMA device %s has no state", number, device))
			continue
		}
		port := filepath.Join(dir, "ports", strconv.Itoa(number))
		d.Rate = Rate(sys, device, number)
		var err error
		if d.Counters, err = readCounters(filepath.Join(port, "counters")); err != nil {
			errs = append(errs, fmt.Errorf("port %d of RDMA device %s: %w", number, device, err))
		}
		ports = append(ports, d)
	}
	if len(ports)+len(errs) == 0 {
		errs = append(errs, fmt.Errorf("RDMA device %s has no ports", device))
	}
	return ports, errors.Join(errs...)
}

// Rate returns the rate of a port in bytes per second, or 0 if it is not known.
func Rate(sys, device string, port int) uint64 {
	return rate(sysfs.Text(sys, "class/infiniband", device, "ports", strconv.Itoa(port), "rate"))
}

// Firmware returns the version of a device's firmware, or "": software devices have none.
func Firmware(sys, device string) string {
	return sysfs.Text(sys, "class/infiniband", device, "fw_ver")
}

// rate parses a text such as "100 Gb/sec (4X EDR)". It returns bytes per second, or 0.
func rate(text string) uint64 {
	number, _, _ := strings.Cut(text, " ")
	gigabits, err := strconv.ParseFloat(number, 64)
	if err != nil || gigabits < 0 || gigabits > 1e9 {
		return 0
	}
	return uint64(gigabits * 1e9 / 8)
}

func readCounters(dir string) (map[string]uint64, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read its counters: %w", err)
	}
	counters := map[string]uint64{}
	var errs []error
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // the device lacks it
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("read a counter: %w", err))
			continue
		}
		n, err := strconv.ParseUint(strings.TrimSpace(string(data)), 10, 64)
		if err != nil {
			continue // "N/A (no PMA)"
		}
		if strings.HasSuffix(e.Name(), "_data") {
			n *= 4 // counts words of four bytes
		}
		counters[e.Name()] = n
	}
	return counters, errors.Join(errs...)
}

// hasCounters reports whether sysfs shows hardware counters of a device.
func hasCounters(class, device string) bool {
	for _, pattern := range []string{"hw_counters", "ports/*/hw_counters"} {
		if found, _ := filepath.Glob(filepath.Join(class, device, pattern)); len(found) > 0 {
			return true
		}
	}
	return false
}

// numbers returns the entries of a directory that are numbers, in order.
func numbers(dir string) []int {
	entries, _ := os.ReadDir(dir) // it may vanish with its device
	var list []int
	for _, e := range entries {
		if n, err := strconv.Atoi(e.Name()); err == nil {
			list = append(list, n)
		}
	}
	slices.Sort(list)
	return list
}
