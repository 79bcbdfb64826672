// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"
)

// mistake is what is wrong with a value of a save file, such as that of subsystems[0].nqn.
type mistake struct {
	path string
	err  error
}

func (m *mistake) Error() string { return strings.TrimPrefix(m.path+": ", ": ") + m.err.Error() }

func (m *mistake) Unwrap() error { return m.err }

func wrong(path, format string, args ...any) error {
	return &mistake{path, fmt.Errorf(format, args...)}
}

// Parse parses and checks a save file. An error has the line and column of the mistake. unknown are the
// values that the file has and this program does not know; they are ignored, as by nvmetcli.
func Parse(data []byte) (c Config, unknown []string, err error) {
	data = bytes.TrimPrefix(data, []byte("\xef\xbb\xbf")) // byte order mark
	var anything any
	if err := json.Unmarshal(data, &anything); err != nil {
		return c, nil, notSaved(data, err)
	}
	w := walker{data: data, tokens: json.NewDecoder(bytes.NewReader(data)), at: map[string]int64{}}
	w.value("", "")
	if w.wrong != nil {
		return c, nil, fmt.Errorf("not a save file of nvmetcli: %s: %w", position(data, w.at[w.wrong.path]), w.wrong)
	}
	if err := json.Unmarshal(data, &c); err != nil {
		return c, nil, notSaved(data, err)
	}
	err = c.check()
	if found := new(mistake); errors.As(err, &found) {
		return c, nil, fmt.Errorf("%s: %w", position(data, w.offset(found.path)), err)
	}
	return c, w.unknown, err
}

func notSaved(data []byte, err error) error {
	const what = "not a save file of nvmetcli"
	if syntax := new(json.SyntaxError); errors.As(err, &syntax) {
		return fmt.Errorf("%s: %s: %w", what, position(data, max(syntax.Offset-1, 0)), err)
	}
	if kind := new(json.UnmarshalTypeError); errors.As(err, &kind) {
		return fmt.Errorf("%s: %s: %s: must not be a JSON %s", what, position(data, max(kind.Offset-1, 0)), kind.Field, kind.Value)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// position returns the line and column of an offset, both from 1. A column is a character.
func position(data []byte, offset int64) string {
	before := data[:min(offset, int64(len(data)))]
	line := bytes.Count(before, []byte{'\n'})
	column := utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
	return fmt.Sprintf("line %d, column %d", line+1, column+1)
}

// walker walks through a file that is valid JSON.
type walker struct {
	data    []byte
	tokens  *json.Decoder
	at      map[string]int64 // offset of each value, by its path
	wrong   *mistake         // the first
	unknown []string
}

// groups are the names of objects that are Attributes.
var groups = []string{"addr", "attr", "device", "param", "dhchap", "ana", attributesKey}

// known are the names of the values of each object that is not an Attributes.
var known = map[string][]string{
	"":                      {"hosts", "ports", "subsystems", attributesKey},
	"hosts[]":               {"dhchap", "nqn"},
	"subsystems[]":          {"allowed_hosts", "attr", "namespaces", "nqn", "passthru", attributesKey},
	"subsystems[].passthru": {"device", "enable", attributesKey}, "subsystems[].passthru[]": {"device", "enable", attributesKey},
	"subsystems[].namespaces[]": {"ana_grpid", "ana", "device", "enable", "identity", "nsid", attributesKey},
	"ports[]":                   {"addr", "ana_groups", "param", "portid", "referrals", "subsystems", attributesKey},
	"ports[].ana_groups[]":      {"ana", "grpid"},
	"ports[].referrals[]":       {"addr", "enable", "name"},
}

// value reads a value. kind is its path without numbers.
func (w *walker) value(path, kind string) {
	start := w.tokens.InputOffset()
	for start < int64(len(w.data)) && strings.IndexByte(" \t\r\n,:", w.data[start]) >= 0 {
		start++
	}
	w.at[path] = start
	token, err := w.tokens.Token()
	if err != nil {
		return // it is valid
	}
	name := kind[strings.LastIndexByte(kind, '.')+1:]
	group := slices.Contains(groups, name)
	parent := kind[:max(len(kind)-len(name)-1, 0)]
	inGroup := slices.Contains(groups, parent[strings.LastIndexByte(parent, '.')+1:])
	switch delim, _ := token.(json.Delim); {
	case inGroup && delim != 0:
		w.mistake(path, "must be a string or a number")
	case group && delim != '{' && token != nil:
		w.mistake(path, "must be an object: {...}")
	case name == "enable" && !slices.Contains([]any{"0", "1", 0.0, 1.0, false, true, nil}, any(token)):
		w.mistake(path, "must be 0 or 1")
	}
	switch token {
	case json.Delim('{'):
		w.object(path, kind)
	case json.Delim('['):
		for i := 0; w.tokens.More(); i++ {
			w.value(fmt.Sprintf("%s[%d]", path, i), kind+"[]")
		}
		_, _ = w.tokens.Token()
	}
}

func (w *walker) object(path, kind string) {
	names, typed := known[kind]
	for w.tokens.More() {
		token, _ := w.tokens.Token()
		name := fmt.Sprint(token)
		if typed && !slices.Contains(names, name) {
			w.unknown = append(w.unknown, strings.TrimPrefix(path+"."+name, "."))
		}
		w.value(strings.TrimPrefix(path+"."+name, "."), strings.TrimPrefix(kind+"."+name, "."))
	}
	_, _ = w.tokens.Token()
}

func (w *walker) mistake(path, text string) {
	if w.wrong == nil {
		w.wrong = &mistake{path, errors.New(text)}
	}
}

// offset returns that of a value, or if it is missing, of what should have it.
func (w *walker) offset(path string) int64 {
	for {
		if at, found := w.at[path]; found {
			return at
		}
		path = path[:max(strings.LastIndexAny(path, ".["), 0)]
	}
}
