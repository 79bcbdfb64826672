// SPDX-License-Identifier: Apache-2.0

// Package config reads the agent's configuration: which block sessions there are to be, and
// where the agent listens. All mistakes of a file are found at once, each with its place and
// with what would be right.
package config

import (
	"fmt"
	"os"
	"strings"

	"github.com/rs/zerolog"

	"krping/proc"
)

// DefaultPath is where the agent's configuration is, and DefaultListen where the agent listens
// if that does not say.
const (
	DefaultPath   = "/etc/krping/krping.yaml"
	DefaultListen = "/run/krping/agent.sock"
)

// Config is what a file says.
type Config struct {
	Listen   Address
	LogLevel zerolog.Level
	Sessions []Session
}

// Address is where the agent listens, as net.Listen takes it: "unix" and a path, or "tcp" and
// an address with a port.
type Address struct{ Network, Address string }

func (a Address) String() string { return a.Address }

// Session is a declared block session.
type Session struct {
	Command  proc.Command // of a block client, valid
	Reattach Reattach
}

// Name returns the name of the session and of its volume.
func (s Session) Name() string { return s.Command.Block }

// Reattach says what is done with a session that has failed.
type Reattach string

// Whether a failed session is attached anew.
const (
	ReattachSafe   Reattach = "safe"   // only if no answered write can be lost: remote, write-through
	ReattachAlways Reattach = "always" // whatever was lost
)

// Error is a mistake in a file.
type Error struct {
	File         string
	Line, Column int // from 1; 0: of the file as a whole
	Text         string
}

func (e Error) Error() string {
	if e.Line == 0 {
		return e.File + ": " + e.Text
	}
	return fmt.Sprintf("%s:%d:%d: %s", e.File, e.Line, e.Column, e.Text)
}

// Errors are all mistakes in a file, in the order of their places.
type Errors []Error

func (e Errors) Error() string {
	texts := make([]string, len(e))
	for i, one := range e {
		texts[i] = one.Error()
	}
	return strings.Join(texts, "\n")
}

// Load reads a file. What is wrong with its content are Errors.
func Load(path string) (Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return Config{}, fmt.Errorf("read the configuration: %w", err)
	}
	return Parse(path, text)
}

// Parse reads the text of a file; what is wrong with it are Errors.
func Parse(file string, text []byte) (Config, error) {
	d := decoder{file: file}
	c := d.config(text)
	if len(d.errors) > 0 {
		return Config{}, d.sorted()
	}
	return c, nil
}
