// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"

	"krping/test/lab"
	"krping/test/lab/insns"
)

// Costs counts the instructions that an I/O takes on both hosts.
type Costs struct {
	Lab        *lab.Lab // two VMs with the module that count: VM 1 serves, VM 2 measures
	Log        io.Writer
	Jobs       []Job
	Contenders []string // of CostContenders and TracedContenders
	Rounds     int      // of each job
	DiskSize   int      // MiB
	FIO        FIO
}

// CostJobs returns the jobs whose instructions are counted.
func CostJobs() []Job {
	var jobs []Job
	for _, size := range []int{4 << 10, 16 << 10, 64 << 10, 1 << 20} {
		for _, mode := range []string{"randread", "randwrite"} {
			for _, depth := range []int{1, 32} {
				jobs = append(jobs, newJob(mode, size, depth, 1))
			}
		}
	}
	return jobs
}

// ios returns the I/Os of two runs of fio. Their difference has no part of fio's start and end.
func (j Job) ios() (few, many int) {
	switch {
	case j.Size <= 4<<10 && j.Depth > 1:
		return 1000, 5000
	case j.Size <= 16<<10:
		return 200, 1000
	case j.Size <= 64<<10:
		return 100, 400
	}
	return 32, 96
}

// HostCost is what an I/O costs one host, in instructions. All leaves out the application, fio: it calibrates its
// clock for a time and not for a number of instructions, which is more than its I/O takes.
type HostCost struct {
	All       float64           `json:"all"`
	Layers    map[Layer]float64 `json:"layers"`
	Calls     map[Call]float64  `json:"calls"`
	functions map[Function]float64
}

// onNIC returns what is left of All when a NIC replaces Soft-RoCE.
func (h HostCost) onNIC() (sum float64) {
	for layer, n := range h.Layers {
		if layer.onNIC() {
			sum += n
		}
	}
	return sum
}

// IOCost is what an I/O of a job costs a contender in one round.
type IOCost struct {
	Server HostCost `json:"server"`
	Client HostCost `json:"client"`
}

// All returns the instructions of both hosts.
func (c IOCost) All() float64 { return c.Server.All + c.Client.All }

// OnNIC returns those that are left when a NIC replaces Soft-RoCE.
func (c IOCost) OnNIC() float64 { return c.Server.onNIC() + c.Client.onNIC() }

// JobCost is what an I/O of a job costs a contender.
type JobCost struct {
	Job       string   `json:"job"`
	Contender string   `json:"contender"`
	Rounds    []IOCost `json:"rounds"` // by All
}

// Steady returns the instructions of all layers whose part repeats from run to run.
func (c IOCost) Steady() (sum float64) {
	for _, h := range []HostCost{c.Server, c.Client} {
		for layer, n := range h.Layers {
			if layer.steady() {
				sum += n
			}
		}
	}
	return sum
}

// Median returns the median of the rounds.
func (c JobCost) Median() IOCost { return c.Rounds[len(c.Rounds)/2] }

// Run sets up each contender in turn and counts.
func (c *Costs) Run(ctx context.Context) ([]JobCost, error) {
	s := &site{server: c.Lab.VM(0), client: c.Lab.VM(1), log: c.Log}
	disks, err := s.disksOf(ctx, "brd", len(c.Contenders), c.DiskSize)
	if err != nil {
		return nil, err
	}
	var costs []JobCost
	for i, name := range c.Contenders {
		more, err := c.contender(ctx, s, name, disks[i])
		if err != nil {
			return costs, fmt.Errorf("%s: %w", name, err)
		}
		costs = append(costs, more...)
	}
	return costs, nil
}

