// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Scripts that let kmemleak scan for memory without references and print what it found. It reports objects
// that are at least 5 s old and did not change between two scans.
const (
	withModule    = `cd /sys/kernel/debug && echo scan > kmemleak && sleep 6 && echo scan > kmemleak && cat kmemleak`
	withoutModule = `rmmod rdma_krping && cd /sys/kernel/debug && echo scan > kmemleak && cat kmemleak`
)

// CheckMemory looks for memory that the module has leaked, in a VM with the debug kernel: first while the
// module is loaded, so that its functions have names, then after unloading it, which must succeed. It also
// checks that lockdep is still on. Leaks of others are returned as a note.
func (vm *VM) CheckMemory(ctx context.Context) (note string, err error) {
	state, err := vm.Output(ctx, "grep debug_locks: /proc/lockdep_stats")
	if err != nil {
		return "", fmt.Errorf("read lockdep's state: %w: %s", err, state)
	}
	var failures []error
	if !strings.HasSuffix(strings.TrimSpace(state), " 1") {
		failures = append(failures, errors.New("lockdep has turned itself off"))
	}
	for _, script := range []string{withModule, withoutModule} {
		report, err := vm.Output(ctx, script)
		if err != nil {
			return "", fmt.Errorf("look for leaks: %w: %s", err, report)
		}
		ours, others := leaks(report)
		if ours != "" {
			failures = append(failures, fmt.Errorf("the module leaks memory:\n%s", ours))
			break // it would be reported again without the module
		}
		note = others
	}
	return note, errors.Join(failures...)
}

// ourFrame matches a function of the module in the backtrace of a leak, or one of an unloaded module, which
// was ours, too.
var ourFrame = regexp.MustCompile(`\[rdma_krping\]|\] 0x`)

// othersFrame is a kernel function that leaks by itself: the name of a slab cache when sysfs has no memory.
const othersFrame = "sysfs_slab_add+"

// leaks splits kmemleak's report into objects that the module has allocated and others.
func leaks(report string) (ours, others string) {
	for i, object := range strings.Split(report, "unreferenced object ") {
		switch {
		case i == 0: // the text before the first object
		case ourFrame.MatchString(object) && !strings.Contains(object, othersFrame):
			ours += "unreferenced object " + object
		default:
			others += "unreferenced object " + object
		}
	}
	return ours, others
}
