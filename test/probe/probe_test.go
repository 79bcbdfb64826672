// SPDX-License-Identifier: Apache-2.0

// Package probe tests the compile probes of kmod/probe with the installed kernel headers.
package probe

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

// probes has one answer of each kind. The last cannot be yes.
const probes = `
#ifdef PROBE_HEADERS
#include <linux/module.h>
#endif
#ifdef PROBE_NO_SUCH_FUNCTION
int krping_probe(void) { return krping_no_such_function(); }
#endif
#ifdef PROBE_PRINTK
#include <linux/printk.h>
void krping_probe(void) { int unused; printk("probe"); }
#endif
#ifdef PROBE_WRONG_ARGUMENT
#include <linux/slab.h>
void *krping_probe(void) { return kmalloc("much", GFP_KERNEL); }
#endif
`

// module is a copy of kmod with the probes above.
type module struct{ dir, kdir string }

func newModule(t *testing.T) module {
	t.Helper()
	found, err := filepath.Glob("/lib/modules/*/build/Makefile")
	if err != nil || len(found) == 0 {
		t.Fatalf("no kernel headers in /lib/modules/*/build (make deps installs them): %v", err)
	}
	m := module{filepath.Join(t.TempDir(), "kmod"), filepath.Dir(slices.Max(found))}
	if err := os.CopyFS(m.dir, os.DirFS("../../kmod")); err != nil {
		t.Fatal(err)
	}
	m.write(t, probes)
	return m
}

func (m module) write(t *testing.T, probes string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(m.dir, "probe", "probes.c"), []byte(probes), 0o644); err != nil {
		t.Fatal(err)
	}
}

// build compiles a file that waits for the answers but does not use them.
func (m module) build(args ...string) (output string, err error) {
	cmd := exec.Command("make", append([]string{"-s", "-C", m.kdir, "M=" + m.dir, "lib/stats.o"}, args...)...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (m module) read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(m.dir, "probe", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// asked returns when a probe was compiled.
func (m module) asked(t *testing.T, name string) time.Time {
	t.Helper()
	info, err := os.Stat(filepath.Join(m.dir, "probe", name+".h"))
	if err != nil {
		t.Fatal(err)
	}
	return info.ModTime()
}

func TestAnswers(t *testing.T) {
	m := newModule(t)
	if out, err := m.build("W=1"); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	const answers = "#define KRPING_HAS_HEADERS 1\n#define KRPING_HAS_NO_SUCH_FUNCTION 0\n" +
		"#define KRPING_HAS_PRINTK 1\n#define KRPING_HAS_WRONG_ARGUMENT 0\n"
	if got := m.read(t, "answers.h"); got != answers {
		t.Fatalf("answers:\n%s", got)
	}
	log := m.read(t, "log")
	for _, want := range []string{"probe: headers: yes\n", "probe: printk: yes\n", "probe: wrong_argument: no\n", "kmalloc", "-DPROBE_WRONG_ARGUMENT"} {
		if !strings.Contains(log, want) {
			t.Errorf("%q is not in the log:\n%s", want, log)
		}
	}

	first := m.asked(t, "PRINTK")
	if out, err := m.build("W=1"); err != nil || !m.asked(t, "PRINTK").Equal(first) {
		t.Fatalf("asked again, though nothing has changed: %v\n%s", err, out)
	}
	m.write(t, strings.Replace(probes, `"much"`, "8", 1))
	if out, err := m.build("W=1"); err != nil || m.asked(t, "PRINTK").Equal(first) {
		t.Fatalf("not asked again after a change of the probes: %v\n%s", err, out)
	}
	if got := m.read(t, "answers.h"); !strings.Contains(got, "WRONG_ARGUMENT 1") {
		t.Errorf("answers:\n%s", got)
	}
	second := m.asked(t, "PRINTK")
	if out, err := m.build("W=1", "KCFLAGS=-DOTHER"); err != nil || m.asked(t, "PRINTK").Equal(second) {
		t.Fatalf("not asked again with other flags: %v\n%s", err, out)
	}
}

// Nothing compiles without the kernel's headers: no answer may come from that.
func TestBrokenHeaders(t *testing.T) {
	m := newModule(t)
	out, err := m.build("KCFLAGS=-include /nonexistent.h")
	if err == nil || !strings.Contains(out, "cannot compile anything for this kernel") || !strings.Contains(out, "nonexistent.h") {
		t.Errorf("%v\n%s", err, out)
	}
	if _, err := os.Stat(filepath.Join(m.dir, "probe", "answers.h")); err == nil {
		t.Error("there are answers")
	}
	cmd := exec.Command("make", "-s", "-C", m.dir, "KDIR=/nonexistent", "modules")
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "no kernel headers in /nonexistent") {
		t.Errorf("%v\n%s", err, out)
	}
}

// MLNX_OFED's headers replace the kernel's: the probes must see them, too.
func TestOFED(t *testing.T) {
	m := newModule(t)
	ofed := t.TempDir()
	for name, text := range map[string]string{
		"linux/compat-2.6.h": "#define OFED_COMPAT 1\n",
		"rdma/ofed_only.h":   "static inline int ofed_only(void) { return OFED_COMPAT; }\n",
	} {
		file := filepath.Join(ofed, "include", name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	m.write(t, probes+"#ifdef PROBE_OFED\n#include <rdma/ofed_only.h>\nint krping_probe(void) { return ofed_only(); }\n#endif\n")
	if out, err := m.build("KRPING_OFED=" + ofed); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if got := m.read(t, "answers.h"); !strings.Contains(got, "HAS_OFED 1") {
		t.Errorf("answers:\n%s\n%s", got, m.read(t, "log"))
	}
}

// The Makefile passes on what the kernel's build directory asks for.
func TestTools(t *testing.T) {
	for _, tc := range []struct{ config, args, want, not string }{
		{"CONFIG_CC_IS_GCC=y\n", "", "W=1 modules", "clang"},
		{"CONFIG_CC_IS_CLANG=y\n", "", "CC=clang W=1 modules", "LLVM"},
		{"CONFIG_CC_IS_CLANG=y\n", "CC=clang-16", "CC=clang-16 W=1 modules", "LLVM"},
		{"CONFIG_CC_IS_CLANG=y\nCONFIG_LD_IS_LLD=y\n", "", "LLVM=1 W=1 modules", "CC="},
		{"CONFIG_CC_IS_CLANG=y\nCONFIG_LD_IS_LLD=y\n", "LLVM=-16", "LLVM=-16 W=1 modules", "CC="},
		{"", "OFED=/ofed", "KRPING_OFED=/ofed KBUILD_EXTRA_SYMBOLS=/ofed/Module.symvers W=1 modules", "clang"},
	} {
		kdir := t.TempDir()
		if err := os.MkdirAll(filepath.Join(kdir, "include/config"), 0o755); err != nil {
			t.Fatal(err)
		}
		for name, text := range map[string]string{"include/config/auto.conf": tc.config, "include/config/kernel.release": "6.1.0-test\n", "Makefile": "modules:\n"} {
			if err := os.WriteFile(filepath.Join(kdir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		args := append([]string{"-n", "-C", "../../kmod", "KDIR=" + kdir}, strings.Fields(tc.args)...)
		out, err := exec.Command("make", append(args, "modules")...).CombinedOutput()
		line := strings.Join(strings.Fields(string(out)), " ")
		if err != nil || !strings.Contains(line, tc.want) || strings.Contains(line, tc.not) {
			t.Errorf("%q %q: %v, want %q without %q\n%s", tc.config, tc.args, err, tc.want, tc.not, out)
		}
	}
}
