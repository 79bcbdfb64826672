// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"krping/test/internal/needs"
	"krping/test/lab"
)

func TestUnknownSuite(t *testing.T) {
	dirs := []string{"test/guest/block", "test/guest/faults", "test/hosts/faults"}
	for _, names := range [][]string{{"hosts/block"}, {"block", "blok"}, {"selftest"}} {
		if err := known(dirs, names); err == nil || !strings.Contains(err.Error(), "block, faults") {
			t.Errorf("%v: %v, want an error that names the suites", names, err)
		}
	}
	o := suiteOptions{only: []string{"faults"}, skip: []string{"hosts/faults"}}
	if err := known(dirs, append(o.only, o.skip...)); err != nil {
		t.Error(err)
	}
	for i, want := range []bool{false, true, false} {
		if o.wants(dirs[i]) != want {
			t.Errorf("%s: wanted %t", dirs[i], !want)
		}
	}
}

func testMachine(kernel string, iwarp, first bool) machine {
	m := machine{kernel: kernel, boot: bootOptions{iwarp: iwarp}}
	m.has = has(m, needs.Kernel("6.1.0"))
	if first {
		m.has = append(m.has, string(needs.Once))
	}
	return m
}

func TestApplicable(t *testing.T) {
	const nothing = ""
	list := func(all ...needs.Need) []needs.Need { return all }
	for _, c := range []struct {
		name  string
		m     machine
		list  []needs.Need
		lacks string // how it begins
	}{
		{"a suite without needs", testMachine("6.1", false, true), nil, nothing},
		{"eBPF on a stock kernel", testMachine("6.1", false, true), list(needs.EBPF, needs.Once), nothing},
		{"once, on the second kernel", testMachine("6.12", false, false), list(needs.Once), string(needs.Once)},
		{"only on the debug kernel", testMachine("6.1", false, true), list(needs.DebugKernel), string(needs.DebugKernel)},
		{"the debug kernel", testMachine(lab.Debug, false, true), list(needs.DebugKernel, needs.Once, needs.RoCE), nothing},
		{"eBPF on the debug kernel", testMachine(lab.Debug, false, true), list(needs.EBPF), string(needs.EBPF)},
		{"VMs of a stock kernel", testMachine(lab.Debug, false, true), list(needs.TwoHosts, needs.StockKernel), string(needs.StockKernel)},
		{"without the module", testMachine(lab.Debug, false, true), list(needs.UserSpace), string(needs.UserSpace)},
		{"RoCE over iWARP", testMachine(lab.Debug, true, true), list(needs.RoCE), string(needs.RoCE)},
		{"one transport over iWARP", testMachine(lab.Debug, true, true), list(needs.OneTransport), string(needs.OneTransport)},
		{"for races", testMachine(lab.KCSAN, false, true), list(needs.RaceCheck, needs.OneTransport), nothing},
		{"not for races", testMachine(lab.KCSAN, false, true), list(needs.OneTransport), "a kernel that does not check for races"},
		{"a later kernel", testMachine("6.1", false, true), list(needs.Kernel("6.2")), "kernel 6.2"},
	} {
		if lacks := string(c.m.lacks(c.list)); !strings.HasPrefix(lacks, c.lacks) || (lacks == "") != (c.lacks == "") {
			t.Errorf("%s: lacks %q, want %q", c.name, lacks, c.lacks)
		}
	}
}

// A kernel that there is not fails; the others are used, and the next one takes the place of the first.
func TestMissingKernel(t *testing.T) {
	machines, missing, err := findMachines(bootOptions{kernel: "5.10,6.1"}, false)
	if err != nil || len(machines) != 1 || machines[0].kernel != "6.1" || machines[0].short || len(missing) != 1 || missing["5.10"] == nil {
		t.Fatalf("machines: %v, missing: %v, %v", machines, missing, err)
	}
	if machines[0].lacks([]needs.Need{needs.Once, needs.Ends}) != "" {
		t.Error("the only kernel is not taken for the first and the last one")
	}
	r := runner{pool: newPool(1)}
	var said bytes.Buffer
	r.pool.out = &said
	dir := filepath.Join(t.TempDir(), "results")
	if err := r.missing(dir, "5.10", missing["5.10"]); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err = summarize(&out, dir)
	for _, text := range []string{said.String(), out.String()} {
		if err == nil || !strings.Contains(text, "FAILED  kernel-5.10") || !strings.Contains(text, missing["5.10"].Error()) {
			t.Errorf("%v: %s", err, text)
		}
	}
	if !slices.Equal(r.pool.failed, []string{"kernel-5.10"}) {
		t.Errorf("failed: %q", r.pool.failed)
	}
}

func TestFirstAndLastKernel(t *testing.T) {
	machines, _, err := findMachines(bootOptions{kernel: "6.1,6.12,newest,5.10"}, false)
	if err != nil || len(machines) != 3 {
		t.Fatalf("machines: %v, %v", machines, err)
	}
	for i, want := range []struct{ once, ends bool }{{true, true}, {false, false}, {false, true}} {
		once, ends := machines[i].lacks([]needs.Need{needs.Once}) == "", machines[i].lacks([]needs.Need{needs.Ends}) == ""
		if once != want.once || ends != want.ends || machines[i].short {
			t.Errorf("%v: once: %t, ends: %t, short: %t; want %+v and all cases", machines[i], once, ends, machines[i].short, want)
		}
	}
}
