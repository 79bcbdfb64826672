// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Scripts that have kmemleak look for memory that nobody points to, and print it. An object has to
// be 5 s old, and to be the same at two looks.
const (
	withModule    = `cd /sys/kernel/debug && echo scan > kmemleak && sleep 6 && echo scan > kmemleak && cat kmemleak`
	withoutModule = `rmmod rdma_krping && cd /sys/kernel/debug && echo scan > kmemleak && cat kmemleak`
)

// CheckMemory looks for what the module has leaked in a VM with the debug kernel; first with the
// module, so that its functions have names, and then without it, which nothing may hold. It also
// checks that lockdep was on all the time. Leaks of others are returned as a note.
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
			break // without the module the same
		}
		note = others
	}
	return note, errors.Join(failures...)
}

// ourFrame is a function of the module in the backtrace of a leak, or of a module that was
// unloaded: that was ours, too.
var ourFrame = regexp.MustCompile(`\[rdma_krping\]|\] 0x`)

// othersFrame is a function that loses memory whoever calls it: the name of a slab cache that cannot be
// shown in sysfs, for lack of memory.
const othersFrame = "sysfs_slab_add+"

// leaks parts kmemleak's report into the objects that the module has allocated and the rest.
func leaks(report string) (ours, others string) {
	for i, object := range strings.Split(report, "unreferenced object ") {
		switch {
		case i == 0: // before the first one
		case ourFrame.MatchString(object) && !strings.Contains(object, othersFrame):
			ours += "unreferenced object " + object
		default:
			others += "unreferenced object " + object
		}
	}
	return ours, others
}
