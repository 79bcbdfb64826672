// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package noio counts calls of a function by whether they may allocate memory with I/O. Where they serve a disk of
// krping, memory reclaim must not do I/O: it could wait for the same disk.
package noio

import (
	"testing"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
)

//go:generate go tool bpf2go -go-package noio -tags linux -target bpfel noio noio.bpf.c -- -O2 -mcpu=v3 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu

// Calls counts the calls of a function.
type Calls struct {
	t       testing.TB
	objects noioObjects
}

// Watch counts the calls of a function of the kernel or of a module, until the end of the test.
func Watch(t testing.TB, function string) *Calls {
	t.Helper()
	c := &Calls{t: t}
	if err := loadNoioObjects(&c.objects, nil); err != nil {
		t.Fatal(err)
	}
	l, err := link.Kprobe(function, c.objects.Call, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close()
		_ = c.objects.Close()
	})
	return c
}

// WithIO returns the number of calls that could allocate with I/O, WithoutIO of those that could not.
func (c *Calls) WithIO() int    { c.t.Helper(); return c.get(c.objects.With) }
func (c *Calls) WithoutIO() int { c.t.Helper(); return c.get(c.objects.Without) }

func (c *Calls) get(v *ebpf.Variable) int {
	c.t.Helper()
	var n uint32
	if err := v.Get(&n); err != nil {
		c.t.Fatal(err)
	}
	return int(n)
}
