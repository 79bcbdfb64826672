// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"krping/test/lab"
	"krping/test/lab/insns"
)

// VerbsCount is what a message takes, by count and not by time: the difference between many and few messages,
// divided by theirs. Programs sleep for completions here, as a busy-polling one takes what there is; perftest's tests of
// WRITE cannot.
type VerbsCount struct {
	Test      string `json:"test"`
	QP        string `json:"qp"`
	Verb      string `json:"verb"`
	Size      int    `json:"size"`
	Contender string `json:"contender"`

	Packets     float64 `json:"packets"`     // sent and received by the client's device
	Posts       float64 `json:"posts"`       // work requests of the client
	Completions float64 `json:"completions"` // that the client has polled
	Derived     bool    `json:"derived"`     // posts and completions follow from the options: perftest does not count

	Server  VerbsHostCount `json:"server"`
	Client  VerbsHostCount `json:"client"`
	Failure string         `json:"failure,omitempty"`
}

// VerbsHostCount is what a message takes on one host, of all that runs there. Process is the bridge's alone: perftest's
// programs busy-wait for each other, and for the clock, before they start, and krpingctl only prints a result.
type VerbsHostCount struct {
	Switches float64 `json:"context_switches"`
	Kernel   float64 `json:"kernel_instructions"`
	Process  float64 `json:"process_instructions"`
	Steady   float64 `json:"steady_instructions"`     // without scheduler and interrupts, whose part depends on time: packets share interrupts
	OnNIC    float64 `json:"instructions_with_a_nic"` // without Soft-RoCE, network stack, copies and checksums
}

// Instructions returns those of both hosts.
func (c VerbsCount) Instructions() float64 {
	return c.Server.Kernel + c.Server.Process + c.Client.Kernel + c.Client.Process
}

func (c VerbsCount) steady() float64 { return c.Server.Steady + c.Client.Steady }

// counts returns the messages of two runs.
func (t VerbsTest) counts(size int) (few, many int) {
	switch {
	case t.Latency && size <= 4096:
		return 200, 2200
	case t.Latency:
		return 40, 240
	case size <= 4096:
		return 512, 8704
	}
	return depth(size), 5 * depth(size)
}

// looksAtMemory tells whether all contenders busy-poll in a test: what arrives makes no completion.
func (t VerbsTest) looksAtMemory() bool { return t.Verb == "write" && t.Latency }

// countSite is the two VMs, where counters are read and tests are run.
type countSite struct {
	site
	verbs verbsSite
}

// Count counts, in a lab that counts. Tests in which nothing sleeps are left out.
func (v *Verbs) Count(ctx context.Context) ([]VerbsCount, error) {
	s := &countSite{site: site{server: v.Lab.VM(0), client: v.Lab.VM(1), log: v.Log}, verbs: verbsSite{server: v.Lab.VM(0), client: v.Lab.VM(1)}}
	hosts, err := s.kernelSymbols(ctx)
	if err != nil {
		return nil, err
	}
	var counts []VerbsCount
	for _, t := range v.Tests {
		if t.looksAtMemory() {
			continue
		}
		for _, size := range t.sizes(v.Sizes) {
			for _, name := range v.Contenders {
				c, err := v.median(ctx, s, hosts, t, size, name)
				if errors.Is(err, lab.ErrVMGone) || ctx.Err() != nil {
					return counts, err
				}
				fmt.Fprintf(v.Log, "%s\n", strings.Join(c.cells(), "  "))
				counts = append(counts, c)
			}
		}
	}
	return counts, nil
}

// median returns the count with the median of instructions of all rounds.
func (v *Verbs) median(ctx context.Context, s *countSite, hosts [2]*symbols, t VerbsTest, size int, name string) (VerbsCount, error) {
	var rounds []VerbsCount
	for range v.Rounds {
		c, err := count(ctx, s, hosts, t, size, name)
		c.Test, c.QP, c.Verb, c.Size, c.Contender = t.Program, t.QP, t.Verb, size, name
		if err != nil {
			fmt.Fprintln(v.Log, err)
			c.Failure = err.Error()
			return c, err
		}
		rounds = append(rounds, c)
	}
	slices.SortFunc(rounds, func(a, b VerbsCount) int { return int(a.Instructions() - b.Instructions()) })
	return rounds[len(rounds)/2], nil
}

func count(ctx context.Context, s *countSite, hosts [2]*symbols, t VerbsTest, size int, name string) (c VerbsCount, err error) {
	few, many := t.counts(size)
	var runs [2]ran
	for i, n := range []int{few, many} {
		r := verbsRun{test: t, size: size, count: n, poll: name == perftest && t.Verb == "write"} // it cannot sleep there
		if runs[i], err = tryAgain(func() (ran, error) { return s.ran(ctx, verbsContenders[name], r) }); err != nil {
			return c, err
		}
	}
	base, all := runs[0], runs[1]
	each := func(all, base uint64) float64 { return float64(int64(all-base)) / float64(many-few) }
	c.Packets = each(all.packets, base.packets)
	if c.Derived = name == perftest; c.Derived {
		c.Posts, c.Completions = 1, t.perftestCompletions(size)
	} else {
		c.Posts = each(all.sample.posts, base.sample.posts)
		c.Completions = each(all.sample.completions, base.sample.completions)
	}
	for i, host := range []*VerbsHostCount{&c.Server, &c.Client} {
		host.Switches = each(all.switches[i], base.switches[i])
		host.add(hostCost(base.insns[i], all.insns[i], float64(many-few), hosts[i], i == 0), name == bridgeVerbs || name == bridgeChecks)
	}
	return c, nil
}

