// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"
)

// FIO holds the options of fio that are the same for all contenders.
type FIO struct {
	Engine  string        `json:"engine"`
	Ramp    time.Duration `json:"ramp_ns"` // not counted
	Runtime time.Duration `json:"runtime_ns"`
	Batch   int           `json:"batch"` // I/Os that fio submits at once
}

// limit is how long one measurement may take before it counts as hung.
func (o FIO) limit() time.Duration { return o.Ramp + o.Runtime + time.Minute }

// command returns a command of fio with the common options.
func (o FIO) command(device string, args ...string) string {
	return fmt.Sprintf("fio --filename=%s --direct=1 --ioengine=%s --thread --allow_file_create=0 %s", device, o.Engine, strings.Join(args, " "))
}

func (o FIO) measure(device string, j Job) string {
	args := []string{
		"--name=" + j.Name, "--rw=" + j.Mode, fmt.Sprintf("--bs=%d", j.Size), fmt.Sprintf("--iodepth=%d", j.Depth), fmt.Sprintf("--numjobs=%d", j.Jobs),
		"--time_based", fmt.Sprintf("--runtime=%dms", o.Runtime.Milliseconds()), fmt.Sprintf("--ramp_time=%dms", o.Ramp.Milliseconds()),
		"--norandommap", "--group_reporting", "--clat_percentiles=0", "--lat_percentiles=1", "--percentile_list=50:99", "--output-format=json",
	}
	if j.Polled {
		args = append(args, "--ioengine=io_uring --hipri=1")
	}
	if j.Mode == "randrw" {
		args = append(args, fmt.Sprintf("--rwmixread=%d", mixRead))
	}
	if o.Batch > 1 {
		args = append(args, fmt.Sprintf("--iodepth_batch_submit=%[1]d --iodepth_batch_complete_min=1 --iodepth_batch_complete_max=%[1]d", o.Batch))
	}
	return o.command(device, args...)
}

// fixed returns a command that does a number of I/Os and prints nothing else.
func (o FIO) fixed(device string, j Job, ios int) string {
	return o.command(device, "--name="+j.Name, "--rw="+j.Mode, fmt.Sprintf("--bs=%d --iodepth=%d --io_size=%d", j.Size, j.Depth, ios*j.Size),
		"--norandommap --randseed=1 --output-format=terse")
}

// About describes the options for the report.
func (o FIO) About() string {
	batch := "iodepth_batch_submit=1, fio's default: one system call for each I/O"
	if o.Batch > 1 {
		batch = fmt.Sprintf("up to %d I/Os are submitted and reaped at once", o.Batch)
	}
	return fmt.Sprintf("ioengine=%s, direct=1, %v after a ramp of %v, over the whole device; %s", o.Engine, o.Runtime, o.Ramp, batch)
}

// verify writes a pattern with checksums and reads it back.
func (s *site) verify(ctx context.Context, device string, o FIO) error {
	for _, args := range []string{"--bs=4k --size=2m --iodepth=16", "--bs=256k --size=16m --iodepth=4", "--bsrange=512-64k --size=4m --iodepth=8"} {
		command := o.command(device, "--name=verify --rw=randwrite --verify=crc32c --do_verify=1 --verify_fatal=1 --output-format=terse", args)
		if out, err := s.run(ctx, s.client, command); err != nil {
			return fmt.Errorf("reading back what was written: %w", err)
		} else if strings.Contains(out, "verify:") {
			return failure(s.client, command, out, errors.New("fio complains"))
		}
	}
	return nil
}

// direction is what fio measured for reads or for writes.
type direction struct {
	IOPS    float64 `json:"iops"`
	Bytes   float64 `json:"bw_bytes"`
	Total   uint64  `json:"total_ios"`
	Latency latency `json:"lat_ns"`
}

type latency struct {
	Percentile map[string]float64 `json:"percentile"`
}

type fioResult struct {
	Error int       `json:"error"`
	Read  direction `json:"read"`
	Write direction `json:"write"`
}

// parseFIO reads fio's JSON of one group of jobs. fio may print other lines before it.
func parseFIO(out string) (fioResult, error) {
	var parsed struct {
		Jobs []fioResult `json:"jobs"`
	}
	begin := strings.Index("\n"+out, "\n{")
	if begin < 0 {
		return fioResult{}, fmt.Errorf("fio printed no JSON: %.500s", out)
	}
	if err := json.NewDecoder(strings.NewReader(out[begin:])).Decode(&parsed); err != nil {
		return fioResult{}, fmt.Errorf("fio's JSON: %w: %.500s", err, out)
	}
	if len(parsed.Jobs) != 1 {
		return fioResult{}, fmt.Errorf("fio reports %d groups of jobs, not 1", len(parsed.Jobs))
	}
	r := parsed.Jobs[0]
	if r.Error != 0 {
		return r, fmt.Errorf("fio reports error %d", r.Error)
	}
	if r.Read.Total+r.Write.Total == 0 {
		return r, errors.New("fio did no I/O")
	}
	return r, nil
}

// sample converts fio's numbers. The latency of a mixed job is that of the slower direction.
func (r fioResult) sample() Sample {
	s := Sample{IOPS: r.Read.IOPS + r.Write.IOPS, BytesPerSecond: r.Read.Bytes + r.Write.Bytes}
	for _, d := range []direction{r.Read, r.Write} {
		s.P50 = max(s.P50, d.Latency.Percentile["50.000000"]/1e3)
		s.P99 = max(s.P99, d.Latency.Percentile["99.000000"]/1e3)
	}
	return s
}
