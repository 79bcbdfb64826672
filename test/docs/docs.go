// SPDX-License-Identifier: Apache-2.0

// Package docs reads the project's Markdown files, so that tests can check them against the programs.
package docs

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"testing"
)

// Page is a Markdown file.
type Page struct {
	Path string // relative to the root of the repository
	Text string
}

// Command is a command line that a page shows in a code block.
type Command struct {
	Page string
	Line int // from 1
	Args []string
}

// Root returns the root of the repository.
func Root() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Pages returns all Markdown files of the repository, except those in build/ and hidden directories.
func Pages() ([]Page, error) {
	var pages []Page
	err := filepath.WalkDir(Root(), func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != Root() && (d.Name() == "build" || strings.HasPrefix(d.Name(), ".")) {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		name, err := filepath.Rel(Root(), path)
		pages = append(pages, Page{name, string(text)})
		return err
	})
	return pages, err
}

// prompt matches "host# ", "# " or nothing at the beginning of a line.
var prompt = regexp.MustCompile(`^(?:[\w.-]*# )?`)

// separators end a command: shell operators, and # before a comment.
var separators = regexp.MustCompile(`\s(?:&&|\|\|?|;|&|>|2>|<|#)(?:\s|$)|;(?:\s|$)`)

// Commands returns the command lines of a program in the code blocks of a page. Code blocks are indented by
// four spaces. Words are split at spaces; quotes are not supported.
func (p Page) Commands(program string) []Command {
	var found []Command
	for i, line := range strings.Split(p.Text, "\n") {
		code, isCode := strings.CutPrefix(line, "    ")
		if !isCode {
			continue
		}
		code = prompt.ReplaceAllString(code, "")
		for _, part := range separators.Split(code, -1) {
			words := strings.Fields(part)
			if len(words) > 0 && filepath.Base(words[0]) == program {
				found = append(found, Command{p.Path, i + 1, words[1:]})
			}
		}
	}
	return found
}

// CheckCommands runs every command line of a program that the pages show, with --help added, and fails t
// where run does: for an unknown command or flag, or a value that the flag does not take. It also fails
// if it finds fewer than least.
func CheckCommands(t *testing.T, program string, least int, run func(args []string) error) {
	t.Helper()
	pages, err := Pages()
	if err != nil {
		t.Fatal(err)
	}
	checked := 0
	for _, page := range pages {
		for _, c := range page.Commands(program) {
			if err := run(append(c.Args, "--help")); err != nil {
				t.Errorf("%s:%d: %s %v: %v", c.Page, c.Line, program, c.Args, err)
			}
			checked++
		}
	}
	if checked < least {
		t.Errorf("only %d commands found", checked)
	}
	if err := run([]string{"--no-such-flag", "--help"}); err == nil {
		t.Error("an unknown flag is not noticed")
	}
}
