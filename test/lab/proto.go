// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"encoding/gob"
	"io"
)

// The conversation with the guest agent: one yamux stream a command, gob values both
// ways. The guest's first bytes on the port, before yamux, are Ready.

// PortName is the virtio-serial port of the agent.
const PortName = "krping.lab"

// Ready ends the line with which the agent announces itself.
const Ready = "krping lab ready\n"

// Request begins a command; closing the stream kills it and its process group.
type Request struct {
	Argv []string
	Env  []string // added to the guest's environment
	Dir  string   // "" for /
}

// ToGuest follows a Request: a signal to the command's process group.
type ToGuest struct {
	Signal int
}

// FromGuest is output of the command or its end.
type FromGuest struct {
	Stdout, Stderr []byte
	Ended          bool
	Code           int    // exit status; 128 + signal if it was killed
	Err            string // why it could not be started
}

// Stream pairs the coders of one stream.
type Stream struct {
	*gob.Encoder
	*gob.Decoder
}

// NewStream wraps a yamux stream.
func NewStream(rw io.ReadWriter) Stream { return Stream{gob.NewEncoder(rw), gob.NewDecoder(rw)} }
