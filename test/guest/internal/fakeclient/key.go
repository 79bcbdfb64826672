// SPDX-License-Identifier: Apache-2.0

//go:build lab

package fakeclient

import (
	"crypto/rand"
	"errors"
	"testing"

	"krping/bridge/verbs"
	"krping/bridge/wire"
)

// Challenge asks a target with a key for a challenge.
func Challenge(t testing.TB, port int, h wire.Hello) *wire.Challenge {
	t.Helper()
	h.Flags = wire.HelloKey
	_, err := Dial(t, port, h.Append(nil), Small)
	var rejected *verbs.RejectedError
	if !errors.As(err, &rejected) {
		t.Fatalf("a target with a key: got error %v, want a challenge", err)
	}
	challenge, err := wire.DecodeChallenge(rejected.Private)
	if err != nil {
		t.Fatalf("%v: %x", err, rejected.Private)
	}
	return challenge
}

// Answer returns the hello that answers a challenge with a key, and what the target's proof is computed from.
func Answer(h wire.Hello, c *wire.Challenge, key string) (wire.Hello, wire.Transcript) {
	t := wire.Transcript{Hello: h, Volume: h.Volume, Nonce: c.Nonce}
	t.Hello.Flags, t.Hello.Volume, t.Hello.Answer = wire.HelloProof, wire.VolumeID{}, wire.KeyAnswer{Challenge: c.ID}
	_, _ = rand.Read(t.Hello.Answer.Nonce[:])
	t.Hello.Answer.Proof = t.ClientProof([]byte(key))
	return t.Hello, t
}

// ConnectKey connects as a client with the right key does, and checks the target's proof.
func ConnectKey(t testing.TB, port int, h wire.Hello, key string) *Client {
	t.Helper()
	answered, transcript := Answer(h, Challenge(t, port, h), key)
	c := Connect(t, port, answered)
	welcome, proof, err := wire.DecodeProvenWelcome(c.Private)
	if err != nil || !proof.Equal(transcript.TargetProof([]byte(key), welcome)) {
		t.Fatalf("the target did not prove that it has the key: %v, %x", err, c.Private)
	}
	return c
}
