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

func TestCommandsInCodeBlocks(t *testing.T) {
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

// tooLong returns the lines of a page that are wider than columns. Tables, code blocks and images may be wider.
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

func TestLinesWrapped(t *testing.T) {
	if long := tooLong(Page{"", strings.Repeat("a ", 51) + "\n| " + strings.Repeat("b", 200) + "\n"}, 100); len(long) != 1 {
		t.Errorf("found %q, want the first line", long)
	}
	for _, p := range pages(t) {
		for _, line := range tooLong(p, 100) {
			t.Errorf("%s: over 100 columns: %s", p.Path, line)
		}
	}
}

// The front page is short: details are in the README.md of each folder.
func TestFrontPageIsShort(t *testing.T) {
	for _, p := range pages(t) {
		if p.Path != "README.md" {
			continue
		}
		if lines := strings.Count(p.Text, "\n"); lines > 140 {
			t.Errorf("README.md has %d lines, want at most 140", lines)
		}
		for line := range strings.Lines(p.Text) {
			if n := len([]rune(line)) - 1; n > 100 {
				t.Errorf("README.md: %d columns, want at most 100: %s", n, line)
			}
		}
	}
}

var (
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	inCode = regexp.MustCompile("`((?:agent|bridge|kmod|proc|scripts|test)/[\\w./-]+)`")
)

// broken returns the links of a page, and the paths in backquotes, whose targets do not exist below root.
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

func TestLinksAndPathsExist(t *testing.T) {
	sample := Page{"kmod/a.md", "[x](README.md) [y](gone.md) `kmod/gone.c` `kmod/main.c` [z](https://example.org/)"}
	if bad := broken(sample, Root()); !slices.Equal(bad, []string{"gone.md", "kmod/gone.c"}) {
		t.Errorf("found %q, want gone.md and kmod/gone.c", bad)
	}
	for _, p := range pages(t) {
		for _, target := range broken(p, Root()) {
			t.Errorf("%s: %s does not exist", p.Path, target)
		}
	}
}

// The demo runs the commands that the front page shows.
func TestFrontPageShowsDemo(t *testing.T) {
	source, err := os.ReadFile(filepath.Join(Root(), "test/demo/demo.go"))
	if err != nil {
		t.Fatal(err)
	}
	demo := strings.ReplaceAll(string(source), `"+d.storage.Addr()+"`, "192.168.77.1")
	front, err := os.ReadFile(filepath.Join(Root(), "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	shown := regexp.MustCompile(`(?m)^    192\.168\.77\.\d# (.*?)(?: &)?$`).FindAllStringSubmatch(string(front), -1)
	for _, m := range shown {
		if !strings.Contains(demo, m[1]) {
			t.Errorf("the demo does not run: %s", m[1])
		}
	}
	if len(shown) < 4 {
		t.Errorf("only %d commands found", len(shown))
	}
}

// Each `make TARGET` in a page is a target of the Makefile.
func TestMakeTargetsExist(t *testing.T) {
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

// Each word of a table header in a transcript is in krpingctl's source.
func TestTableHeaders(t *testing.T) {
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
					t.Errorf("%s: krpingctl prints no table header with %s: %s", p.Path, word, line)
				}
			}
		}
	}
	if checked == 0 {
		t.Error("no table found")
	}
}