// add adds the instructions of the kernel, and of processes.
func (h *VerbsHostCount) add(cost HostCost, processes bool) {
	for layer, each := range cost.Layers {
		isProcess := layer == layerApplication || layer == layerBridge
		switch {
		case isProcess && processes:
			h.Process += each
		case !isProcess:
			h.Kernel += each
		}
		if isProcess && processes || !isProcess && layer != layerSchedule {
			h.Steady += each
		}
		if isProcess && processes || !isProcess && layer.onNIC() {
			h.OnNIC += each
		}
	}
}

// perftestCompletions returns what perftest's client polls for each message: one in so many of a bandwidth test, each
// one of a latency test, and there each answer that is a SEND.
func (t VerbsTest) perftestCompletions(size int) float64 {
	switch {
	case !t.Latency:
		return 1 / float64(sharing(size))
	case t.Verb == "send":
		return 2
	}
	return 1
}

// ran is what both hosts, the server first, counted in one run.
type ran struct {
	sample   verbsSample
	insns    [2]insns.Counts
	switches [2]uint64
	packets  uint64 // of the client
}

func (s *countSite) ran(ctx context.Context, c verbsContender, r verbsRun) (ran, error) {
	before, err := s.look(ctx)
	if err != nil {
		return ran{}, err
	}
	sample, err := s.verbs.measure(ctx, c, r)
	if err != nil {
		return ran{}, err
	}
	after, err := s.look(ctx)
	after.sample = sample
	after.packets -= before.packets
	for i := range after.insns {
		after.insns[i] = after.insns[i].Sub(before.insns[i])
		after.switches[i] -= before.switches[i]
	}
	return after, err
}

// look reads the counters of both hosts. What that takes is in each run alike.
func (s *site) look(ctx context.Context) (r ran, err error) {
	for i, vm := range []*lab.VM{s.server, s.client} {
		out, err := s.run(ctx, vm, "grep -H '' /proc/stat "+rxeCounters+"/*_pkts")
		if err != nil {
			return r, err
		}
		switches, packets, err := parseSwitches(out)
		if err != nil {
			return r, err
		}
		r.switches[i], r.packets = switches, packets // the client is last
		if r.insns[i], err = vm.Counts(); err != nil {
			return r, err
		}
	}
	return r, nil
}

// parseSwitches reads lines of "file:line of that file": context switches, and packets in both directions.
func parseSwitches(text string) (switches, packets uint64, err error) {
	found := 0
	for line := range strings.Lines(text) {
		file, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		number, sum := value, &packets
		switch name := path.Base(file); {
		case name == "stat" && strings.HasPrefix(value, "ctxt "):
			number, sum = value[len("ctxt "):], &switches
		case name != "sent_pkts" && name != "rcvd_pkts":
			continue
		}
		n, err := strconv.ParseUint(number, 10, 64)
		if err != nil {
			return 0, 0, fmt.Errorf("%s: %w", file, err)
		}
		*sum += n
		found++
	}
	if found != 3 {
		return 0, 0, fmt.Errorf("%d of three counters found", found)
	}
	return switches, packets, nil
}

// kernelSymbols returns those of both hosts, server first.
func (s *site) kernelSymbols(ctx context.Context) (hosts [2]*symbols, err error) {
	for i, vm := range []*lab.VM{s.server, s.client} {
		text, err := s.run(ctx, vm, "cat /proc/kallsyms")
		if err != nil {
			return hosts, err
		}
		if hosts[i], err = parseKallsyms(text); err != nil {
			return hosts, err
		}
	}
	return hosts, nil
}

// cells returns what the report shows.
func (c VerbsCount) cells() []string {
	cells := []string{c.Test, verbsType(c.QP, c.Verb), fmt.Sprint(c.Size), c.Contender}
	if c.Failure != "" {
		return append(cells, "FAILED", "", "", "", "", "", "", "")
	}
	mark, process := "", fmt.Sprintf("%.0f + %.0f", c.Server.Process, c.Client.Process)
	if c.Derived {
		mark, process = "*", "-"
	}
	return append(cells, fmt.Sprintf("%.2f", c.Packets), fmt.Sprintf("%.2f%s", c.Posts, mark), fmt.Sprintf("%.2f%s", c.Completions, mark),
		fmt.Sprintf("%.1f + %.1f", max(c.Server.Switches, 0), max(c.Client.Switches, 0)),
		fmt.Sprintf("%.0f + %.0f", c.Server.Kernel, c.Client.Kernel), process,
		fmt.Sprintf("%.0f", c.Instructions()), fmt.Sprintf("%.0f", c.steady()))
}
