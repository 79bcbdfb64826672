// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

func pages(t *testing.T) []Page {
	t.Helper()
	pages, err := Pages()
	if err != nil {
		t.Fatal(err)
	}
	if len(pages) < 10 {
		t.Fatalf("only %d pages found", len(pages))
	}
	return pages
}

func TestCommands(t *testing.T) {
	page := Page{"a.md", "krpingctl not-code\n    host1# krpingctl stop vol0 && krpingctl stat | tail -n 3\n    krpingctl doctor    # a comment\n    x# build/krpingctl top &\n    krpingctlx\n"}
	want := [][]string{{"stop", "vol0"}, {"stat"}, {"doctor"}, {"top"}}
	got := page.Commands("krpingctl")
	if len(got) != len(want) {
		t.Fatalf("%v, want %v", got, want)
	}
	for i := range want {
		if !slices.Equal(got[i].Args, want[i]) {
			t.Errorf("%v, want %v", got[i].Args, want[i])
		}
	}
}

// tooLong returns the lines of a page that are longer than a reader's window: not of a table or a
// code block, which may be.
func tooLong(p Page, columns int) []string {
	var long []string
	for line := range strings.Lines(p.Text) {
		line = strings.TrimSuffix(line, "\n")
		if len([]rune(line)) > columns && !strings.HasPrefix(line, "|") && !strings.HasPrefix(line, "    ") && !strings.HasPrefix(line, "![") {
			long = append(long, line)
		}
	}
	return long
}

func TestWrapped(t *testing.T) {
	if long := tooLong(Page{"", strings.Repeat("a ", 51) + "\n| " + strings.Repeat("b", 200) + "\n"}, 100); len(long) != 1 {
		t.Errorf("found %q, want the first line", long)
	}
	for _, p := range pages(t) {
		for _, line := range tooLong(p, 100) {
			t.Errorf("%s: over 100 columns: %s", p.Path, line)
		}
	}
}

// The first page is short: what is for the reader of one folder is in that folder.
func TestFrontPageIsShort(t *testing.T) {
	for _, p := range pages(t) {
		if p.Path != "README.md" {
			continue
		}
		if lines := strings.Count(p.Text, "\n"); lines > 140 {
			t.Errorf("README.md has %d lines, at most 140 are wanted", lines)
		}
		for line := range strings.Lines(p.Text) {
			if n := len([]rune(line)) - 1; n > 100 {
				t.Errorf("README.md: %d columns, at most 100 are wanted: %s", n, line)
			}
		}
	}
}

var (
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inCode = regexp.MustCompile("`((?:agent|bridge|kmod|proc|scripts|test)/[\\w./-]+)`")
)

// broken returns the links and paths of a page, relative to dir, that lead nowhere.
func broken(p Page, root string) []string {
	var bad []string
	exists := func(path string) bool {
		_, err := os.Stat(path)
		return err == nil
	}
	for _, m := range link.FindAllStringSubmatch(p.Text, -1) {
		target, _, _ := strings.Cut(m[1], "#")
		if strings.Contains(target, "://") || target == "" {
			continue
		}
		if !exists(filepath.Join(root, filepath.Dir(p.Path), target)) {
			bad = append(bad, m[1])
		}
	}
	for _, m := range inCode.FindAllStringSubmatch(p.Text, -1) {
		path := strings.TrimSuffix(m[1], ".")
		if matches, _ := filepath.Glob(filepath.Join(root, path)); len(matches) == 0 && !exists(filepath.Join(root, path)) {
			bad = append(bad, m[1])
		}
	}
	return bad
}

func TestLinks(t *testing.T) {
	sample := Page{"kmod/a.md", "[x](README.md) [y](gone.md) `kmod/gone.c` `kmod/main.c` [z](https://example.org/)"}
	if bad := broken(sample, Root()); !slices.Equal(bad, []string{"gone.md", "kmod/gone.c"}) {
		t.Errorf("found %q, want gone.md and kmod/gone.c", bad)
	}
	for _, p := range pages(t) {
		for _, target := range broken(p, Root()) {
			t.Errorf("%s: %s is not there", p.Path, target)
		}
	}
}

// What the front page shows of the demo is what the demo runs.
func TestDemoOnTheFrontPage(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(Root(), "test/demo/demo.go"))
	if err != nil {
		t.Fatal(err)
	}
	runs := strings.ReplaceAll(string(source), `"+d.storage.Addr()+"`, "192.168.77.1")
	front, err := os.ReadFile(filepath.Join(Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	typed := regexp.MustCompile(`(?m)^    192\.168\.77\.\d# (.*?)(?: &)?$`).FindAllStringSubmatch(string(front), -1)
	for _, m := range typed {
		if !strings.Contains(runs, m[1]) {
			t.Errorf("the demo does not run: %s", m[1])
		}
	}
	if len(typed) < 4 {
		t.Errorf("only %d commands found", len(typed))
	}
}

// Every `make TARGET` of a page is a target of the Makefile that the page is about.
func TestMakeTargets(t *testing.T) {
	makefile := func(dir string) string {
		text, err := os.ReadFile(filepath.Join(Root(), dir, "Makefile"))
		if err != nil {
			t.Fatal(err)
		}
		return string(text)
	}
	top, kmod := makefile("."), makefile("kmod")
	span := regexp.MustCompile("(?m)(?:`|^    )make (-C kmod )?([a-z][a-z-]*)")
	checked := 0
	for _, p := range pages(t) {
		for _, m := range span.FindAllStringSubmatch(p.Text, -1) {
			rules := top
			if m[1] != "" || strings.HasPrefix(p.Path, "kmod/") {
				rules += kmod
			}
			if !regexp.MustCompile(`(?m)^` + m[2] + `\b[^=]*:`).MatchString(rules) {
				t.Errorf("%s: make %s: no such target", p.Path, m[2])
			}
			checked++
		}
	}
	if checked < 10 {
		t.Errorf("only %d targets found", checked)
	}
}

// The heads of tables in transcripts are those that krpingctl prints: each word of them is in its source.
func TestHeadsOfTables(t *testing.T) {
	var source strings.Builder
	err := filepath.WalkDir(filepath.Join(Root(), "agent"), func(path string, d os.DirEntry, err error) error {
		if err != nil || filepath.Ext(path) != ".go" || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		source.Write(text)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	head := regexp.MustCompile(`^    (?:[A-Z][A-Z0-9/.]*[A-Z0-9](?: ms)? {2,}|[A-Z][A-Z0-9]+ )(?:[A-Z][A-Z0-9/. ]*)+$`)
	words := strings.ToUpper(source.String())
	checked := 0
	for _, p := range pages(t) {
		for line := range strings.Lines(p.Text) {
			line = strings.TrimRight(line, "\n")
			if !head.MatchString(line) || len(strings.Fields(line)) < 4 {
				continue
			}
			checked++
			for _, word := range strings.Fields(line) {
				if !strings.Contains(words, word) {
					t.Errorf("%s: no table of krpingctl has %s: %s", p.Path, word, line)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no table found")
	}
}
