// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"testing"
	"time"
)

// After a handler was removed it does not run: its id may be freed then.
func TestUnhandleWaits(t *testing.T) {
	ch := &channel{handlers: map[cmID]func(event){}}
	runs := make(chan struct{})
	var ended time.Time
	ch.handle(nil, func(event) {
		close(runs)
		time.Sleep(50 * time.Millisecond)
		ended = time.Now()
	})
	go ch.deliver(nil, event{})
	<-runs
	ch.unhandle(nil)
	if ended.IsZero() {
		t.Error("the handler runs still")
	}
	if ch.deliver(nil, event{}) {
		t.Error("the handler was called after that")
	}
}
