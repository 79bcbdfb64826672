// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"fmt"
	"sync"
)

// ErrNoMemory is returned when a connection's memory would exceed a budget.
var ErrNoMemory = errors.New("the memory for connections is used up")

// Budget limits the registered memory of several connections. It is pinned, and a peer can make a
// process register it. A nil Budget has no limit.
type Budget struct {
	limit int64 // in bytes

	mu   sync.Mutex // protects used
	used int64
}

// NewBudget returns a budget of a number of bytes.
func NewBudget(limit int64) *Budget { return &Budget{limit: limit} }

// Limit returns the limit in bytes.
func (b *Budget) Limit() int64 { return b.limit }

// take reserves n bytes, which the caller gives back in the end.
func (b *Budget) take(n int) error {
	if b == nil {
		return nil
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+int64(n) > b.limit {
		return fmt.Errorf("%w: %d more bytes than the limit of %d", ErrNoMemory, b.used+int64(n)-b.limit, b.limit)
	}
	b.used += int64(n)
	return nil
}

// takeSpare reserves n bytes that the caller can do without, if half of all is left then.
func (b *Budget) takeSpare(n int) bool {
	if b == nil {
		return true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.used+int64(n) > b.limit/2 {
		return false
	}
	b.used += int64(n)
	return true
}

func (b *Budget) give(n int) {
	if b == nil {
		return
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.used -= int64(n)
}

// Used returns the number of bytes that are reserved.
func (b *Budget) Used() int64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.used
}
