// SPDX-License-Identifier: Apache-2.0

// Package needs lets a suite, or a test in it, declare what it needs. On a machine that lacks it, the test is
// not applicable: it counts neither as passed nor as failed, and the reason is printed. A test that skips
// itself in any other way counts as failed.
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
	EBPF        Need = "eBPF"           // tracing programs; the debug kernels cannot run them
	StockKernel Need = "a stock kernel" // modules and options that the debug kernels lack
	DebugKernel Need = "the debug kernel"
	UserSpace   Need = "a stock kernel: the module takes no part" // and the debug kernels are slow
	RoCE        Need = "RoCE"                                     // not iWARP
	FaultBuild  Need = "fault hooks"                              // in the module and the bridge
	Browser     Need = "a browser"
	TwoHosts    Need = "two hosts" // two VMs: the suite takes two of the scheduler's slots
)

// Rules for where and how the lab runs a suite.
const (
	// Once is for a suite or test that hardly depends on the kernel: it runs on the first stock kernel only.
	Once Need = "the first kernel only"
	// Long is for a single test that takes an hour, or whose moment comes in one of many tries: it runs with the option
	// --soak, which its target of make has.
	Long Need = "the long form (--soak)"
	// Ends is for a suite or test that depends on the kernel, but sees nothing new on those between the oldest and the
	// newest: it runs on the first and the last kernel.
	Ends Need = "the first or the last kernel"
	// OneTransport is for a suite that hardly depends on the transport: it runs over RoCE.
	OneTransport Need = "RoCE only: it hardly depends on the transport"
	// RaceCheck is for a suite with many concurrent threads in the module: only such suites run on the
	// kernel that detects data races (KCSAN), besides the others. On a stock kernel their VM's CPUs run at
	// once, those of other suites in turn (lab.Config.AtOnce).
	RaceCheck Need = "also the race-checking kernel"
)

// Kernel is the need for a kernel of a version, such as "6.2", or later.
func Kernel(version string) Need { return kernelPrefix + Need(version) }

const kernelPrefix = "kernel "

// Suite declares the needs of a whole suite, once in its package:
//
//	var _ = needs.Suite(needs.EBPF, needs.Once)
//
// The lab reads the declaration from the source before it boots a VM. A suite without needs calls Suite
// without arguments.
func Suite(...Need) struct{} { return struct{}{} }

// Mark begins the reason of a test that is not applicable.
const Mark = "not applicable: needs "

// Variable is the environment variable in which the lab lists what the machine has, separated by commas.
const Variable = "KRPING_HAS"

// Test declares the needs of one test or subtest. Call it first: it skips the test if the machine lacks one.
func Test(t testing.TB, list ...Need) {
	t.Helper()
	if lacks := Have(strings.Split(os.Getenv(Variable), ",")).Lacks(list); lacks != "" {
		t.Skip(Mark + string(lacks))
	}
}
