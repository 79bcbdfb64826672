// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// perftestCommand returns the command of perftest's server, which the client's starts with.
func perftestCommand(r verbsRun) string {
	t := r.test
	command := fmt.Sprintf("%s -F -d rxe0 -p %d -n %d", t.Program, r.port, r.count)
	if t.QP != "uc" { // "UC is not supported in librdmacm"
		command += " -R"
	}
	if !t.fetches() {
		command += " -c " + strings.ToUpper(t.QP)
	}
	switch t.Verb {
	case "fetch_add":
		command += " -A FETCH_AND_ADD"
	case "cmp_swap":
		command += " -A CMP_AND_SWAP"
	default:
		command += fmt.Sprintf(" -s %d", r.size)
	}
	if !r.poll {
		command += " -e"
	}
	if t.Latency {
		return command
	}
	command += fmt.Sprintf(" -t %d -Q %d", depth(r.size), sharing(r.size))
	if t.Verb == "send" {
		command += fmt.Sprintf(" -r %d", receives)
	}
	if t.fetches() {
		command += fmt.Sprintf(" -o %d", outstanding)
	}
	return command
}

func parsePerftest(r verbsRun, out string) (verbsSample, error) {
	head, scale := "t_typical", 1.0
	switch r.test.unit(r.size) {
	case "messages/s":
		head, scale = "MsgRate", 1e6
	case "Gbit/s":
		head, scale = "BW average", 8*(1<<20)/1e9 // "MB", which are MiB, have more digits than with --report_gbits
	}
	value, err := perftestColumn(head)(out)
	if err == nil && value <= 0 {
		err = fmt.Errorf("perftest's %s is %v", head, value)
	}
	return verbsSample{value: value * scale}, err
}

// perftestColumn returns a function that reads the column with that head from perftest's table.
func perftestColumn(head string) func(string) (float64, error) {
	return func(out string) (float64, error) {
		lines := strings.Split(out, "\n")
		for i, line := range lines {
			if !strings.HasPrefix(strings.TrimSpace(line), "#bytes") || i+1 == len(lines) {
				continue
			}
			// Heads have spaces, but each ends with a unit in brackets.
			heads := strings.FieldsFunc(line, func(r rune) bool { return r == ']' })
			column := slices.IndexFunc(heads, func(h string) bool { return strings.Contains(h, head) })
			values := strings.Fields(lines[i+1])
			if column < 0 {
				break
			}
			column += 2 // the first head includes "#bytes" and "#iterations"
			if column >= len(values) {
				break
			}
			return strconv.ParseFloat(values[column], 64)
		}
		return 0, fmt.Errorf("perftest's output has no %s:\n%s", head, out)
	}
}
