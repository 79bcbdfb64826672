// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"krping/test/internal/needs"
	"krping/test/lab"
)

// machine is what suites run on: a kernel, with a transport.
type machine struct {
	kernel string // its name
	boot   bootOptions
	slow   int  // how many times longer things take
	short  bool // tests of many cases take a part of them
	has    needs.Have
}

// String names the machine, such as debug-iwarp.
func (m machine) String() string {
	if m.boot.iwarp {
		return m.kernel + "-iwarp"
	}
	return m.kernel
}

// findMachines returns one for each kernel of the options, which may name several. missing says of which
// kernels there is none, and why; they count neither as the first nor as the last kernel.
func findMachines(boot bootOptions, short bool) (machines []machine, missing map[string]error, err error) {
	names := strings.Split(boot.kernel, ",")
	if boot.out != "" && len(names) > 1 {
		return nil, nil, errors.New("--out: one directory cannot take the logs of several kernels")
	}
	var kernels []lab.Kernel
	missing = map[string]error{}
	for _, name := range names {
		if kernel, err := lab.FindKernel(name); err != nil {
			missing[name] = err
		} else {
			kernels = append(kernels, kernel)
		}
	}
	for i, kernel := range kernels {
		m := machine{kernel: kernel.Name, boot: boot, slow: kernel.Slow, short: short}
		m.boot.kernel = kernel.Name
		version, _, _ := strings.Cut(kernel.Release, "-")
		m.has = has(m, needs.Kernel(version))
		if i == 0 {
			m.has = append(m.has, string(needs.Once))
		}
		if i == 0 || i == len(kernels)-1 {
			m.has = append(m.has, string(needs.Ends))
		}
		machines = append(machines, m)
	}
	return machines, missing, nil
}

// has returns what the machine has, and the rules that let a suite run on it, but for those of the kernels' order.
func has(m machine, version needs.Need) needs.Have {
	list := []needs.Need{version, needs.TwoHosts, needs.RaceCheck}
	add := func(condition bool, what ...needs.Need) {
		if condition {
			list = append(list, what...)
		}
	}
	add(!built(m.kernel), needs.EBPF, needs.StockKernel, needs.UserSpace)
	add(m.kernel == lab.Debug, needs.DebugKernel)
	add(!m.boot.iwarp, needs.RoCE, needs.OneTransport)
	add(exists(filepath.Join(lab.Build(), "kmod", m.kernel+"-faults", "rdma_krping.ko")), needs.FaultBuild)
	_, err := exec.LookPath("chromium")
	add(err == nil, needs.Browser)
	var have needs.Have
	for _, need := range list {
		have = append(have, string(need))
	}
	return have
}

func built(kernel string) bool { return kernel == lab.Debug || kernel == lab.KCSAN }

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// lacks returns what a suite with these needs lacks on the machine, or "".
func (m machine) lacks(list []needs.Need) needs.Need {
	if lacks := m.has.Lacks(list); lacks != "" {
		return lacks
	}
	if m.kernel == lab.KCSAN && !slices.Contains(list, needs.RaceCheck) {
		return "a kernel that does not check for races: few threads meet in it"
	}
	return ""
}
