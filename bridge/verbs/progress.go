// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"fmt"
	"time"
)

// A device gives up by itself what nobody acknowledges, but not Soft-RoCE, to which seven
// retries are endless and which may lose an RDMA READ.
const (
	stuckTime = 4 * time.Second
	lookTime  = 2 * time.Second
)

var errStuck = fmt.Errorf("nothing that was sent is acknowledged for %v", stuckTime)

// progress of a send queue, whose work requests complete in order.
type progress struct {
	pending int       // work requests without a completion
	last    time.Time // a completion, or a work request that was posted while there was none
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
