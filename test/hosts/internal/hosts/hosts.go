// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package hosts is shared by the suites that run outside the VMs and boot them.
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

// Hosts are one or two VMs with the module loaded.
type Hosts struct {
	T   *testing.T
	Lab *lab.Lab
}

// Boot boots two VMs. At its end the test fails if a kernel logged a complaint without any of the expected
// strings.
func Boot(t *testing.T, expected ...string) *Hosts {
	t.Helper()
	return boot(t, lab.Config{VMs: 2}, expected)
}

// BootOne boots one VM.
func BootOne(t *testing.T) *Hosts {
	t.Helper()
	return boot(t, lab.Config{VMs: 1}, nil)
}

// BootCounted boots two VMs whose instructions are counted: see lab.Config.Count.
func BootCounted(t *testing.T) *Hosts {
	t.Helper()
	return boot(t, lab.Config{VMs: 2, Memory: 2048, Count: true}, nil)
}

func boot(t *testing.T, config lab.Config, expected []string) *Hosts {
	t.Helper()
	kernel := os.Getenv("KERNEL")
	if kernel == "" {
		t.Fatal("KERNEL is not set: want 6.1, 6.12 or newest")
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

// Sh runs a script and returns its output. The build's programs are in its PATH. The test fails if the script does.
func (h *Hosts) Sh(vm *lab.VM, script string) string {
	h.T.Helper()
	out, err := h.Try(vm, script)
	if err != nil {
		h.T.Fatalf("%s: %s: %v\n%s", vm.Addr(), script, err, out)
	}
	return out
}

// Try is Sh, but returns an error if the script fails.
func (h *Hosts) Try(vm *lab.VM, script string) (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return vm.Output(ctx, "PATH="+lab.Build()+":$PATH; "+script)
}

// Spawn starts a script in the background.
func (h *Hosts) Spawn(vm *lab.VM, script string) *lab.Process {
	h.T.Helper()
	p, err := vm.Start(lab.Cmd{Argv: []string{"sh", "-c", "PATH=" + lab.Build() + ":$PATH; exec " + script}})
	if err != nil {
		h.T.Fatal(err)
	}
	return p
}

// Eventually polls until the condition holds. The test fails after limit (late.Limit).
func (h *Hosts) Eventually(limit time.Duration, what string, condition func() bool) {
	h.T.Helper()
	limit = late.Limit(limit)
	for deadline := time.Now().Add(limit); time.Now().Before(deadline); time.Sleep(100 * time.Millisecond) {
		if condition() {
			return
		}
	}
	late.Waited(h.T, limit, "%s", what)
}

// Restart boots the second VM again after it was killed, and loads the module.
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
