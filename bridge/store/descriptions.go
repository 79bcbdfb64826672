// SPDX-License-Identifier: Apache-2.0

package store

import (
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"
)

// descriptions are open file descriptions of one file, each used by one write at a time. The kernel tells
// an error of writing back once to each description: of two writes through one of them, the wrong one might
// fail (errseq_t in the kernel's Documentation/core-api).
type descriptions struct {
	of *os.File

	mu   sync.Mutex
	idle []*os.File // that have seen every error there was
	age  int        // counts errors
}

// use calls do with a description that nobody else uses. After an error none is used that may have to
// tell of it yet.
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
	_ = own.Close() // what it wrote is stable, or has failed
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
		return nil, 0, fmt.Errorf("open the store once more: %w", err)
	}
	return own, d.age, nil
}

// close closes those that are idle: nobody writes any more.
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
