// SPDX-License-Identifier: Apache-2.0

// Package v1 holds conversations of protocol version 1 that were recorded from the module and the
// bridge before there was another version, and a client and a target made from them. Tests use it
// to show that later versions still talk to version 1. It shares no code with package wire, which
// changes with the protocol; the recorded bytes never change.
package v1

import (
	"bytes"
	"embed"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
)

//go:embed testdata/*.txt
var files embed.FS

// Sizes in bytes of version 1's structures.
const (
	HelloSize         = 56
	WelcomeSize       = 40
	ProvenWelcomeSize = 56
	RejectSize        = 12
	ChallengeSize     = 32
	CommandSize       = 32
	ResponseSize      = 16
)

// Values replace the variable parts of messages, by name.
type Values map[string][]byte

// Message is the private data of a connection's set-up, or a message on a connection.
type Message struct {
	FromClient bool
	Name       string
	// Memory is the client's memory at $addr, if the message lends it: what the target fetches for
	// a WRITE, and what it has put there after a READ. The response invalidates $rkey.
	Memory []byte
	parts  []part
}

// part is recorded bytes. Those with a name differ between two conversations.
type part struct {
	name  string
	bytes []byte
}

// Conversation is what a client and a target sent, in turn.
type Conversation []Message

// Recorded is Load for tests, which fail if it does.
func Recorded(t testing.TB, name string) Conversation {
	t.Helper()
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// Load returns a conversation of testdata, named by its file without ".txt". A line that begins
// with '>' begins a message of the client, one with '<' of the target; the rest of it is the name.
// The lines after it hold its bytes as words: hex, hex*COUNT for a repetition, or $NAME=hex for a
// variable part. After a line '@', they are those of Memory. '#' begins a comment.
func Load(name string) (Conversation, error) {
	text, err := files.ReadFile("testdata/" + name + ".txt")
	if err != nil {
		return nil, err
	}
	var c Conversation
	inMemory := false
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) == 0:
		case words[0] == ">" || words[0] == "<":
			c = append(c, Message{FromClient: words[0] == ">", Name: strings.Join(words[1:], " ")})
			inMemory = false
		case len(c) == 0:
			return nil, fmt.Errorf("%s: bytes before the first message", name)
		case words[0] == "@":
			inMemory = true
		default:
			if err := c[len(c)-1].add(words, inMemory); err != nil {
				return nil, fmt.Errorf("%s: message %s: %w", name, c[len(c)-1].Name, err)
			}
		}
	}
	return c, nil
}

func (m *Message) add(words []string, inMemory bool) error {
	for _, word := range words {
		p, err := parsePart(word)
		if err != nil {
			return err
		}
		if inMemory {
			m.Memory = append(m.Memory, p.bytes...)
		} else {
			m.parts = append(m.parts, p)
		}
	}
	return nil
}

func parsePart(word string) (part, error) {
	var p part
	if variable, ok := strings.CutPrefix(word, "$"); ok {
		p.name, word, _ = strings.Cut(variable, "=")
	}
	word, count, repeated := strings.Cut(word, "*")
	b, err := hex.DecodeString(word)
	if err != nil {
		return p, err
	}
	n := 1
	if repeated {
		if n, err = strconv.Atoi(count); err != nil {
			return p, err
		}
	}
	p.bytes = bytes.Repeat(b, n)
	return p, nil
}

// Bytes returns the message with other values for some variable parts. Those without one are as
// they were recorded.
func (m Message) Bytes(values Values) []byte {
	var b []byte
	for _, p := range m.parts {
		if v, ok := values[p.name]; ok && p.name != "" {
			b = append(b, v...)
		} else {
			b = append(b, p.bytes...)
		}
	}
	return b
}

// Match compares a message with the recorded one and returns the values of its variable parts,
// added to those given. A part with a given value must be equal to that. Zeros may follow, as
// InfiniBand pads private data.
func (m Message) Match(b []byte, given Values) (Values, error) {
	values := maps.Clone(given)
	if values == nil {
		values = Values{}
	}
	whole, at := b, 0
	for _, p := range m.parts {
		if len(b) < len(p.bytes) {
			return nil, fmt.Errorf("%s: %d bytes, want more:\n%x", m.Name, len(whole), whole)
		}
		got := b[:len(p.bytes)]
		want, known := p.bytes, p.name == ""
		if v, ok := values[p.name]; ok && p.name != "" {
			want, known = v, true
		}
		if known && !bytes.Equal(got, want) {
			return nil, fmt.Errorf("%s: at byte %d %s is %x, want %x, in\n%x", m.Name, at, p.name, short(got), short(want), short(whole))
		}
		if p.name != "" {
			values[p.name] = bytes.Clone(got)
		}
		b, at = b[len(p.bytes):], at+len(p.bytes)
	}
	if len(bytes.Trim(b, "\x00")) != 0 {
		return nil, fmt.Errorf("%s: after %d bytes there is more: %x", m.Name, at, short(b))
	}
	return values, nil
}

// short returns what an error shows of long data.
func short(b []byte) []byte { return b[:min(len(b), 128)] }

// Exchange is a message of the client and the target's answer to it.
type Exchange struct{ Client, Target Message }

// Exchanges returns the conversation in pairs.
func (c Conversation) Exchanges() []Exchange {
	var pairs []Exchange
	for i := 0; i+1 < len(c); i += 2 {
		pairs = append(pairs, Exchange{c[i], c[i+1]})
	}
	return pairs
}

// Find returns the message with that name, which must exist.
func (c Conversation) Find(name string) Message {
	i := slices.IndexFunc(c, func(m Message) bool { return m.Name == name })
	return c[i]
}

// Is compares a message of responses with the recorded one. The order of the responses to several
// commands does not matter.
func (m Message) Is(got []byte) error {
	want := m.Bytes(nil)
	if !slices.EqualFunc(responses(got), responses(want), bytes.Equal) {
		return fmt.Errorf("%s: got\n%x, want\n%x", m.Name, short(got), short(want))
	}
	return nil
}

// responses splits a message into its responses, sorted. The last one may be cut.
func responses(msg []byte) [][]byte {
	var all [][]byte
	for len(msg) > 0 {
		n := min(ResponseSize, len(msg))
		if n == ResponseSize && msg[3] != 0 { // inline data
			n += min(int(binary.BigEndian.Uint32(msg[4:])+7)&^7, len(msg)-n)
		}
		all, msg = append(all, msg[:n]), msg[n:]
	}
	slices.SortFunc(all, bytes.Compare)
	return all
}
