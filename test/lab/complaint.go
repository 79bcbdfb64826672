// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

// complaints match kernel messages that fail a run. RCU stalls and soft lockups are not among them: a
// starved emulator causes those in a healthy kernel. Hung tasks are.
var complaints = regexp.MustCompile(strings.Join([]string{
	`\bBUG: `, `\bkernel BUG at `, `\bWARNING: (CPU|\S+:\d+ at |possible|bad|suspicious|inconsistent|[Nn]ested|held lock|lock held|still has locks)`, `\bKASAN: `, `\bUBSAN: `,
	`\bOops\b`, `general protection fault`, `unable to handle kernel`, `Kernel panic`, `blocked for more than \d+ seconds`,
	`possible circular locking`, `possible recursive locking`, `inconsistent lock state`, `turning off the locking correctness validator`, `trying to register non-static key`, `suspicious RCU usage`, `sleeping function called from invalid`,
	`scheduling while atomic`, `refcount_t: `, `list_(add|del) corruption`, `unregister_netdevice: waiting`, `DMA-API: (\S+ \S+: |exceeded )`, `ODEBUG: `, `Bad page state`,
	`slab-out-of-bounds`, `use-after-free`, `Objects remaining in`, `has still .* objects`,
	`^qemu-system-\S+: .*Assertion .* failed`, // QEMU itself
}, "|"))

var starvation = regexp.MustCompile(`BUG: (soft lockup|workqueue lockup)`)

// Only data races in the module count: the kernel has many of its own, which it tolerates.
var (
	race     = regexp.MustCompile(`BUG: KCSAN: `)
	ourRaces = "[rdma_krping]"
)

// around is how many lines a report shows after a complaint; it shows a third of them before it.
const around = 30

// isComplaint reports whether a line of the console fails the run.
func isComplaint(line string) bool {
	if race.MatchString(line) {
		return strings.Contains(line, ourRaces)
	}
	return complaints.MatchString(line) && !starvation.MatchString(line)
}

// stuckCPU matches the messages in which the kernel shows what a stuck CPU is doing.
var stuckCPU = regexp.MustCompile(`BUG: soft lockup|NMI backtrace for cpu`)

// findStuckCPU returns the first report of a stuck CPU in a console's log, or "". It is not a complaint, but
// may explain one, or a suite that does not end.
func findStuckCPU(log string) string {
	lines := strings.Split(log, "\n")
	if i := slices.IndexFunc(lines, stuckCPU.MatchString); i >= 0 {
		return strings.Join(lines[i:min(len(lines), i+around)], "\n")
	}
	return ""
}

// stackEntry matches an entry of a stack, but not one that the kernel marks as a guess by a "?".
var stackEntry = regexp.MustCompile(`^(?:\[[^]]*\]\s*)?([A-Za-z_][\w.]*)\+0x[0-9a-f]+/0x[0-9a-f]+`)

// stackEntries is how many of a stack the first line of a report has.
const stackEntries = 12

// stackOf returns the functions of the first stack in lines, innermost first, or "".
func stackOf(lines []string) string {
	var functions []string
	for _, line := range lines {
		if m := stackEntry.FindStringSubmatch(strings.TrimSpace(line)); m != nil {
			functions = append(functions, m[1])
		}
		if len(functions) == stackEntries || strings.Contains(line, "</TASK>") {
			break
		}
	}
	if len(functions) == 0 {
		return ""
	}
	return " (in " + strings.Join(functions, " < ") + ")"
}

// findComplaint returns a report on the first complaint in the console's log, with the
// lines around it, or "". Lines that contain one of the expected strings do not count.
func findComplaint(log string, expected []string) string {
	lines := strings.Split(log, "\n")
	for i, line := range lines {
		isExpected := func(s string) bool { return strings.Contains(line, s) }
		if !isComplaint(line) || slices.ContainsFunc(expected, isExpected) {
			continue
		}
		from, to := max(0, i-around/3), min(len(lines), i+around)
		return fmt.Sprintf("the kernel complains: %s%s\n--- console around it:\n%s\n---", strings.TrimSpace(line), stackOf(lines[i:to]), strings.Join(lines[from:to], "\n"))
	}
	return ""
}
