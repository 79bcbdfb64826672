// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"slices"
	"testing"
)

func TestChoose(t *testing.T) {
	jobs, err := MatchingJobs(CostJobs(), "^4k-randread")
	if err != nil || len(jobs) != 2 || jobs[0].Name != "4k-randread-qd1" {
		t.Errorf("%v, %v", jobs, err)
	}
	if _, err := MatchingJobs(CostJobs(), "("); err == nil {
		t.Error("a wrong pattern is accepted")
	}
	if names, err := ParseContenders("nvme-rdma,krping", CostContenders()); err != nil || !slices.Equal(names, []string{"nvme-rdma", "krping"}) {
		t.Errorf("%q, %v", names, err)
	}
	for _, list := range []string{"", "nfs", "krping,krping"} {
		if names, err := ParseContenders(list, CostContenders()); err == nil {
			t.Errorf("%q is accepted: %q", list, names)
		}
	}
}
