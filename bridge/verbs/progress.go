// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"time"
)

// A NIC reports an error for what is never acknowledged. Soft-RoCE does not: it retries without
// end and may lose an RDMA READ.
const (
	stuckTime     = 4 * time.Second // without a completion
	watchInterval = 2 * time.Second
)

var errStuck = fmt.Errorf("the peer's device has acknowledged nothing for %v", stuckTime)

// progress tracks the signalled work requests of a send queue.
type progress struct {
	pending int       // work requests without a completion
	last    time.Time // of the last completion, or of the post to an empty queue
}

func (p *progress) posted(n int, now time.Time) {
	if p.pending == 0 {
		p.last = now
	}
	p.pending += n
}

func (p *progress) completed(now time.Time) {
	p.pending--
	p.last = now
}

func (p *progress) isStuck(now time.Time) bool {
	return p.pending > 0 && now.Sub(p.last) >= stuckTime
}
