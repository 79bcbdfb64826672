// SPDX-License-Identifier: Apache-2.0

// Package tree reads the C sources of kmod/ and finds breaks of its layout: a folder that includes
// what it may not, files that call each other in a circle, files that are too long, global names
// without prefix, and types of one name.
package tree

import (
	"fmt"
	"io/fs"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"
)

// maxLines is the most lines a C file may have.
const maxLines = 800

const prefix = "krping_"

// mayUse says which folders the files of a folder may include, beside their own. Everyone may
// include options.h and uapi/krping.h. The folder of main.c and control.c is ".".
var mayUse = map[string][]string{
	".":      {"lib", "wire", "rdma", "ping", "verbs", "client", "local", "target"},
	"lib":    {"probe"},
	"probe":  {},
	"wire":   {"lib"},
	"rdma":   {"lib"},
	"ping":   {"lib", "wire", "rdma"},
	"verbs":  {"lib", "rdma", "ping"},
	"client": {"lib", "wire", "rdma"},
	"target": {"lib", "wire", "rdma"},
	"local":  {"lib", "wire", "rdma", "client"},
	"uapi":   {},
}

// forAll lists headers that every file may include.
var forAll = []string{"options.h", "uapi/krping.h"}

// inUserSpace lists the files that also compile in user space, with fuzz/kernel_shim.h.
var inUserSpace = []string{"options.h", "wire/wire.h", "verbs/message.h", "verbs/account.h"}

// Callbacks maps functions that a lower file calls in a higher one to the reason why that is no
// dependency. Calls of them are not counted.
type Callbacks map[string]string

// source is a C file. Comments and the contents of literals are blanked in text.
type source struct {
	path  string
	text  string
	lines int
	// includes has the quoted includes, in their order.
	includes []string
}

// Tree is the C sources of the module.
type Tree struct {
	sources []source
}

// Load reads all C files of fsys but those of fuzz/, which are not part of the module, and those
// that the build makes.
func Load(fsys fs.FS) (*Tree, error) {
	t := &Tree{}
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			if name == "fuzz" {
				return fs.SkipDir
			}
			return nil
		}
		ext := path.Ext(name)
		if ext != ".c" && ext != ".h" || strings.HasSuffix(name, ".mod.c") {
			return nil
		}
		raw, err := fs.ReadFile(fsys, name)
		if err != nil {
			return err
		}
		t.sources = append(t.sources, parse(name, string(raw)))
		return nil
	})
	return t, err
}

var includeLine = regexp.MustCompile(`(?m)^#include "([^"]+)"`)

func parse(name, raw string) source {
	s := source{path: name, text: blank(raw), lines: strings.Count(raw, "\n")}
	for _, m := range includeLine.FindAllStringSubmatch(raw, -1) {
		s.includes = append(s.includes, m[1])
	}
	return s
}

// notCode matches comments, literals and preprocessor lines.
var notCode = regexp.MustCompile(`(?s)/\*.*?\*/|//[^\n]*|"(?:\\.|[^"\\])*"|'(?:\\.|[^'\\])*'|(?m:^#)(?:\\\n|[^\n])*`)

// blank returns text with spaces for all that is not code; newlines stay.
func blank(text string) string {
	return notCode.ReplaceAllStringFunc(text, func(s string) string {
		return strings.Map(func(r rune) rune {
			if r == '\n' {
				return r
			}
			return ' '
		}, s)
	})
}

// Problems returns all breaks of the layout, sorted.
func (t *Tree) Problems(callbacks Callbacks) []string {
	problems := slices.Concat(t.includeProblems(), t.circles(callbacks), t.sizeProblems(), t.nameProblems(), t.typeProblems())
	sort.Strings(problems)
	return problems
}

func (t *Tree) includeProblems() []string {
	var problems []string
	for _, s := range t.sources {
		room := path.Dir(s.path)
		allowed, known := mayUse[room]
		if !known {
			problems = append(problems, fmt.Sprintf("%s: folder %s is not in the list of folders", s.path, room))
			continue
		}
		for _, include := range s.includes {
			used := path.Dir(include)
			switch {
			case used == room, slices.Contains(allowed, used), slices.Contains(forAll, include):
			case include == "fuzz/kernel_shim.h" && slices.Contains(inUserSpace, s.path):
			default:
				problems = append(problems, fmt.Sprintf("%s: includes %q: %s may include %s only", s.path, include, room, strings.Join(allowed, ", ")))
			}
		}
	}
	return problems
}

// definition matches the head of a function, up to the brace that begins its body.
var definition = regexp.MustCompile(`(?m)^([a-zA-Z_][^\n;{}=]*?)\b(\w+)\(([^;{}]*)\)\n\{`)

// object matches the definition of a variable at file level.
var object = regexp.MustCompile(`(?m)^((?:[a-z_]\w* )+\**)(\w+)(?:\[[^\]]*\])*(?: = [^\n]*|;)$`)

type function struct {
	name  string
	local bool // static
	body  string
}

