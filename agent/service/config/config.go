// SPDX-License-Identifier: Apache-2.0

// Package config reads the agent's configuration file: the block sessions to maintain, and where
// the agent listens. It reports all mistakes of a file at once, each with its position and what
// would be right.
package config

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/rs/zerolog"

	"krping/proc"
)

const (
	// DefaultPath is the default path of the configuration file.
	DefaultPath = "/etc/krping/krping.yaml"
	// DefaultListen is where the agent listens unless the file says otherwise.
	DefaultListen = "/run/krping/agent.sock"
)

// Config is the content of a configuration file.
type Config struct {
	Listen   Address
	LogLevel zerolog.Level
	Sessions []Session
}

// Address is an address for net.Listen: network "unix" with a path, or "tcp" with ADDRESS:PORT.
type Address struct {
	Network, Address string
	Web              string // path of a web configuration of Prometheus' exporters, for TLS and passwords; "": none
}

func (a Address) String() string { return a.Address }

// Session is a declared block session.
type Session struct {
	Command  proc.Command // a valid command of a block client
	Reattach Reattach
	Raid     string // path of the md array that its disk is put back into after a loss of the target; "": none
}

// Name returns the name of the session and of its volume.
func (s Session) Name() string { return s.Command.Block }

// Reattach says when a failed session is attached again.
type Reattach string

// Values of Reattach.
const (
	ReattachSafe   Reattach = "safe"   // if no acknowledged write can be lost: remote, write-through and not volatile
	ReattachAlways Reattach = "always" // even if data may be lost
)

// Error is a mistake in a file.
type Error struct {
	File         string
	Line, Column int // from 1; 0 if the mistake concerns the whole file
	Text         string
}

func (e Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Errors are all mistakes in a file, ordered by position.
type Errors []Error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "\n")
}

// ErrNoFile is returned by Load for a file that does not exist.
var ErrNoFile = errors.New("there is no configuration")

// Load reads a file. Mistakes in its content are returned as Errors.
func Load(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return Config{}, fmt.Errorf("%w: %w", ErrNoFile, err)
	}
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, text)
}

// Parse parses the text of a file. Mistakes are returned as Errors.
func Parse(file string, text []byte) (Config, error) {
	d := decoder{file: file}
	c := d.config(text)
	if len(d.errors) > 0 {
		return Config{}, d.sorted()
	}
	return c, nil
}
