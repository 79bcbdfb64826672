// SPDX-License-Identifier: Apache-2.0

package main

import (
	"path/filepath"
	"strings"

	"krping/agent/nvme/nvmehost"
)

// remoteNVMe returns the NVMe over Fabrics disk at a path, and its controllers. It returns none for
// any other device.
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

// servedHere returns the path of the disk or file behind an NVMe over Fabrics disk that this host
// serves to itself, or "". It is identified by its NQN and UUID. A partition is not accepted.
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
