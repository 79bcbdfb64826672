// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package hosts is what the suites share that run here and boot VMs.
package hosts

import (
	"context"
	"os"
	"path/filepath"
	"testing"
	"time"

	"krping/test/internal/late"
	"krping/test/lab"
)

// Hosts are VMs, two of them or one, with the module loaded.
type Hosts struct {
	T   *testing.T
	Lab *lab.Lab
}

// Boot boots them; the test fails at its end if a kernel complained in a line without one of
// the expected strings.
func Boot(t *testing.T, expected ...string) *Hosts {
	t.Helper()
	return boot(t, lab.Config{VMs: 2}, expected)
}

// BootInTurn boots so many for a test in which the kernel patches its code: see lab.Config.
func BootInTurn(t *testing.T, vms int) *Hosts {
	t.Helper()
	return boot(t, lab.Config{VMs: vms, InTurn: true}, nil)
}

func boot(t *testing.T, config lab.Config, expected []string) *Hosts {
	t.Helper()
	kernel := os.Getenv("KERNEL")
	if kernel == "" {
		t.Fatal("KERNEL is not set: 6.1 or 6.12")
	}
	config.Kernel, config.Out = kernel, filepath.Join(lab.Build(), "logs", kernel, t.Name())
	l, err := lab.Start(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if report := l.Complaints(expected...); report != "" {
			t.Error(report)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := l.LoadModule(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &Hosts{t, l}
}

// Sh runs a script to its end; the build's programs are in its PATH.
func (h *Hosts) Sh(vm *lab.VM, script string) string {
	h.T.Helper()
	out, err := h.Try(vm, script)
	if err != nil {
		h.T.Fatalf("%s: %s: %v\n%s", vm.Addr(), script, err, out)
	}
	return out
}

// Try does, and returns how it ended.
func (h *Hosts) Try(vm *lab.VM, script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return vm.Output(ctx, "PATH="+lab.Build()+":$PATH; "+script)
}

// Spawn leaves a script running.
func (h *Hosts) Spawn(vm *lab.VM, script string) *lab.Process {
	h.T.Helper()
	p, err := vm.Start(lab.Cmd{Argv: []string{"sh", "-c", "PATH=" + lab.Build() + ":$PATH; exec " + script}})
	if err != nil {
		h.T.Fatal(err)
	}
	return p
}

// Eventually polls until the condition holds; after limit the test fails.
func (h *Hosts) Eventually(limit time.Duration, what string, condition func() bool) {
	h.T.Helper()
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if condition() {
			return
		}
	}
	late.Waited(h.T, limit, "%s", what)
}

// Restart boots the second VM again after its death, with the module.
func (h *Hosts) Restart() *lab.VM {
	h.T.Helper()
	ctx, cancel := context.WithTimeout(h.T.Context(), 3*time.Minute)
	defer cancel()
	if err := h.Lab.Restart(ctx); err != nil {
		h.T.Fatal(err)
	}
	if err := h.Lab.LoadModuleIn(ctx, h.Lab.VM(1)); err != nil {
		h.T.Fatal(err)
	}
	return h.Lab.VM(1)
}
