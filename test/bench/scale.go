// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"krping/test/lab"
)

// Scale measures how throughput, latency and memory change as the sessions of two hosts grow in number, as
// sessions come and go, and as the queues of one session grow in number.
type Scale struct {
	Lab        *lab.Lab // two VMs with the module: VM 1 serves, VM 2 measures
	Log        io.Writer
	Contenders []string // some of ScaleContenders
	Most       int      // sessions at a time; 0: not measured
	Cycles     int      // times that a session is attached and detached; 0: not measured
	Queues     []int    // of a session, ascending; the VMs have as many CPUs as the last
	FIO        FIO
}

// ScaleContenders returns the contenders that can have many sessions.
func ScaleContenders() []string { return []string{kernelTarget, nvmeRDMA} }

// Scaled is what was measured with a number of sessions, or with a number of queues of one session.
type Scaled struct {
	Contender      string
	Number         int
	Sample         Sample        // of random reads of 4 KiB
	Attach         time.Duration // of the last session
	Server, Client float64       // MiB of memory of a session or a queue, on average
}

// Churn is what it takes when sessions come and go.
type Churn struct {
	Contender      string
	Cycles         int
	First, Last    float64 // seconds of a cycle, median of the first and of the last tenth
	Server, Client float64 // KiB of memory that a cycle leaves behind, on average
}

// The jobs for sessions, 32 reads at a time over all disks, and for queues, 128 from 16 threads.
var (
	sessionsJob = Job{Name: "sessions", Mode: "randread", Size: 4096, Depth: 32, Jobs: 1}
	queuesJob   = Job{Name: "queues", Mode: "randread", Size: 4096, Depth: 8, Jobs: 16}
)

// numbered returns a contender of several that exist at once.
func numbered(name string, i int) contender {
	if name == nvmeRDMA {
		return &nvme{transport: "rdma", port: 4420, number: strconv.Itoa(i)}
	}
	return &krpingTarget{port: 9971, number: strconv.Itoa(i)}
}

// Sessions measures many sessions of each contender, one contender after the other. The rows are valid even if there
// is an error: one contender may get further than another.
func (b *Scale) Sessions(ctx context.Context) (rows []Scaled, churns []Churn, err error) {
	s := &site{server: b.Lab.VM(0), client: b.Lab.VM(1), log: b.Log}
	disks, err := s.disksOf(ctx, "brd", max(b.Most, 1), 4)
	if err != nil {
		return nil, nil, err
	}
	for _, name := range b.Contenders {
		of, failed := b.grow(ctx, s, name, disks[:b.Most])
		rows = append(rows, of...)
		if failed == nil && b.Cycles > 0 {
			var churn Churn
			if churn, failed = b.churn(ctx, s, name, disks[0]); failed == nil {
				churns = append(churns, churn)
			}
		}
		if failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: %w", name, failed))
		}
	}
	return rows, churns, err
}

// grow attaches the disks, and measures after each doubling of their number.
func (b *Scale) grow(ctx context.Context, s *site, name string, disks []string) (rows []Scaled, err error) {
	var devices []string
	defer func() {
		for i := range devices {
			err = errors.Join(err, numbered(name, i).detach(ctx, s))
		}
	}()
	if len(disks) == 0 {
		return nil, nil
	}
	before, err := s.warm(ctx, name, disks[0])
	if err != nil {
		return nil, err
	}
	for n := 1; n <= len(disks); n *= 2 {
		row := Scaled{Contender: name, Number: n}
		for i := len(devices); i < n; i++ {
			begin := time.Now()
			device, err := numbered(name, i).attach(ctx, s, disks[i])
			devices = append(devices, device)
			if err != nil {
				return rows, err
			}
			row.Attach = time.Since(begin)
		}
		if err := b.measure(ctx, s, &row, before, strings.Join(devices, ":"), sessionsJob); err != nil {
			return rows, err
		}
		rows = append(rows, row)
	}
	return rows, nil
}

// warm attaches and detaches a disk, and returns the memory that is available then: what the first session loads and
// allocates for all is not a session's.
func (s *site) warm(ctx context.Context, name, disk string) (available [2]float64, err error) {
	c := numbered(name, 0)
	_, err = c.attach(ctx, s, disk)
	if err := errors.Join(err, c.detach(ctx, s)); err != nil {
		return available, err
	}
	return s.memory(ctx)
}

// measure fills in the memory that the row's sessions or queues take, and a sample.
func (b *Scale) measure(ctx context.Context, s *site, row *Scaled, before [2]float64, devices string, j Job) error {
	after, err := s.memory(ctx)
	if err != nil {
		return err
	}
	n := float64(row.Number)
	row.Server, row.Client = (before[0]-after[0])/1024/n, (before[1]-after[1])/1024/n
	// To find each disk's statistics fio would read those of all: more than a minute with 256.
	out, err := s.run(ctx, s.client, b.FIO.measure(devices, j)+" --disk_util=0")
	if err != nil {
		return err
	}
	result, err := parseFIO(out)
	if err != nil {
		return err
	}
	row.Sample = result.sample()
	fmt.Fprintf(b.Log, "%s, %d %s: attached in %.2f s, %.0f IOPS, %.1f + %.1f MiB each\n", row.Contender, row.Number, j.Name,
		row.Attach.Seconds(), row.Sample.IOPS, row.Server, row.Client)
	return nil
}

// churn attaches and detaches a disk again and again.
func (b *Scale) churn(ctx context.Context, s *site, name, disk string) (Churn, error) {
	churn := Churn{Contender: name, Cycles: b.Cycles}
	before, err := s.memory(ctx)
	if err != nil {
		return churn, err
	}
	times := make([]float64, b.Cycles)
	for i := range times {
		begin := time.Now()
		c := numbered(name, 0)
		_, err := c.attach(ctx, s, disk)
		if err := errors.Join(err, c.detach(ctx, s)); err != nil {
			return churn, fmt.Errorf("cycle %d: %w", i+1, err)
		}
		times[i] = time.Since(begin).Seconds()
	}
	after, err := s.memory(ctx)
	if err != nil {
		return churn, err
	}
	tenth := max(1, b.Cycles/10)
	churn.First, churn.Last = median(times[:tenth]), median(times[b.Cycles-tenth:])
	churn.Server, churn.Client = (before[0]-after[0])/float64(b.Cycles), (before[1]-after[1])/float64(b.Cycles)
	return churn, nil
}

// availableMemory prints the KiB of memory that are available. The kernel leaves out the free pages that it keeps for
// each CPU, tens of MiB: after "count:" in zoneinfo.
const availableMemory = `sync
echo 3 >/proc/sys/vm/drop_caches
awk '/^MemAvailable:/ {kib += $2} /^ *count:/ {kib += 4 * $2} END {print kib}' /proc/meminfo /proc/zoneinfo`

// memory returns the KiB of memory that are available on both hosts, the server first.
func (s *site) memory(ctx context.Context) (available [2]float64, err error) {
	for i, vm := range []*lab.VM{s.server, s.client} {
		out, err := s.run(ctx, vm, availableMemory)
		if err != nil {
			return available, err
		}
		if available[i], err = strconv.ParseFloat(strings.TrimSpace(out), 64); err != nil {
			return available, err
		}
	}
	return available, nil
}
