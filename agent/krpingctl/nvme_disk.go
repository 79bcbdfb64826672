// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"

	"krping/agent/nvme/nvmehost"
)

// remoteNVMe returns a disk of NVMe over fabrics and its controllers, by its path; none if it
// is another device.
func remoteNVMe(path string) ([]nvmehost.Controller, nvmehost.Disk) {
	if !strings.HasPrefix(path, "/dev/") {
		return nil, nvmehost.Disk{}
	}
	controllers, disk, err := nvmeHost().Of(path)
	if err != nil || len(controllers) == 0 || !controllers[0].IsFabric() {
		return nil, nvmehost.Disk{}
	}
	return controllers, disk
}

func isRemoteNVMe(path string) bool {
	controllers, _ := remoteNVMe(path)
	return len(controllers) > 0
}

// servedHere returns the disk or file below a disk of NVMe over fabrics that this host itself
// serves, or "". It is known by its NQN and UUID. Partitions have other offsets, so that of one
// is not returned.
func servedHere(path string) (string, error) {
	controllers, disk := remoteNVMe(path)
	resolved, err := filepath.EvalSymlinks(path)
	if len(controllers) == 0 || err != nil || resolved != disk.Device() {
		return "", nil
	}
	config, err := nvmeTarget().Read()
	if err != nil {
		return "", err
	}
	for _, t := range config.Targets() {
		for _, d := range t.Disks {
			if t.NQN == controllers[0].NQN && d.NSID == disk.NSID && d.UUID == disk.UUID && d.UUID != "" {
				return d.Device, nil
			}
		}
	}
	return "", nil
}