func (s source) functions() []function {
	var all []function
	for _, m := range definition.FindAllStringSubmatchIndex(s.text, -1) {
		head := s.text[m[2]:m[3]]
		body := s.text[m[1]:]
		if end := strings.Index(body, "\n}"); end >= 0 {
			body = body[:end]
		}
		all = append(all, function{
			name:  s.text[m[4]:m[5]],
			local: strings.HasPrefix(head, "static"),
			body:  body,
		})
	}
	return all
}

var callOf = regexp.MustCompile(`\b(\w+)\(`)

func calls(text string) []string {
	var names []string
	for _, m := range callOf.FindAllStringSubmatch(text, -1) {
		names = append(names, m[1])
	}
	return names
}

// edge is a call from one C file to another.
type edge struct{ from, to string }

// edges returns the calls between C files, with the functions called. A call of an inline function
// of a header counts as calls of what that function calls.
func (t *Tree) edges(callbacks Callbacks) map[edge][]string {
	definedIn := make(map[string]string)
	inlines := make(map[string]string)
	for _, s := range t.sources {
		for _, f := range s.functions() {
			if path.Ext(s.path) == ".h" {
				inlines[f.name] += f.body
			} else if !f.local {
				definedIn[f.name] = s.path
			}
		}
	}
	all := make(map[edge][]string)
	for _, s := range t.sources {
		if path.Ext(s.path) != ".c" {
			continue
		}
		seen := make(map[string]bool)
		for _, f := range s.functions() {
			follow(f.body, s.path, definedIn, inlines, seen, func(callee string) {
				if _, allowed := callbacks[callee]; !allowed && definedIn[callee] != s.path {
					e := edge{s.path, definedIn[callee]}
					all[e] = append(all[e], callee)
				}
			})
		}
	}
	return all
}

// follow reports each function of definedIn that text calls once, also through inline functions.
func follow(text, from string, definedIn, inlines map[string]string, seen map[string]bool, report func(string)) {
	for _, name := range calls(text) {
		if seen[name] {
			continue
		}
		seen[name] = true
		if _, ok := definedIn[name]; ok {
			report(name)
		} else if body, ok := inlines[name]; ok {
			follow(body, from, definedIn, inlines, seen, report)
		}
	}
}

// circles reports C files that call each other, directly or by way of others.
func (t *Tree) circles(callbacks Callbacks) []string {
	edges := t.edges(callbacks)
	reach := make(map[string]map[string]bool)
	for _, s := range t.sources {
		reach[s.path] = make(map[string]bool)
	}
	for e := range edges {
		reach[e.from][e.to] = true
	}
	for via := range reach {
		for from := range reach {
			if reach[from][via] {
				for to := range reach[via] {
					reach[from][to] = true
				}
			}
		}
	}
	var problems []string
	for e, names := range edges {
		if reach[e.to][e.from] {
			problems = append(problems, fmt.Sprintf("%s: is in a circle with %s, by its calls of %s", e.from, e.to, strings.Join(names, ", ")))
		}
	}
	return problems
}

func (t *Tree) sizeProblems() []string {
	var problems []string
	for _, s := range t.sources {
		if s.lines > maxLines {
			problems = append(problems, fmt.Sprintf("%s: has %d lines, at most %d are allowed", s.path, s.lines, maxLines))
		}
	}
	return problems
}

// nameProblems reports functions and variables that other files can see and that lack the prefix.
func (t *Tree) nameProblems() []string {
	var problems []string
	missing := func(s source, kind, name string) {
		if !strings.HasPrefix(name, prefix) {
			problems = append(problems, fmt.Sprintf("%s: global %s %s has no prefix %s", s.path, kind, name, prefix))
		}
	}
	for _, s := range t.sources {
		header := path.Ext(s.path) == ".h"
		for _, f := range s.functions() {
			if header || !f.local {
				missing(s, "function", f.name)
			}
		}
		for _, m := range object.FindAllStringSubmatch(s.text, -1) {
			first, _, _ := strings.Cut(m[1], " ")
			forward := (first == "struct" || first == "enum") && strings.Count(m[1], " ") == 1
			if first != "static" && first != "extern" && first != "typedef" && !forward {
				missing(s, "variable", m[2])
			}
		}
		if header {
			for _, name := range s.types() {
				missing(s, "type", name)
			}
		}
	}
	return problems
}

var typeLine = regexp.MustCompile(`(?m)^(?:struct|enum|union) (\w+) \{`)

func (s source) types() []string {
	var names []string
	for _, m := range typeLine.FindAllStringSubmatch(s.text, -1) {
		names = append(names, m[1])
	}
	return names
}

// typeProblems reports types of one name in two places.
func (t *Tree) typeProblems() []string {
	first := make(map[string]string)
	var problems []string
	for _, s := range t.sources {
		for _, name := range s.types() {
			if other, ok := first[name]; ok {
				problems = append(problems, fmt.Sprintf("%s: type %s is also defined in %s", s.path, name, other))
				continue
			}
			first[name] = s.path
		}
	}
	return problems
}
