// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"errors"
	"testing"
)

// When no more memory can be registered, callers wait for the buffers that exist.
func TestBufferPoolWithoutMemory(t *testing.T) {
	errLocked := errors.New("no more memory can be locked")
	left := 1
	var p bufferPool
	p.init(3, func() (*memory, error) {
		if left--; left < 0 {
			return nil, errLocked
		}
		return &memory{data: make([]byte, 8)}, nil
	})
	first, err := p.get(nil)
	if err != nil {
		t.Fatal(err)
	}
	type result struct {
		b   *buffer
		err error
	}
	second := make(chan result)
	go func() {
		b, err := p.get(nil)
		second <- result{b, err}
	}()
	p.put(first.data)
	if r := <-second; r.err != nil || r.b != first {
		t.Errorf("the second get: %v, want the returned buffer", r.err)
	}
	closed := make(chan struct{})
	close(closed)
	if _, err := p.get(closed); !errors.Is(err, ErrClosed) {
		t.Errorf("closed connection: %v, want %v", err, ErrClosed)
	}
	left = 1
	if b, err := p.get(nil); err != nil || b == first {
		t.Errorf("with memory again: %v, want a new buffer", err)
	}

	var empty bufferPool
	empty.init(3, func() (*memory, error) { return nil, errLocked })
	if _, err := empty.get(nil); !errors.Is(err, errLocked) {
		t.Errorf("a pool without any buffer: %v, want %v", err, errLocked)
	}
}
