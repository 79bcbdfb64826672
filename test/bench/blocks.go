// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"fmt"
	"io"
	"slices"

	"krping/test/lab"
)

// Blocks compares block devices over the network, all in the same two VMs in one run.
type Blocks struct {
	Lab        *lab.Lab // two VMs with the module: VM 1 serves, VM 2 measures
	Log        io.Writer
	Jobs       []Job
	Contenders []string
	Rounds     int // of each job; the median counts
	Backing    string
	DiskSize   int // MiB
	FIO        FIO
	Verify     bool
}

// Job is a workload of fio.
type Job struct {
	Name  string `json:"name"`
	Mode  string `json:"mode"` // fio's rw
	Size  int    `json:"size"` // bytes of an I/O
	Depth int    `json:"depth"`
	Jobs  int    `json:"jobs"`

	Polled bool `json:"polled,omitempty"` // completions by IOPOLL
}

const mixRead = 70 // per cent of reads in a mixed job

// AllJobs returns the jobs of a whole run.
func AllJobs() []Job {
	var jobs []Job
	for _, size := range []int{4 << 10, 64 << 10, 1 << 20} {
		for _, mode := range []string{"randread", "randwrite", "randrw"} {
			for _, depth := range []int{1, 32} {
				jobs = append(jobs, newJob(mode, size, depth, 1))
				if size == 4<<10 {
					jobs = append(jobs, newJob(mode, size, depth, 2))
				}
			}
		}
	}
	for _, mode := range []string{"randread", "randwrite"} {
		j := newJob(mode, 4<<10, 1, 1)
		j.Name += "-polled"
		j.Polled = true
		jobs = append(jobs, j)
	}
	return jobs
}

func newJob(mode string, size, depth, jobs int) Job {
	bytes := fmt.Sprintf("%dk", size>>10)
	if size >= 1<<20 {
		bytes = fmt.Sprintf("%dm", size>>20)
	}
	name := fmt.Sprintf("%s-%s-qd%d", bytes, mode, depth)
	if jobs > 1 {
		name += fmt.Sprintf("-x%d", jobs)
	}
	return Job{Name: name, Mode: mode, Size: size, Depth: depth, Jobs: jobs}
}

// A target is the least wanted ratio of one contender's throughput to another's.
type target struct {
	ours, peer string
	least      float64
	of         func(Job) bool
}

var targets = []target{
	{kernelTarget, nvmeRDMA, 2.0, func(j Job) bool { return j.Size == 4<<10 && j.Depth > 1 }},
	{kernelTarget, nvmeRDMA, 1.3, func(j Job) bool { return j.Size == 4<<10 && j.Depth == 1 }},
	{kernelTarget, nvmeRDMA, 1.1, func(j Job) bool { return j.Size >= 64<<10 }},
	{kernelTarget, rawVerbs, 0.9, func(j Job) bool { return verbsCan(j) && j.Depth > 1 }},
	{bridgeTarget, nvmeRDMA, 1.0, func(Job) bool { return true }},
}

// peer is a contender in a run.
type peer struct {
	name    string
	c       contender // nil: raw verbs
	device  string
	failure error // why it cannot be measured, or no longer
}

func (p *peer) can(j Job) bool {
	if p.failure != nil || j.Polled && !slices.Contains([]string{kernelTarget, bridgeTarget, nvmeRDMA}, p.name) {
		return false
	}
	return p.c != nil || verbsCan(j)
}

