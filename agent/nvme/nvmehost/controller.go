// SPDX-License-Identifier: Apache-2.0

// Package nvmehost discovers, connects, lists and disconnects NVMe over Fabrics controllers of this
// host. It uses /dev/nvme-fabrics and sysfs: the kernel's drivers/nvme/host/fabrics.c and sysfs.c.
package nvmehost

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"

	"krping/agent/doctor"
	"krping/bridge/sysfs"
)

// DefaultMount is where sysfs is mounted.
const DefaultMount = "/sys"

// Sysfs is a mounted sysfs.
type Sysfs struct{ mount string }

// NewSysfs returns the sysfs that is mounted at mount.
func NewSysfs(mount string) Sysfs { return Sysfs{mount} }

// Controller is an NVMe controller: a connection to a subsystem, or a local device.
type Controller struct {
	Name           string `json:"name"` // such as nvme0
	NQN            string `json:"nqn"`
	Transport      string `json:"transport"`         // rdma, tcp, pcie, ...
	Address        string `json:"address"`           // traddr=A,trsvcid=P,...
	State          string `json:"state"`             // live, connecting, deleting, ...
	HostNQN        string `json:"hostnqn,omitempty"` // that this host connected with
	HostID         string `json:"hostid,omitempty"`
	Model          string `json:"model"`
	Serial         string `json:"serial"`
	Firmware       string `json:"firmware"`
	IOQueues       int    `json:"io_queues"`
	QueueSize      int    `json:"queue_size"`
	KeepAlive      int    `json:"keep_alive_tmo"`            // seconds
	CtrlLossTMO    string `json:"ctrl_loss_tmo,omitempty"`   // seconds, or off
	ReconnectDelay string `json:"reconnect_delay,omitempty"` // seconds, or off
	Namespaces     []Disk `json:"namespaces"`
	Problem        string `json:"problem,omitempty"` // why it has no disks though it is connected
	Fix            string `json:"fix,omitempty"`
}

// stateLive is the state of a controller that processes commands.
const stateLive = "live"

// Disk is a namespace. With native multipath it is one disk for all of its controllers, and Path is
// the hidden disk of this controller.
type Disk struct {
	Name      string `json:"name"`           // such as nvme0n1
	Path      string `json:"path,omitempty"` // such as nvme0c0n1
	NSID      int    `json:"nsid"`
	UUID      string `json:"uuid,omitempty"`
	Size      int64  `json:"size"` // bytes
	BlockSize int    `json:"block_size"`
}

// Device returns its path in /dev.
func (d Disk) Device() string { return "/dev/" + d.Name }

// IsFabric reports whether the controller is one of NVMe over Fabrics.
func (c Controller) IsFabric() bool { return c.Transport != "pcie" && c.Transport != "" }

// Explained is Controllers with the problems of those that are connected and have no disks.
func (s Sysfs) Explained() ([]Controller, error) {
	controllers, err := s.Controllers()
	found := doctor.ExamineControllers()
	for i := range controllers {
		if f, bad := found[controllers[i].Name]; bad && len(controllers[i].Namespaces) == 0 { // now as before
			controllers[i].Problem, controllers[i].Fix = f.Found+": "+f.Cause, f.Fix
		}
	}
	return controllers, err
}

// Controllers returns all controllers, by number.
func (s Sysfs) Controllers() ([]Controller, error) {
	class := filepath.Join(s.mount, "class/nvme")
	entries, err := os.ReadDir(class)
	if errors.Is(err, os.ErrNotExist) {
		return []Controller{}, nil // no driver is loaded
	}
	if err != nil {
		return nil, fmt.Errorf("list the NVMe controllers: %w", err)
	}
	controllers := []Controller{}
	for number := range 1 << 12 {
		name := fmt.Sprintf("nvme%d", number)
		if len(controllers) == len(entries) {
			break
		}
		if c, found := s.Controller(name); found {
			controllers = append(controllers, c)
		}
	}
	return controllers, nil
}

// Controller returns one controller; found is false if it does not exist. Attributes that it does not
// have are empty.
func (s Sysfs) Controller(name string) (c Controller, found bool) {
	dir := filepath.Join(s.mount, "class/nvme", name)
	if _, err := os.Stat(dir); err != nil {
		return Controller{}, false
	}
	c = Controller{
		Name: name, NQN: sysfs.Text(dir, "subsysnqn"), Transport: sysfs.Text(dir, "transport"), Address: sysfs.Text(dir, "address"), State: sysfs.Text(dir, "state"),
		HostNQN: sysfs.Text(dir, "hostnqn"), HostID: sysfs.Text(dir, "hostid"), Model: sysfs.Text(dir, "model"), Serial: sysfs.Text(dir, "serial"), Firmware: sysfs.Text(dir, "firmware_rev"),
		KeepAlive: number(dir, "kato"), CtrlLossTMO: sysfs.Text(dir, "ctrl_loss_tmo"), ReconnectDelay: sysfs.Text(dir, "reconnect_delay"), Namespaces: []Disk{},
	}
	if n := number(dir, "queue_count"); n > 0 {
		c.IOQueues = n - 1 // without the admin queue
	}
	if n := number(dir, "sqsize"); n > 0 {
		c.QueueSize = n + 1 // sysfs has the largest index
	}
	entries, _ := os.ReadDir(dir)
	for _, e := range entries {
		if d, is := s.disk(name, e.Name()); is {
			c.Namespaces = append(c.Namespaces, d)
		}
	}
	return c, true
}

// diskName matches a namespace in the directory of its controller: nvme0n1, or with native multipath
// nvme0c1n1, with the numbers of subsystem, controller and namespace.
var diskName = regexp.MustCompile(`^nvme(\d+)(?:c(\d+))?n(\d+)$`)

func (s Sysfs) disk(controller, entry string) (Disk, bool) {
	match := diskName.FindStringSubmatch(entry)
	if match == nil {
		return Disk{}, false
	}
	d := Disk{Name: entry}
	if match[2] != "" {
		d.Name, d.Path = fmt.Sprintf("nvme%sn%s", match[1], match[3]), entry
	}
	dir := filepath.Join(s.mount, "class/nvme", controller, entry)
	if d.Path != "" {
		dir = filepath.Join(s.mount, "class/block", d.Name)
	}
	d.NSID, d.UUID, d.BlockSize = number(dir, "nsid"), sysfs.Text(dir, "uuid"), number(dir, "queue/logical_block_size")
	d.Size = int64(number(dir, "size")) * 512 // in sectors of 512 bytes, whatever the block size
	return d, true
}

// Of returns a disk and its controllers, by the path of the disk or of one of its partitions.
func (s Sysfs) Of(device string) ([]Controller, Disk, error) {
	resolved, err := filepath.EvalSymlinks(device)
	if err != nil {
		return nil, Disk{}, err
	}
	name := regexp.MustCompile(`p\d+$`).ReplaceAllString(filepath.Base(resolved), "")
	all, err := s.Controllers()
	if err != nil {
		return nil, Disk{}, err
	}
	var of []Controller
	var disk Disk
	for _, c := range all {
		for _, d := range c.Namespaces {
			if d.Name == name {
				of, disk = append(of, c), d
			}
		}
	}
	return of, disk, nil
}

func number(dir, name string) int {
	n, _ := strconv.Atoi(sysfs.Text(dir, name)) // 0 if it is not there
	return n
}

// Has reports whether the controller has a disk, or a path of one, with this name.
func (c Controller) Has(name string) bool {
	return slices.ContainsFunc(c.Namespaces, func(d Disk) bool { return d.Name == name || d.Path == name })
}
