// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"krping/agent/host/rdmalink"
)

// pcie is the link of a device to its host.
type pcie struct {
	slot           string  // such as 0000:19:00.0
	speed, fastest float64 // GT/s a lane: now, and what the device can do
	lanes, most    int
	rate           float64 // of its fastest port, Gb/s
	node           int     // NUMA node, -1 if it is not known
	cpus           string  // of that node, such as 0-15
	nodes          int     // of the host
	interruptsOn   string  // CPUs, if all interrupts go to those of other nodes
}

const classDir = "/sys/class/infiniband/"

// readPCIe reads a device; what is not known is 0, or -1 for the node.
func (r root) readPCIe(d device) pcie {
	dir := classDir + d.name + "/device/"
	c := pcie{node: -1}
	for line := range strings.Lines(r.content(dir + "uevent")) {
		if slot, isSlot := strings.CutPrefix(strings.TrimSpace(line), "PCI_SLOT_NAME="); isSlot {
			c.slot = slot
		}
	}
	speed := func(name string) float64 {
		first, _, _ := strings.Cut(r.content(dir+name), " ") // "16.0 GT/s PCIe", "Unknown"
		n, _ := strconv.ParseFloat(first, 64)
		return n
	}
	width := func(name string) int {
		n, _ := strconv.Atoi(r.content(dir + name))
		return n
	}
	c.speed, c.fastest = speed("current_link_speed"), speed("max_link_speed")
	c.lanes, c.most = width("current_link_width"), width("max_link_width")
	for _, p := range d.ports {
		c.rate = max(c.rate, float64(rdmalink.Rate(r.path("/sys"), d.name, p.number))*8/1e9)
	}
	if node, err := strconv.Atoi(r.content(dir + "numa_node")); err == nil {
		c.node = node
	}
	c.nodes = len(r.glob("/sys/devices/system/node/node[0-9]*"))
	c.cpus = r.content(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", c.node))
	var others []string
	for _, irq := range r.glob(dir + "msi_irqs/*") {
		on := r.content("/proc/irq/" + path.Base(irq) + "/effective_affinity_list")
		if intersect(on, c.cpus) {
			return c
		}
		if on != "" && !slices.Contains(others, on) {
			others = append(others, on)
		}
	}
	c.interruptsOn = strings.Join(others, ",")
	return c
}

// bandwidth returns the Gb/s of data at a speed and width, before the packets' headers.
func bandwidth(speed float64, lanes int) float64 {
	coding := 128.0 / 130 // from 8 GT/s on
	if speed < 8 {
		coding = 8.0 / 10
	}
	return speed * coding * float64(lanes)
}

// cardFindings checks the PCIe links and NUMA nodes of the hardware devices.
func (h host) cardFindings(r root) []Finding {
	var findings []Finding
	for _, d := range h.devices {
		if d.kind == rxe || !r.exists(classDir+d.name+"/device/") {
			continue
		}
		c := r.readPCIe(d)
		findings = append(findings, c.linkFindings(d.name)...)
		findings = append(findings, c.nodeFindings(d.name, h.bridgesElsewhere(r, d, c.cpus))...)
	}
	return findings
}

func (c pcie) linkFindings(device string) []Finding {
	if c.speed <= 0 || c.lanes <= 0 || c.fastest <= 0 || c.most <= 0 {
		return nil // a virtual function does not tell
	}
	now, best := bandwidth(c.speed, c.lanes), bandwidth(c.fastest, c.most)
	text := fmt.Sprintf("%s is linked at %g GT/s x%d, %.0f Gb/s", device, c.speed, c.lanes, now)
	if now >= best || now >= c.rate {
		return []Finding{ok("pcie", "%s", text)}
	}
	return []Finding{{
		Check: "pcie", Level: Warning, Found: fmt.Sprintf("%s: less than the %g Gb/s of its port", text, c.rate),
		Cause: fmt.Sprintf("it can do %g GT/s x%d; its slot, a riser or the firmware's set-up limits it, or it has a bad contact", c.fastest, c.most),
		Fix:   fmt.Sprintf("lspci -vv -s %s shows LnkCap and LnkSta, also of the bridge above; put it into a slot with more lanes", c.slot),
	}}
}

func (c pcie) nodeFindings(device string, elsewhere []Finding) []Finding {
	if c.node < 0 || c.nodes < 2 || c.cpus == "" {
		return nil
	}
	findings := []Finding{ok("numa", "%s is at node %d of %d, CPUs %s", device, c.node, c.nodes, c.cpus)}
	if c.interruptsOn != "" {
		findings = append(findings, Finding{
			Check: "numa", Level: Note, Found: fmt.Sprintf("all interrupts of %s go to CPUs of other nodes: %s", device, c.interruptsOn),
			Cause: fmt.Sprintf("the device is at node %d, CPUs %s: each completion crosses the nodes", c.node, c.cpus),
			Fix:   fmt.Sprintf("for i in %s%s/device/msi_irqs/*; do echo %s > /proc/irq/${i##*/}/smp_affinity_list; done", classDir, device, c.cpus),
		})
	}
	return append(findings, elsewhere...)
}

// bridgesElsewhere returns a finding for each bridge that listens on an address of a device and may not run on
// any of some CPUs.
func (h host) bridgesElsewhere(r root, d device, cpus string) []Finding {
	var findings []Finding
	for _, dir := range r.bridges() {
		pid := path.Base(dir)
		_, after, _ := strings.Cut(r.content(dir+"/status"), "Cpus_allowed_list:")
		allowed, _, _ := strings.Cut(strings.TrimSpace(after), "\n")
		uses := slices.ContainsFunc(bridgeEndpoints(0, r.content(dir+"/cmdline")), func(e endpoint) bool {
			by, _, found := h.serving(e.addr.Addr())
			return found && by.name == d.name
		})
		if !uses || allowed == "" || intersect(allowed, cpus) {
			continue
		}
		findings = append(findings, Finding{
			Check: "numa", Level: Note, Found: fmt.Sprintf("krping-bridge (process %s) runs on CPUs %s only", pid, allowed),
			Cause: fmt.Sprintf("%s is at the node of CPUs %s: all data crosses the nodes", d.name, cpus),
			Fix:   fmt.Sprintf("taskset -apc %s %s; or permanently: CPUAffinity=%s in the service", cpus, pid, cpus),
		})
	}
	return findings
}

// intersect reports whether two lists of CPUs such as 0-3,8 have one in common.
func intersect(a, b string) bool {
	for _, x := range ranges(a) {
		for _, y := range ranges(b) {
			if x[0] <= y[1] && y[0] <= x[1] {
				return true
			}
		}
	}
	return false
}

func ranges(list string) (all [][2]int) {
	for part := range strings.SplitSeq(list, ",") {
		first, last, isRange := strings.Cut(strings.TrimSpace(part), "-")
		from, err := strconv.Atoi(first)
		to := from
		if isRange && err == nil {
			to, err = strconv.Atoi(last)
		}
		if err == nil {
			all = append(all, [2]int{from, to})
		}
	}
	return all
}
