// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// descriptions is a pool of open file descriptions of one file, each used by one write at a time.
// The kernel reports a write-back error once to each description, so if two writes shared one, the
// wrong write might fail (errseq_t, the kernel's Documentation/core-api/errseq.rst).
type descriptions struct {
	of *os.File

	mu   sync.Mutex
	idle []*os.File // have reported all earlier errors
	age  int        // number of errors so far
}

// use calls do with a description that nobody else uses, and that will not report the error of an
// earlier write.
func (d *descriptions) use(do func(*os.File) error) error {
	own, age, err := d.take()
	if err != nil {
		return err
	}
	err = do(own)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err == nil && d.age == age {
		d.idle = append(d.idle, own)
		return nil
	}
	_ = own.Close() // its writes are stable, or their error was returned
	if err != nil {
		d.age++
		d.closeIdle()
	}
	return err
}

func (d *descriptions) take() (*os.File, int, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if last := len(d.idle) - 1; last >= 0 {
		own := d.idle[last]
		d.idle = d.idle[:last]
		return own, d.age, nil
	}
	own, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", d.of.Fd()), os.O_RDWR|unix.O_DSYNC, 0)
	if err != nil {
		return nil, 0, fmt.Errorf("cannot open the store again: %w", err)
	}
	return own, d.age, nil
}

// close closes all descriptions. No write is running.
func (d *descriptions) close() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.closeIdle()
}

func (d *descriptions) closeIdle() {
	for _, f := range d.idle {
		_ = f.Close()
	}
	d.idle = nil
}