// Run sets up all contenders, measures, and tears them down. All exist at the same time, as setting one up
// takes longer than a measurement; idle ones only send keep-alives. An error means that nothing can be
// compared. A contender that fails is in the report.
func (b *Blocks) Run(ctx context.Context) (report Report, err error) {
	s := &site{server: b.Lab.VM(0), client: b.Lab.VM(1), log: b.Log, polls: true}
	report = Report{Kernel: b.Lab.Kernel.Release, Backing: b.Backing, DiskMiB: b.DiskSize, CPUs: b.Lab.CPUs(), Rounds: b.Rounds, FIO: b.FIO}
	disks, err := s.disksOf(ctx, b.Backing, len(b.Contenders), b.DiskSize)
	if err != nil {
		return report, err
	}
	var peers []*peer
	defer func() {
		for _, p := range slices.Backward(peers) {
			if p.c == nil || ctx.Err() != nil { // the VMs end anyway
				continue
			}
			if undo := p.c.detach(ctx, s); undo != nil {
				report.TearDown = append(report.TearDown, fmt.Sprintf("%s: %v", p.name, undo))
			}
		}
	}()
	for i, name := range b.Contenders {
		p := &peer{name: name, c: newContender(name)}
		peers = append(peers, p)
		p.failure = b.setUp(ctx, s, p, disks[i])
		report.Contenders = append(report.Contenders, describe(p))
		if ctx.Err() != nil {
			return report, ctx.Err()
		}
	}
	for _, j := range b.Jobs {
		if err := b.measureJob(ctx, s, j, peers, &report); err != nil {
			return report, err
		}
	}
	report.compare(b.Jobs)
	return report, nil
}

func (b *Blocks) setUp(ctx context.Context, s *site, p *peer, disk string) error {
	if p.c == nil {
		return nil
	}
	fmt.Fprintf(b.Log, "set up %s on %s\n", p.name, disk)
	var err error
	if p.device, err = p.c.attach(ctx, s, disk); err != nil {
		err = fmt.Errorf("not available: %w", err)
	} else if b.Verify {
		err = s.verify(ctx, p.device, b.FIO)
	}
	if err != nil {
		fmt.Fprintf(b.Log, "%s: %v\n", p.name, err)
	}
	return err
}

func describe(p *peer) Contender {
	c := Contender{Name: p.name, About: verbsAbout}
	if p.c != nil {
		c.About = p.c.about()
	}
	if p.failure != nil {
		c.Failure = p.failure.Error()
	}
	return c
}

// measureJob measures the contenders in turn. Each round starts with another one.
func (b *Blocks) measureJob(ctx context.Context, s *site, j Job, peers []*peer, report *Report) error {
	results := make([]Result, len(peers))
	for round := range b.Rounds {
		for turn := range peers {
			i := (turn + round) % len(peers)
			p := peers[i]
			results[i].Job, results[i].Contender = j.Name, p.name
			if !p.can(j) {
				continue
			}
			sample, err := b.measure(ctx, s, j, p)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			if err != nil {
				p.failure = fmt.Errorf("failed in %s, round %d: %w", j.Name, round+1, err)
				report.Contenders[i].Failure = p.failure.Error()
				fmt.Fprintf(b.Log, "%s: %v\n", p.name, p.failure)
				continue
			}
			fmt.Fprintf(b.Log, "  %s, round %d, %s: %.0f IOPS, %.1f MB/s\n", j.Name, round+1, p.name, sample.IOPS, sample.BytesPerSecond/1e6)
			results[i].Rounds = append(results[i].Rounds, sample)
		}
	}
	for _, r := range results {
		if len(r.Rounds) > 0 {
			r.Median = medianSample(r.Rounds)
			report.Results = append(report.Results, r)
		}
	}
	return nil
}

func (b *Blocks) measure(ctx context.Context, s *site, j Job, p *peer) (Sample, error) {
	if p.c == nil {
		return measureVerbs(ctx, s, j, b.FIO)
	}
	return measureDisk(ctx, s, j, p.device, b.FIO)
}

// measureDisk runs a job on a device.
func measureDisk(ctx context.Context, s *site, j Job, device string, o FIO) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit())
	defer cancel()
	before, err := s.serverCounters(ctx)
	if err != nil {
		return Sample{}, err
	}
	out, err := s.run(ctx, s.client, countedScript(device, o.measure(device, j)))
	if err != nil {
		return Sample{}, err
	}
	after, err := s.serverCounters(ctx)
	if err != nil {
		return Sample{}, err
	}
	result, err := parseFIO(out)
	if err != nil {
		return Sample{}, err
	}
	sample := result.sample()
	sample.Cost, err = s.costOf(ctx, device, after.busy-before.busy)
	return sample, err
}
