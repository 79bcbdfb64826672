// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"krping/test/lab"
)

// Raw verbs show the limit of what a target can move: in perftest, as with targets, the serving VM does
// the RDMA. For a read it writes into the measuring VM, for a write it reads from it.
const verbsAbout = "perftest: the serving VM runs ib_write_bw (for reads) or ib_read_bw (for writes) with the job's depth"

const (
	verbsPort = "18520"
	verbsRate = 12 << 20 // bytes per second of an emulated VM, roughly: for runs about as long as fio's
)

// verbsCan reports whether raw verbs show a limit of the job.
func verbsCan(j Job) bool { return j.Size >= 64<<10 && j.Mode != "randrw" }

func measureVerbs(ctx context.Context, s *site, j Job, o FIO) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit())
	defer cancel()
	program := "ib_write_bw"
	if j.Mode == "randwrite" {
		program = "ib_read_bw"
	}
	n := max(2*j.Depth, int(o.Runtime.Seconds()*verbsRate)/j.Size)
	// With one completion for four operations the queue does not run empty. The number of operations is
	// fixed: with --duration perftest counts too few of them if it gets little CPU time.
	command := fmt.Sprintf("%s -R -F -d rxe0 -p %s -s %d -n %d --tx-depth=%d -Q %d --report_gbits", program, verbsPort, j.Size, n, j.Depth, min(4, j.Depth))
	const log = "/run/perftest.log"
	passive, err := s.client.Start(lab.Cmd{Argv: []string{"sh", "-c", "exec " + command + " >" + log + " 2>&1"}})
	if err != nil {
		return Sample{}, failure(s.client, command, "", err)
	}
	fail := func(err error) (Sample, error) {
		_ = kill(passive)
		printed, _ := s.run(context.WithoutCancel(ctx), s.client, "cat "+log)
		return Sample{}, fmt.Errorf("%w\n%w", failure(s.client, command, printed, errors.New("its peer")), err)
	}
	listens := "for i in $(seq 200); do rdma resource show cm_id | grep -q ':" + verbsPort + " ' && exit 0; sleep 0.1; done; exit 1"
	if _, err := s.run(ctx, s.client, listens); err != nil {
		return fail(err)
	}
	out, err := s.run(ctx, s.server, command+" "+s.client.Addr())
	if err != nil {
		return fail(err)
	}
	if err := passive.Wait(ctx); err != nil {
		return fail(err)
	}
	gbits, err := perftestColumn("BW average")(out)
	if err != nil {
		return Sample{}, err
	}
	bytes := gbits * 1e9 / 8
	return Sample{IOPS: bytes / float64(j.Size), BytesPerSecond: bytes}, nil
}

// kill kills a process. It is no error if the process has ended before.
func kill(p *lab.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := p.Wait(ctx); errors.Is(err, lab.ErrVMGone) {
		return err
	}
	return nil
}
