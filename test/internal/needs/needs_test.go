// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestLacks(t *testing.T) {
	stock := Have{string(EBPF), string(RoCE), string(Kernel("6.12"))}
	for _, c := range []struct {
		list []Need
		want Need
	}{
		{nil, ""},
		{[]Need{EBPF, RoCE}, ""},
		{[]Need{RoCE, Browser, TwoHosts}, Browser},
		{[]Need{Kernel("6.2")}, ""},
		{[]Need{Kernel("6.12")}, ""},
		{[]Need{Kernel("6.13")}, Kernel("6.13")},
	} {
		if lacks := stock.Lacks(c.list); lacks != c.want {
			t.Errorf("%q lacks %q of %q, want %q", stock, lacks, c.list, c.want)
		}
	}
	if lacks := (Have{}).Lacks([]Need{Kernel("6.1")}); lacks != Kernel("6.1") {
		t.Errorf("a machine without a kernel lacks %q", lacks)
	}
}

// skipper records the reason for a skip.
type skipper struct {
	testing.TB
	reason string
}

func (s *skipper) Helper()          {}
func (s *skipper) Skip(args ...any) { s.reason = fmt.Sprint(args...) }

func TestSkipNamesTheNeed(t *testing.T) {
	t.Setenv(Variable, Have{string(RoCE), string(Kernel("6.1"))}.String())
	for _, c := range []struct {
		list []Need
		want string
	}{
		{[]Need{RoCE}, ""},
		{[]Need{RoCE, EBPF}, "not applicable: needs eBPF"},
		{[]Need{Kernel("6.12")}, "not applicable: needs kernel 6.12"},
	} {
		var s skipper
		if Test(&s, c.list...); s.reason != c.want {
			t.Errorf("%q: skipped with %q, want %q", c.list, s.reason, c.want)
		}
	}
}

func suite(t *testing.T, files ...string) string {
	t.Helper()
	dir := t.TempDir()
	for i, text := range files {
		if err := os.WriteFile(filepath.Join(dir, string(rune('a'+i))+"_test.go"), []byte("package x\n"+text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

func TestDeclared(t *testing.T) {
	dir := suite(t, "func TestMain(m *testing.M) {}\nfunc TestA(t *testing.T) {}\nfunc (r rig) TestB() {}",
		"var _ = needs.Suite(needs.EBPF, needs.Kernel(\"6.2\"))\nfunc TestC(t *testing.T) { needs.Test(t, needs.RoCE) }")
	list, tests, err := Declared(dir)
	if err != nil || tests != 2 || !slices.Equal(list, []Need{EBPF, Kernel("6.2")}) {
		t.Errorf("%q, %d tests, %v", list, tests, err)
	}
	for name, text := range map[string]string{
		"0 declarations": "",
		"2 declarations": "var _ = needs.Suite()\nvar _ = needs.Suite()",
		"neither":        "var _ = needs.Suite(needs.Nothing)",
		"a literal":      "var _ = needs.Suite(needs.Kernel(version))",
	} {
		if _, _, err := Declared(suite(t, text)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every suite in the repository has a declaration that the lab can read.
func TestAllSuitesDeclare(t *testing.T) {
	files, err := filepath.Glob("../../*/*/*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, file := range files {
		dir := filepath.Dir(file)
		if kind := filepath.Base(filepath.Dir(dir)); seen[dir] || kind != "guest" && kind != "hosts" {
			continue
		}
		seen[dir] = true
		if _, tests, err := Declared(dir); err != nil || tests == 0 {
			t.Errorf("%s: %d tests, %v", dir, tests, err)
		}
	}
	if len(seen) < 20 {
		t.Errorf("%d suites found", len(seen))
	}
}
