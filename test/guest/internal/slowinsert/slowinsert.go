// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package slowinsert widens a window of the block layer that is a few instructions long: a request
// whose submitter has seen that its queue is quiesced is inserted a while later.
package slowinsert

import (
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
)

//go:generate go tool bpf2go -go-package slowinsert -tags linux -target bpfel insert insert.bpf.c -- -O2 -mcpu=v3 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu

// Hold is what happens to one request.
type Hold struct {
	t       testing.TB
	objects insertObjects
}

// Next holds the next request that this process inserts for about so long, without giving up its CPU.
func Next(t testing.TB, d time.Duration) *Hold {
	t.Helper()
	spec, err := loadInsert()
	if err != nil {
		t.Fatal(err)
	}
	h := &Hold{t: t}
	for name, value := range map[string]any{"process": uint32(os.Getpid()), "hold_ns": uint64(d)} {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	if err := spec.LoadAndAssign(&h.objects, nil); err != nil {
		t.Fatal(err)
	}
	l, err := link.AttachTracing(link.TracingOptions{Program: h.objects.Hold})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = l.Close()
		_ = h.objects.Close()
	})
	return h
}

// Holds reports whether the request is held now.
func (h *Hold) Holds() bool {
	h.t.Helper()
	var stage uint32
	if err := h.objects.Stage.Get(&stage); err != nil {
		h.t.Fatal(err)
	}
	return stage == 1
}
