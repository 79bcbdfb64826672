// SPDX-License-Identifier: Apache-2.0

// Package output holds what a program prints while it is being looked at.
package output

import (
	"bytes"
	"sync"
)

// Buffer is a bytes.Buffer that may be written and read at once.
type Buffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements io.Writer.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

// String returns what was written so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