func (c *Costs) contender(ctx context.Context, s *site, name, disk string) (costs []JobCost, err error) {
	contender := newContender(name)
	device, err := contender.attach(ctx, s, disk)
	defer func() {
		if undo := contender.detach(ctx, s); err == nil {
			err = undo
		}
	}()
	if err != nil {
		return nil, err
	}
	hosts, err := c.symbols(ctx, s, name)
	if err != nil {
		return nil, err
	}
	// The first fio of all reads its files.
	if _, err := s.run(ctx, s.client, c.FIO.fixed(device, c.Jobs[0], 1)); err != nil {
		return nil, err
	}
	for _, j := range c.Jobs {
		var rounds []IOCost
		for range c.Rounds {
			cost, err := c.count(ctx, s, j, device, hosts)
			if err != nil {
				return costs, fmt.Errorf("%s: %w", j.Name, err)
			}
			fmt.Fprintf(c.Log, "  %s, %s: server %.0f, client %.0f; with a NIC %.0f, %.0f\n", name, j.Name, cost.Server.All, cost.Client.All, cost.Server.onNIC(), cost.Client.onNIC())
			rounds = append(rounds, cost)
		}
		slices.SortFunc(rounds, func(a, b IOCost) int { return int(a.All() - b.All()) })
		costs = append(costs, JobCost{j.Name, name, rounds})
	}
	return costs, nil
}

// symbols returns those of both hosts, server first.
func (c *Costs) symbols(ctx context.Context, s *site, contender string) ([2]*symbols, error) {
	hosts, err := s.kernelSymbols(ctx)
	if err != nil {
		return hosts, err
	}
	if contender == bridgeTarget {
		return hosts, hosts[0].addProgram(filepath.Join(lab.Build(), "krping-bridge"))
	}
	if isTraced(contender) {
		return hosts, hosts[1].addProgram(filepath.Join(lab.Build(), "krpingctl"))
	}
	return hosts, nil
}

// count counts what an I/O costs: the difference of two runs of fio, by their I/Os.
func (c *Costs) count(ctx context.Context, s *site, j Job, device string, hosts [2]*symbols) (IOCost, error) {
	few, many := j.ios()
	end := ""
	if hosts[1].program != nil {
		end = "\nsleep 2" // a tracer shows the last I/Os
	}
	base, err := c.executed(ctx, s, c.FIO.fixed(device, j, few)+end)
	if err != nil {
		return IOCost{}, err
	}
	all, err := c.executed(ctx, s, c.FIO.fixed(device, j, many)+end)
	if err != nil {
		return IOCost{}, err
	}
	s.ios += few + many
	n := float64(many - few)
	return IOCost{Server: hostCost(base[0], all[0], n, hosts[0], true), Client: hostCost(base[1], all[1], n, hosts[1], false)}, nil
}

// executed returns what both hosts execute, server first, while the client runs a script.
func (c *Costs) executed(ctx context.Context, s *site, script string) (counts [2]insns.Counts, err error) {
	read := func() (at [2]insns.Counts, err error) {
		for i, vm := range []*lab.VM{s.server, s.client} {
			if at[i], err = vm.Counts(); err != nil {
				return at, err
			}
		}
		return at, nil
	}
	before, err := read()
	if err != nil {
		return counts, err
	}
	if _, err := s.run(ctx, s.client, script); err != nil {
		return counts, err
	}
	after, err := read()
	for i := range counts {
		counts[i] = after[i].Sub(before[i])
	}
	return counts, err
}

// hostCost returns what each of n I/Os adds.
func hostCost(base, all insns.Counts, n float64, s *symbols, server bool) HostCost {
	h := HostCost{Layers: map[Layer]float64{}, Calls: map[Call]float64{}, functions: map[Function]float64{}}
	addresses := maps.Clone(all)
	for address := range base {
		addresses[address] = all[address]
	}
	for address := range addresses {
		each := (float64(all[address].Insns) - float64(base[address].Insns)) / n
		f := s.at(address)
		if call := callOf(f); call != "" && s.begins(address) {
			h.Calls[call] += (float64(all[address].Runs) - float64(base[address].Runs)) / n
		}
		h.functions[f] += each
		h.Layers[layerOf(f, server)] += each
	}
	for layer, each := range h.Layers {
		if layer != layerApplication {
			h.All += each
		}
	}
	return h
}
