// SPDX-License-Identifier: Apache-2.0

package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/agext/levenshtein"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/input"
	"krping/proc"
)

// decoder converts a file's syntax tree to a Config and collects the mistakes.
type decoder struct {
	file    string
	errors  Errors
	anchors map[string]ast.Node // by name
	merged  int                 // entries of mappings that << has merged
}

func (d *decoder) fail(at *token.Token, format string, args ...any) {
	e := Error{File: d.file, Text: fmt.Sprintf(format, args...)}
	if at != nil {
		e.Line, e.Column = at.Position.Line, at.Position.Column
	}
	d.errors = append(d.errors, e)
}

func (d *decoder) sorted() Errors {
	slices.SortStableFunc(d.errors, func(a, b Error) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	return d.errors
}

func (d *decoder) config(text []byte) Config {
	c := Config{Listen: Address{Network: "unix", Address: DefaultListen}, LogLevel: zerolog.InfoLevel}
	if text = bytes.TrimPrefix(text, []byte("\xef\xbb\xbf")); bytes.HasPrefix(text, []byte("\xff\xfe")) || bytes.HasPrefix(text, []byte("\xfe\xff")) {
		d.fail(nil, "the file is UTF-16: it must be UTF-8")
		return c
	}
	file, err := parser.ParseBytes(text, 0, parser.AllowDuplicateMapKey()) // mapping reports duplicates
	var syntax yaml.Error
	switch {
	case errors.As(err, &syntax):
		d.fail(syntax.GetToken(), "%s", syntax.GetMessage())
		return c
	case err != nil:
		d.fail(nil, "%v", err)
		return c
	case len(file.Docs) == 0:
		return c
	case len(file.Docs) > 1:
		d.fail(tokenOf(file.Docs[1].Body), "second document: a file must have only one")
	}
	root := file.Docs[0].Body
	switch root.(type) {
	case nil, *ast.NullNode, *ast.CommentGroupNode:
		return c
	}
	d.findAnchors(root)
	var webAt *token.Token
	d.mapping(root, "the file", []string{"listen", "web_config", "log", "sessions"}, func(key string, at *token.Token, value ast.Node) {
		switch key {
		case "listen":
			d.listen(&c.Listen, value)
		case "web_config":
			webAt = at
			d.webConfig(&c.Listen, value)
		case "log":
			d.level(&c.LogLevel, value)
		case "sessions":
			c.Sessions = d.sessions(value)
		}
	})
	if webAt != nil && c.Listen.Network == "unix" {
		d.fail(webAt, "web_config: only with listen: ADDRESS:PORT, as a Unix socket is for root only")
	}
	return c
}

// tokenOf returns the position of a node, or nil: malformed YAML may have nodes without one.
func tokenOf(n ast.Node) *token.Token {
	if n == nil {
		return nil
	}
	return n.GetToken()
}

// mapping calls f once for each known key, and reports unknown and repeated ones.
func (d *decoder) mapping(n ast.Node, what string, known []string, f func(key string, at *token.Token, value ast.Node)) {
	m, ok := d.resolve(n).(*ast.MappingNode)
	if !ok {
		d.fail(tokenOf(n), "%s must be a mapping with keys of: %s", what, strings.Join(known, ", "))
		return
	}
	lines := map[string]int{}
	for _, entry := range d.entries(m) {
		at := entry.Key.GetToken()
		key := at.Value
		switch {
		case strings.HasPrefix(key, "x-"): // a place for anchors
		case !slices.Contains(known, key):
			d.fail(at, "unknown key %q: %s", key, meant(key, known))
		case lines[key] != 0:
			d.fail(at, "%s is given twice, first on line %d", key, lines[key])
		default:
			lines[key] = at.Position.Line
			f(key, at, entry.Value)
		}
	}
}

// meant suggests the key that was probably meant, or lists all.
func meant(key string, known []string) string {
	best, distance := "", 3
	for _, k := range known {
		if d := levenshtein.Distance(key, k, nil); d < distance {
			best, distance = k, d
		}
	}
	if best != "" {
		return fmt.Sprintf("did you mean %s?", best)
	}
	return "it must be one of " + strings.Join(known, ", ")
}

// scalar returns the text of a scalar as written in the file.
func (d *decoder) scalar(key string, n ast.Node) (string, bool) {
	switch n := d.resolve(n).(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	d.fail(tokenOf(n), "%s must have a single plain value", key)
	return "", false
}

func (d *decoder) listen(to *Address, n ast.Node) {
	text, ok := d.scalar("listen", n)
	if !ok {
		return
	}
	if filepath.IsAbs(text) {
		to.Network, to.Address = "unix", filepath.Clean(text)
		return
	}
	number, everywhere := strings.CutPrefix(text, ":")
	if port, err := strconv.ParseUint(number, 10, 16); everywhere && err == nil && port != 0 {
		to.Network, to.Address = "tcp", fmt.Sprintf(":%d", port)
		return
	}
	addr, err := netip.ParseAddrPort(strings.Replace(text, "localhost:", "127.0.0.1:", 1))
	if err != nil || addr.Port() == 0 {
		d.fail(tokenOf(n), "listen %q: must be the absolute path of a socket, or ADDRESS:PORT, such as %s or 127.0.0.1:9450 (:9450 for all addresses)", text, DefaultListen)
		return
	}
	to.Network, to.Address = "tcp", addr.String()
}

func (d *decoder) webConfig(to *Address, n ast.Node) {
	text, ok := d.scalar("web_config", n)
	if !ok {
		return
	}
	if !filepath.IsAbs(text) {
		d.fail(tokenOf(n), "web_config %q: must be an absolute path", text)
		return
	}
	if info, err := os.Stat(text); err == nil && !info.Mode().IsRegular() {
		d.fail(tokenOf(n), "web_config %s: must be a regular file", text)
		return
	}
	if err := web.Validate(text); err != nil {
		d.fail(tokenOf(n), "web_config %s: %v", text, err)
		return
	}
	to.Web = text
}

func (d *decoder) level(to *zerolog.Level, n ast.Node) {
	text, ok := d.scalar("log", n)
	if !ok {
		return
	}
	if !slices.Contains([]string{"debug", "info", "warn", "error"}, text) {
		d.fail(tokenOf(n), "log %q: must be debug, info, warn or error", text)
		return
	}
	*to, _ = zerolog.ParseLevel(text) // cannot fail for these
}

func (d *decoder) sessions(n ast.Node) []Session {
	n = d.resolve(n)
	if _, none := n.(*ast.NullNode); none {
		return nil
	}
	list, ok := n.(*ast.SequenceNode)
	if !ok {
		d.fail(tokenOf(n), "sessions must be a list whose items begin with '- name: VOLUME'")
		return nil
	}
	var sessions []Session
	lines := map[string]int{} // line by session name
	for _, n := range list.Values {
		if s, at := d.session(n); s.Name() != "" {
			if line := lines[s.Name()]; line != 0 {
				d.fail(at, "session %s is declared twice, first on line %d", s.Name(), line)
			}
			lines[s.Name()] = at.Position.Line
			sessions = append(sessions, s)
		}
	}
	return sessions
}

// options returns the module's options of a block client by their keys in the file: "name" stands
// for block, and "addr" for addr and addr6.
func options() map[string]proc.Option {
	keys := map[string]proc.Option{}
	for _, o := range proc.Options {
		switch {
		case o.Contexts&proc.BlockClient == 0, o.Name == "client", o.Name == "server", o.Name == "addr6":
			continue
		case o.Name == "block":
			o.Name = "name"
		}
		keys[o.Name] = o
	}
	return keys
}

func sessionKeys() []string {
	keys := []string{"name", "addr"}
	for _, o := range proc.Options { // in the order of the documentation
		if _, ok := options()[o.Name]; ok && o.Name != "addr" {
			keys = append(keys, o.Name)
		}
	}
	return append(keys, "key_file", "reattach", "raid")
}

// session decodes a session and returns the position of its name.
func (d *decoder) session(n ast.Node) (Session, *token.Token) {
	s := Session{Command: proc.Command{Role: proc.Client}, Reattach: ReattachSafe}
	n = d.resolve(n)
	at := tokenOf(n)
	m, ok := n.(*ast.MappingNode)
	if ok && len(m.Values) > 0 {
		at = m.Values[0].Key.GetToken()
	}
	before := len(d.errors)
	given := map[string]bool{}
	d.mapping(n, "a session", sessionKeys(), func(key string, place *token.Token, value ast.Node) {
		given[key] = true
		if key == "name" {
			at = place
		}
		text, ok := d.scalar(key, value)
		if !ok {
			return
		}
		if err := set(&s, key, text); err != nil {
			d.fail(tokenOf(value), "%v", err)
		}
	})
	for _, key := range []string{"name", "addr"} {
		if ok && !given[key] {
			d.fail(at, "a session needs %s", key)
		}
	}
	if len(d.errors) == before { // otherwise Check's error may only follow from those
		if err := s.Command.Check(); err != nil {
			d.fail(at, "session %s: %v", s.Name(), err)
		} else if s.Raid != "" && (cmp.Or(s.Command.Mode, "remote") != "remote" || s.Command.ReadOnly) {
			d.fail(at, "session %s: raid needs mode remote, and a disk that is not read_only", s.Name())
		}
	}
	return s, at
}

// set sets the value of a key in a session. The error says what would be right.
func set(s *Session, key, text string) error {
	c := &s.Command
	switch key {
	case "reattach":
		s.Reattach = Reattach(text)
		if s.Reattach != ReattachSafe && s.Reattach != ReattachAlways {
			return fmt.Errorf("reattach %q: must be safe or always", text)
		}
		return nil
	case "raid":
		if !strings.HasPrefix(text, "/dev/md") || filepath.Clean(text) != text {
			return fmt.Errorf("raid %q: must be the path of an md array, like /dev/md0 or /dev/md/NAME", text)
		}
		s.Raid = text
		return nil
	case "key_file":
		if !filepath.IsAbs(text) {
			return fmt.Errorf("key_file %q: must be an absolute path", text)
		}
		c.KeyFile = text
		_, err := access.ReadKey(text)
		return err
	case "read_only", "take_over":
		given, known := map[string]bool{"true": true, "false": false}[text]
		if !known {
			return fmt.Errorf("%s %q: must be true or false", key, text)
		}
		*map[string]*bool{"read_only": &c.ReadOnly, "take_over": &c.TakeOver}[key] = given
		return nil
	case "addr":
		return setAddr(c, text)
	case "timeout", "fast_fail", "heartbeat":
		var err error
		if text, err = inSeconds(key, text); err != nil {
			return err
		}
	case "backing":
		text = proc.Backing(text)
	}
	if err := options()[key].CheckValue(text); err != nil {
		return err
	}
	number, _ := proc.ParseNumber(text) // CheckValue has checked those that are numbers
	switch key {
	case "name":
		c.Block = text
	case "port":
		if c.Port != 0 && c.Port != uint16(number) {
			return fmt.Errorf("port %d: addr has port %d", number, c.Port)
		}
		c.Port = uint16(number)
	case "timeout":
		c.Timeout = time.Duration(number) * time.Second
	case "queues":
		c.Queues = number
	case "poll_queues":
		c.PollQueues = number
	case "depth":
		c.Depth = number
	case "fast_fail":
		c.FastFail = time.Duration(number) * time.Second
	case "heartbeat":
		c.Heartbeat = &number
	case "mode":
		c.Mode = text
	case "backing":
		c.Backing = text
	case "comm":
		c.Comm = text
	case "pid":
		c.PID = number
	case "op":
		c.Op = text
	case "sectors":
		c.Sectors = text
	case "key":
		c.Key = text
	case "source":
		c.Source = text
	case "tos":
		tos := uint8(number)
		c.TOS = &tos
	case "uuid":
		c.UUID = strings.ToLower(text)
	}
	return nil
}

// setAddr sets the address, and the port if the text has one.
func setAddr(c *proc.Command, text string) error {
	host, port, err := input.HostPort(text)
	if err == nil {
		c.Addr, err = netip.ParseAddr(host)
	}
	switch {
	case err != nil:
		return fmt.Errorf("addr %q: must be the IP address of the target's RDMA device, perhaps with a port: 10.0.0.1:9999", text)
	case port != 0 && c.Port != 0 && port != c.Port:
		return fmt.Errorf("addr %q: port is %d", text, c.Port)
	case port != 0:
		c.Port = port
	}
	return nil
}

// inSeconds converts a duration such as 10m to a number of seconds. It returns other texts as they
// are.
func inSeconds(key, text string) (string, error) {
	d, err := input.Duration(text)
	switch {
	case err != nil:
		return text, nil // invalid: CheckValue decides
	case d%time.Second != 0:
		return "", fmt.Errorf("%s %q: must be whole seconds", key, text)
	}
	return strconv.FormatInt(int64(d/time.Second), 10), nil
}
