// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	"krping/test/lab"
)

// Raw verbs are the limit of what a target can move: perftest with the serving VM doing RDMA,
// as targets do. For a read it writes into the measuring VM, for a write it reads from it.
const verbsAbout = "perftest: the serving VM runs ib_write_bw (for reads) or ib_read_bw (for writes) with the job's depth"

const verbsPort = "18520"

// verbsCan says whether a job has a limit that verbs tell.
func verbsCan(j Job) bool { return j.Size >= 64<<10 && j.Mode != "randrw" }

func measureVerbs(ctx context.Context, s *site, j Job, o FIO) (Sample, error) {
	ctx, cancel := context.WithTimeout(ctx, o.limit())
	defer cancel()
	program := "ib_write_bw"
	if j.Mode == "randwrite" {
		program = "ib_read_bw"
	}
	seconds := max(3, int(o.Runtime.Seconds())) // the first and the last are not counted
	command := fmt.Sprintf("%s -R -F -d rxe0 -p %s -s %d --tx-depth=%d -D %d -f 1 --report_gbits", program, verbsPort, j.Size, j.Depth, seconds)
	passive, err := s.client.Start(lab.Cmd{Argv: []string{"sh", "-c", "exec " + command + " >/run/perftest.log 2>&1"}})
	if err != nil {
		return Sample{}, err
	}
	listens := "until rdma resource show cm_id | grep -q ':" + verbsPort + " '; do sleep 0.1; done"
	if _, err := s.run(ctx, s.client, listens); err != nil {
		return Sample{}, errors.Join(err, kill(passive))
	}
	out, err := s.run(ctx, s.server, command+" "+s.client.Addr())
	if err != nil {
		return Sample{}, errors.Join(err, kill(passive))
	}
	if err := passive.Wait(ctx); err != nil {
		log, _ := s.run(context.WithoutCancel(ctx), s.client, "cat /run/perftest.log")
		return Sample{}, failure(s.client, command, log, err)
	}
	gbits, err := perftestColumn("BW average")(out)
	if err != nil {
		return Sample{}, err
	}
	bytes := gbits * 1e9 / 8
	return Sample{IOPS: bytes / float64(j.Size), BytesPerSecond: bytes}, nil
}

// kill ends a process and says nothing if it had ended.
func kill(p *lab.Process) error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := p.Wait(ctx); errors.Is(err, lab.ErrVMGone) {
		return err
	}
	return nil
}
