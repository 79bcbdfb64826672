// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
)

func sampleReport() *Report {
	jobs := []Job{newJob("randwrite", 4<<10, 32, 1), newJob("randread", 64<<10, 32, 1)}
	r := &Report{Kernel: "6.1", Backing: "brd", Rounds: 3, FIO: FIO{Engine: "io_uring", Batch: 1}, Contenders: []Contender{
		{Name: kernelTarget, About: "ours"},
		{Name: bridgeTarget, About: "in user space", Failure: "not available: krping-bridge\nno such file"},
		{Name: nvmeRDMA, About: "theirs"}, {Name: rawVerbs, About: verbsAbout},
	}}
	add := func(j Job, contender string, iops ...float64) {
		x := Result{Job: j.Name, Contender: contender}
		for _, n := range iops {
			x.Rounds = append(x.Rounds, Sample{IOPS: n, BytesPerSecond: n * float64(j.Size), P50: 10, P99: 20, Cost: Cost{Packets: 3.25, Messages: 0.75}})
		}
		x.Median = medianSample(x.Rounds)
		r.Results = append(r.Results, x)
	}
	add(jobs[0], kernelTarget, 1000, 2500, 3000)
	add(jobs[0], nvmeRDMA, 1000, 1000, 1000)
	add(jobs[1], kernelTarget, 100, 300, 100)
	add(jobs[1], nvmeRDMA, 100, 400, 50)
	add(jobs[1], rawVerbs, 100, 300, 100)
	r.compare(jobs)
	return r
}

func TestReport(t *testing.T) {
	r := sampleReport()
	var out bytes.Buffer
	if err := r.WriteMarkdown(&out); err != nil {
		t.Fatal(err)
	}
	text := out.String()
	for _, want := range []string{
		"| 4k-randwrite-qd32 | IOPS | 2500   | -             | 1000      | -     |",
		"| 64k-randread-qd32 | MB/s | 6.6    | -             | 6.6       | 6.6   |",
		"confidence intervals of 75%",
		"| 4k-randwrite-qd32 | 2.50 (1.00-3.00) >= 2.0        | -                       |",
		"| 64k-randread-qd32 | 1.00 (0.75-2.00) >= 1.1 MISSED | 1.00 (1.00-1.00) >= 0.9 |",
		"| 4k-randwrite-qd32 | krping    | 0             | 0             | 3.25    | 0.75     | 10     | 20     |",
		"FAILED: not available: krping-bridge\n    no such file\n",
		"iodepth_batch_submit=1",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if strings.Contains(text, "| 64k-randread-qd32 | verbs") {
		t.Error("raw verbs have no costs")
	}
	if lines := r.Shortcomings(); len(lines) != 2 || !strings.Contains(lines[0], "64k-randread-qd32: krping / nvme-rdma is 1.00, target >= 1.1") || !strings.HasPrefix(lines[1], "krping-bridge: not available") {
		t.Errorf("%q", lines)
	}
}

func TestReportFiles(t *testing.T) {
	r := sampleReport()
	var out, svg bytes.Buffer
	if err := r.WriteJSON(&out); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(out.Bytes(), &back); err != nil || len(back.Results) != 5 || back.Results[0].Median.IOPS != 2500 {
		t.Errorf("%+v, %v", back, err)
	}
	if err := r.WriteSVG(&svg); err != nil {
		t.Fatal(err)
	}
	for decoder := xml.NewDecoder(&svg); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
	if err := (&Report{}).WriteSVG(&svg); err == nil {
		t.Error("nothing is drawn of nothing")
	}
}
