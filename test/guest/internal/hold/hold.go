// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package hold widens race windows in the kernel: it makes the code there spin once, without giving up its CPU. Other
// work on that CPU waits meanwhile.
package hold

import (
	"os"
	"testing"
	"time"

	"github.com/cilium/ebpf/link"
)

//go:generate go tool bpf2go -go-package hold -tags linux -target bpfel hold hold.bpf.c -- -O2 -mcpu=v3 -g -Wall -Werror -I/usr/include/x86_64-linux-gnu

// Hold is one such delay.
type Hold struct {
	t       testing.TB
	objects holdObjects
}

// Insertion delays the next insertion of a request of this process into a queue of the block layer by about d, after it
// has checked whether the queue is quiesced.
func Insertion(t testing.TB, d time.Duration) *Hold {
	t.Helper()
	h := load(t, d, map[string]any{"process": uint32(os.Getpid())})
	l, err := link.AttachTracing(link.TracingOptions{Program: h.objects.Insertion})
	h.until(l, err)
	return h
}

// Call delays a call of a function of the kernel or a module by about d, at its beginning, after as many calls as before
// says.
func Call(t testing.TB, function string, before uint32, d time.Duration) *Hold {
	t.Helper()
	h := load(t, d, map[string]any{"before": before})
	l, err := link.Kprobe(function, h.objects.Call, nil)
	h.until(l, err)
	return h
}

func load(t testing.TB, d time.Duration, variables map[string]any) *Hold {
	t.Helper()
	spec, err := loadHold()
	if err != nil {
		t.Fatal(err)
	}
	h := &Hold{t: t}
	variables["hold_ns"] = uint64(d)
	for name, value := range variables {
		if err := spec.Variables[name].Set(value); err != nil {
			t.Fatal(err)
		}
	}
	if err := spec.LoadAndAssign(&h.objects, nil); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = h.objects.Close() })
	return h
}

// until keeps a program attached until the end of the test.
func (h *Hold) until(l link.Link, err error) {
	h.t.Helper()
	if err != nil {
		h.t.Fatal(err)
	}
	h.t.Cleanup(func() { _ = l.Close() })
}

// Began reports whether the delay has begun.
func (h *Hold) Began() bool { h.t.Helper(); return h.stage() > 0 }

// Holds reports whether the delay lasts.
func (h *Hold) Holds() bool { h.t.Helper(); return h.stage() == 1 }

func (h *Hold) stage() (stage uint32) {
	h.t.Helper()
	if err := h.objects.Stage.Get(&stage); err != nil {
		h.t.Fatal(err)
	}
	return stage
}
