// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/gob"
	"io"
)

// The protocol between host and guest agent: a yamux stream for each command, with gob values in both
// directions. Before yamux starts, the agent sends Ready.

// PortName is the virtio-serial port of the agent.
const PortName = "krping.lab"

// Ready is the line with which the agent announces itself.
const Ready = "krping lab ready\n"

// Request starts a command. Closing the stream kills it and its process group.
type Request struct {
	Argv []string
	Env  []string // added to the guest's environment
	Dir  string   // "" for /
}

// ToGuest may follow a Request: a signal to the command's process group.
type ToGuest struct {
	Signal int
}

// FromGuest is output of the command or tells how it ended.
type FromGuest struct {
	Stdout, Stderr []byte
	Ended          bool
	Code           int    // exit status; 128 + signal if it was killed
	Err            string // why it could not be started
}

// Stream encodes and decodes the values on one stream.
type Stream struct {
	*gob.Encoder
	*gob.Decoder
}

// NewStream wraps a yamux stream.
func NewStream(rw io.ReadWriter) Stream { return Stream{gob.NewEncoder(rw), gob.NewDecoder(rw)} }
