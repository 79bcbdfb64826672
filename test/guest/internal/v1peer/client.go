// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package v1peer is a client and a target of protocol version 1, made of recorded bytes.
package v1peer

import (
	"bytes"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"krping/bridge/verbs"
	v1 "krping/bridge/wire/v1"
	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
)

// Size is the size of the volumes in bytes.
const Size = 8 << 20

// Client connects to vol0 as a client of version 1 did, with a key unless it is "".
type Client struct {
	Port    int
	Key     string
	Session []byte // 16 bytes
	t       testing.TB
	conn    *fakeclient.Client
}

// NewClient returns a client with a new session, which is not connected.
func NewClient(t testing.TB, port int, key string) *Client {
	session := make([]byte, 16)
	_, _ = rand.Read(session) // never fails
	return &Client{Port: port, Key: key, Session: session, t: t}
}

// Connect connects the session's queue, until the end of the test.
func (c *Client) Connect() {
	c.t.Helper()
	values := v1.Values{"session": c.Session}
	if c.Key != "" {
		c.connectWithKey(values)
		return
	}
	plain := v1.Recorded(c.t, "plain")
	welcome := c.accepted(plain.Find("hello").Bytes(values))
	c.match(plain.Find("welcome"), welcome, nil)
}

// connectWithKey is the handshake with a key.
func (c *Client) connectWithKey(values v1.Values) {
	c.t.Helper()
	recorded := v1.Recorded(c.t, "key")
	var rejected *verbs.RejectedError
	_, err := fakeclient.DialRaw(c.t, c.Port, recorded.Find("hello, queue 0").Bytes(values), fakeclient.Small)
	if !errors.As(err, &rejected) {
		c.t.Fatalf("a target with a key: %v, want a challenge", err)
	}
	given := c.match(recorded.Find("challenge, queue 0"), rejected.Private, nil)
	values["challenge"] = given["challenge"]
	answer := recorded.Find("answer, queue 0").Bytes(values)
	h := v1.Handshake{Challenge: rejected.Private, Answer: answer, Volume: "vol0"}
	values["client_proof"] = h.ClientProof(c.Key)
	h.Answer = recorded.Find("answer, queue 0").Bytes(values)
	welcome := c.accepted(h.Answer)
	c.match(recorded.Find("proven welcome, queue 0"), welcome, v1.Values{"target_proof": h.TargetProof(c.Key, welcome)})
}

// accepted connects and returns the private data of the accept.
func (c *Client) accepted(hello []byte) []byte {
	c.t.Helper()
	conn, err := fakeclient.DialRaw(c.t, c.Port, hello, fakeclient.Config)
	if err != nil {
		c.t.Fatalf("a client of version 1: %v", err)
	}
	c.conn = conn
	return conn.Private
}

// match checks what a target sends.
func (c *Client) match(m v1.Message, private []byte, given v1.Values) v1.Values {
	c.t.Helper()
	values, err := m.Match(private, given)
	if err != nil {
		c.t.Fatal(err)
	}
	return values
}

// Disconnect closes the connection.
func (c *Client) Disconnect() { c.conn.Close() }

// Replay sends the recorded commands, of which the first are those of a session that begins, and
// checks the answers. If the target's answer to a large command ends the connection, because the
// device does not let a program's memory be invalidated, the client connects again.
func (c *Client) Replay() {
	c.t.Helper()
	for _, x := range v1.Recorded(c.t, "plain").Exchanges()[1:] {
		if x.Client.Memory != nil {
			c.replayLarge(x)
			continue
		}
		c.conn.PostMessage(x.Client.Bytes(nil))
		answer, err := c.receive(len(x.Target.Bytes(nil)))
		if err == nil {
			err = x.Target.Is(answer)
		}
		if err != nil {
			c.t.Fatalf("%s: %v", x.Client.Name, err)
		}
	}
}

// WantFirstBlock checks that the volume begins with the 512 bytes that Replay has written.
func (c *Client) WantFirstBlock() {
	c.t.Helper()
	plain := v1.Recorded(c.t, "plain")
	answer := plain.Find("answer to READ 512 at 0")
	c.conn.PostMessage(plain.Find("READ 512 at 0").Bytes(nil))
	got, err := c.receive(len(answer.Bytes(nil)))
	if err == nil {
		err = answer.Is(got)
	}
	if err != nil {
		c.t.Fatalf("READ: %v", err)
	}
}

// replayLarge sends a command with an rkey.
func (c *Client) replayLarge(x v1.Exchange) {
	c.t.Helper()
	isWrite := x.Client.Bytes(nil)[0] == 2
	data := x.Client.Memory
	if !isWrite {
		data = make([]byte, len(data))
	}
	memory := c.conn.LendData(data)
	c.conn.PostMessage(x.Client.Bytes(v1.Values{"addr": binary.BigEndian.AppendUint64(nil, memory.Addr), "rkey": binary.BigEndian.AppendUint32(nil, memory.Rkey)}))
	answer, err := c.receive(v1.ResponseSize)
	if err == nil {
		err = x.Target.Is(answer)
	} else if c.conn.Ended() {
		err = nil
	}
	if err != nil {
		c.t.Fatalf("%s: %v", x.Client.Name, err)
	}
	if got := c.conn.Lent(memory, len(data)); !bytes.Equal(got, x.Client.Memory) {
		c.t.Errorf("%s: other data than was recorded", x.Client.Name)
	}
	if c.conn.Ended() {
		c.Connect()
	}
}

// receive returns messages of at least n bytes in all.
func (c *Client) receive(n int) (all []byte, err error) {
	c.t.Helper()
	done := make(chan error, 1)
	go func() {
		for len(all) < n {
			m, err := c.conn.Recv()
			if err != nil {
				done <- err
				return
			}
			all = append(all, m.Data...)
			if err := m.Release(); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	err = guest.Within(c.t, 20*time.Second, "the target answers", done)
	return all, err
}

// WantVersion1Rejects checks that a target rejects the recorded hellos as the recorded target did. The
// volume vol0 has a key.
func WantVersion1Rejects(t testing.TB, port int) {
	t.Helper()
	skip := map[string]bool{ // not of this volume, or of this client
		"an address that is not allowed":   true,
		"a hello of version 2":             true,
		"65 queues":                        true,
		"a key for a volume without a key": true,
		"a wrong proof":                    true,
	}
	for _, x := range v1.Recorded(t, "rejects").Exchanges() {
		if skip[x.Client.Name] {
			continue
		}
		_, err := fakeclient.DialRaw(t, port, x.Client.Bytes(nil), fakeclient.Small)
		var rejected *verbs.RejectedError
		if !errors.As(err, &rejected) {
			t.Errorf("%s: %v, want a reject", x.Client.Name, err)
			continue
		}
		if _, err := x.Target.Match(rejected.Private, nil); err != nil {
			t.Error(err)
		}
	}
}
