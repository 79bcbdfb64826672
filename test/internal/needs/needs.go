// SPDX-License-Identifier: Apache-2.0

// Package needs lets a suite, or a test in it, declare what it needs. What a machine does not have
// makes it not applicable there: it is counted as such, with the reason, neither as passed nor as failed.
// A test that skips itself in any other way counts as failed.
package needs

import (
	"os"
	"strings"
	"testing"
)

// Need is something that a suite or a test needs, or a rule for where it runs.
type Need string

// What a kernel, a device, a build or a host has or lacks.
const (
	EBPF        Need = "eBPF"           // tracing programs: the debug kernels have none
	StockKernel Need = "a stock kernel" // modules that the debug kernels are built without
	DebugKernel Need = "the debug kernel"
	RoCE        Need = "RoCE"        // not iWARP
	FaultBuild  Need = "fault hooks" // the module and the bridge built with them
	Browser     Need = "a browser"
	TwoHosts    Need = "two hosts" // two VMs at a time: the suite takes two places of the scheduler
)

// Rules for where and how the lab runs a suite.
const (
	// Once is for a suite that hardly depends on the kernel: of several stock kernels it gets the first.
	Once Need = "the first kernel only"
	// OneTransport is for a suite that hardly depends on the transport: it runs over RoCE.
	OneTransport Need = "RoCE only: it hardly depends on the transport"
	// RaceCheck is for a suite in which many threads meet in the module: it also runs on the kernel that
	// looks for data races (KCSAN), where others do not.
	RaceCheck Need = "also the race-checking kernel"
	// PatchesCode is for a suite in which the kernel patches its own code again and again, for tracers
	// or firewall rules: its VM's CPUs run in turn (lab.Config.InTurn).
	PatchesCode Need = "CPUs in turn"
)

// Kernel is the need of a kernel of that version or later, such as "6.2".
func Kernel(version string) Need { return kernelPrefix + Need(version) }

const kernelPrefix = "kernel "

// Suite declares the needs of a whole suite, once in its package:
//
//	var _ = needs.Suite(needs.EBPF, needs.Once)
//
// The lab reads the declaration from the source, before it boots a VM. A suite that needs nothing
// declares that, too.
func Suite(...Need) struct{} { return struct{}{} }

// Mark begins the reason of a test that is not applicable.
const Mark = "not applicable: needs "

// Variable is the environment variable in which the lab names what the machine has, separated by commas.
const Variable = "KRPING_HAS"

// Test declares the needs of one test or subtest, at its beginning, and ends it if the machine lacks one.
func Test(t testing.TB, list ...Need) {
	t.Helper()
	if lacks := Have(strings.Split(os.Getenv(Variable), ",")).Lacks(list); lacks != "" {
		t.Skip(Mark + string(lacks))
	}
}
