// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"krping/agent/host/kernel"
	"krping/bridge/display"
	"krping/bridge/sysfs"
)

// controller is an NVMe over Fabrics controller of this host.
type controller struct {
	name, nqn, state string
	discovery        bool // or administrative: has no disks
	disks            int
}

// ExamineControllers returns a finding for each controller that is connected and has no disks, by its name.
func ExamineControllers() map[string]Finding {
	found := map[string]Finding{}
	var log kernel.Lines
	for _, c := range readControllers("/sys/class/nvme") {
		if !c.lacksDisks() {
			continue
		}
		if log == nil {
			log = kernel.LogSoFar()
		}
		found[c.name] = c.finding(log)
	}
	return found
}

func controllerFindings() []Finding {
	found := ExamineControllers()
	var all []Finding
	for _, name := range slices.Sorted(maps.Keys(found)) {
		all = append(all, found[name])
	}
	return all
}

var namespaceName = regexp.MustCompile(`^nvme\d+(c\d+)?n\d+$`)

func readControllers(class string) []controller {
	dirs, _ := filepath.Glob(filepath.Join(class, "nvme*"))
	var all []controller
	for _, dir := range dirs {
		read := func(name string) string { return sysfs.Text(dir, name) } // "" if this kernel does not tell
		if transport := read("transport"); transport == "pcie" || transport == "" {
			continue
		}
		c := controller{name: filepath.Base(dir), nqn: read("subsysnqn"), state: read("state")}
		kind := read("cntrltype")
		c.discovery = kind == "discovery" || kind == "admin" || c.nqn == "nqn.2014-08.org.nvmexpress.discovery"
		entries, _ := os.ReadDir(dir)
		for _, e := range entries {
			if namespaceName.MatchString(e.Name()) {
				c.disks++
			}
		}
		all = append(all, c)
	}
	return all
}

func (c controller) lacksDisks() bool { return c.state == "live" && !c.discovery && c.disks == 0 }

// finding explains a controller without disks by what the kernel logged since it connected.
func (c controller) finding(log kernel.Lines) Finding {
	f := Finding{
		Check: "nvme", Level: Warning, Found: fmt.Sprintf("%s is connected to %s, but has no disks", c.name, display.Text(c.nqn)),
		Cause: "the target has no enabled namespace in this subsystem",
		Fix:   "on the target: krpingctl nvme target list; the disks appear when it has some",
	}
	again := fmt.Sprintf("krpingctl nvme disconnect --device %s, then connect again", c.name)
	var said string
	for _, line := range log {
		text, own := strings.CutPrefix(line, "nvme "+c.name+": ")
		switch {
		case !own:
		case strings.HasPrefix(text, "new ctrl: NQN"):
			said = "" // of an earlier controller with that name
		case (kernel.Lines{text}).Find("identifiers changed for nsid", "uplicate IDs", "IDs don't match", "Identify Descriptors failed", "dentify Namespace failed") != "":
			said = text
		}
	}
	switch {
	case strings.Contains(said, "identifiers changed"):
		f.Cause = fmt.Sprintf("the target was set up anew, with other namespaces than those this host knew (the kernel logged %q)", display.Text(said))
		f.Fix = again
	case said != "":
		f.Cause = fmt.Sprintf("the kernel refused the namespace: it logged %q", display.Text(said))
		f.Fix = "give each namespace of the target an identifier of its own; then " + again
	}
	return f
}
