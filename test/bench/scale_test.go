// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"bytes"
	"encoding/xml"
	"errors"
	"io"
	"strings"
	"testing"
	"time"
)

func TestScaleReport(t *testing.T) {
	row := func(contender string, n int, iops, mebibytes float64) Scaled {
		return Scaled{Contender: contender, Number: n, Sample: Sample{IOPS: iops, P50: 10, P99: 20}, Attach: 1500 * time.Millisecond, Server: mebibytes, Client: 1}
	}
	rows := []Scaled{row(kernelTarget, 1, 1000, 4), row(kernelTarget, 256, 500, 4.25), row(nvmeRDMA, 2, 800, -5), row(nvmeRDMA, 4, 400, 3)}
	var out, svg bytes.Buffer
	if err := WriteScaleTable(&out, "sessions", rows); err != nil {
		t.Fatal(err)
	}
	if err := WriteChurnTable(&out, []Churn{{Contender: kernelTarget, Cycles: 1000, First: 0.5, Last: 0.625, Server: 0.5, Client: -2}}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| contender | sessions | IOPS |",
		"| krping    | 256      | 500  | 10        | 20     | 1.50     | 4.2             | 1.0             |",
		"| krping    | 1000   | 0.50          | 0.62         | 0.5              | -2.0   |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("no %q in\n%s", want, out.String())
		}
	}
	if err := WriteScaleSVG(&svg, "6.1", "sessions", rows); err != nil {
		t.Fatal(err)
	}
	picture := svg.String()
	for want, times := range map[string]int{">sessions<": 1, "krping: ": 4, "nvme-rdma: ": 4, "<circle": 4*4 - 2, "NaN": 0, "Inf": 0} {
		if n := strings.Count(picture, want); n != times {
			t.Errorf("%q is there %d times, not %d, in\n%s", want, n, times, picture)
		}
	}
	for decoder := xml.NewDecoder(&svg); ; {
		if _, err := decoder.Token(); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatalf("the picture is not XML: %v", err)
		}
	}
}
