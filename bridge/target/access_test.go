// SPDX-License-Identifier: Apache-2.0

package target

import (
	"errors"
	"testing"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/store"
	"krping/bridge/wire"
)

const secret = "sixteen and more"

// newKeyedFixture adds two volumes with keys, locked and sealed, to a fixture.
func newKeyedFixture(t *testing.T) *fixture {
	t.Helper()
	f := newFixture(t)
	var volumes []*Volume
	for name, key := range map[string]string{"locked": secret, "sealed": "another key of 24 bytes."} {
		s, err := store.Open("mem:", store.Options{Size: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		volumes = append(volumes, &Volume{Name: name, Store: s, BlockSize: 512, Shared: true, Key: access.Key(key)})
	}
	f.serveWith(zerolog.Nop(), volumes...)
	return f
}

func (f *fixture) admit(h wire.Hello) (*Session, error) { return f.target.Admit(h.Append(nil), addr) }

// answerChallenge asks for a challenge and returns the hello that answers it with the key.
func (f *fixture) answerChallenge(h wire.Hello, key string) (wire.Hello, wire.Transcript) {
	f.t.Helper()
	h.Flags = wire.HelloKey
	_, err := f.admit(h)
	var c *wire.Challenge
	if !errors.As(err, &c) {
		f.t.Fatalf("%v, want a challenge", err)
	}
	transcript := wire.Transcript{Hello: h, Volume: h.Volume, Nonce: c.Nonce}
	transcript.Hello.Flags, transcript.Hello.Volume = wire.HelloProof, wire.VolumeID{}
	transcript.Hello.Answer = wire.KeyAnswer{Challenge: c.ID, Nonce: wire.ClientNonce{1, 2, 3}}
	transcript.Hello.Answer.Proof = transcript.ClientProof([]byte(key))
	return transcript.Hello, transcript
}

func (f *fixture) wantReject(what string, h wire.Hello, want wire.Reason) {
	f.t.Helper()
	s, err := f.admit(h)
	var reject *wire.Reject
	if !errors.As(err, &reject) || reject.Reason != want || s != nil {
		f.t.Errorf("%s: %v, %v, want reason %d", what, s, err, want)
	}
}

func lockedHello(session byte) wire.Hello {
	h := hello(session, 0)
	h.Volume = wire.VolumeIDOf("locked")
	return h
}

func TestKey(t *testing.T) {
	f := newKeyedFixture(t)
	h, transcript := f.answerChallenge(lockedHello(1), secret)
	s, err := f.admit(h)
	if err != nil {
		t.Fatal(err)
	}
	welcome, proof, err := wire.DecodeProvenWelcome(s.Private)
	if err != nil || welcome != s.Welcome || !proof.Equal(transcript.TargetProof([]byte(secret), welcome)) || s.volume.Name != "locked" {
		t.Errorf("%+v, %x, %v, %s", welcome, proof, err, s.volume.Name)
	}
	if s, err := f.admit(hello(1, 0)); err != nil || len(s.Private) != wire.WelcomeSize {
		t.Errorf("a volume without a key: %v", err)
	}
	if n := f.target.Rejected.Load(); n != 0 {
		t.Errorf("%d clients are counted as rejected, want 0", n)
	}
}

func TestWrongKeysAndAnswers(t *testing.T) {
	f := newKeyedFixture(t)
	f.wantReject("a client without a key", lockedHello(1), wire.RejectNeedsKey)
	asks := hello(1, 0)
	asks.Flags = wire.HelloKey
	f.wantReject("a volume without a key", asks, wire.RejectNoKey)
	h, _ := f.answerChallenge(lockedHello(1), "another key of 24 bytes.")
	f.wantReject("another volume's key", h, wire.RejectKey)
	f.wantReject("a second try", h, wire.RejectStale)
	for name, change := range map[string]func(h *wire.Hello){
		"more queues":    func(h *wire.Hello) { h.QueueCount = 3 },
		"another depth":  func(h *wire.Hello) { h.Depth = 1 },
		"client's nonce": func(h *wire.Hello) { h.Answer.Nonce[0]++ },
		"a bit of proof": func(h *wire.Hello) { h.Answer.Proof[15] ^= 1 },
		"no proof":       func(h *wire.Hello) { h.Answer.Proof = wire.Proof{} },
	} {
		h, _ := f.answerChallenge(lockedHello(1), secret)
		change(&h)
		f.wantReject(name, h, wire.RejectKey)
	}
	for name, change := range map[string]func(h *wire.Hello){
		"another session":   func(h *wire.Hello) { h.Session[0]++ },
		"another queue":     func(h *wire.Hello) { h.QueueIndex = 1 },
		"another challenge": func(h *wire.Hello) { h.Answer.Challenge++ },
	} {
		h, _ := f.answerChallenge(lockedHello(1), secret)
		change(&h)
		f.wantReject(name, h, wire.RejectStale)
	}
	h, _ = f.answerChallenge(lockedHello(1), secret)
	if _, err := f.target.Admit(h.Append(nil), other); err == nil {
		t.Error("an answer from another address is accepted")
	}
	if _, err := f.admit(h); err != nil {
		t.Errorf("the same answer from the right address: %v", err)
	}
	f.wantReject("a replay", h, wire.RejectStale)
	if n := f.target.Rejected.Load(); n != 14 {
		t.Errorf("%d clients are counted as rejected, want 14", n)
	}
}

// A client that knows a session's UUID but not the key cannot fence its connection, nor can a
// client with the same UUID on another volume.
func TestOtherClientsCannotFence(t *testing.T) {
	f := newKeyedFixture(t)
	h, _ := f.answerChallenge(lockedHello(1), secret)
	client := f.connect(h)
	f.wantReject("without a key", lockedHello(1), wire.RejectNeedsKey)
	wrong, _ := f.answerChallenge(lockedHello(1), "not the right key")
	f.wantReject("with a wrong key", wrong, wire.RejectKey)
	f.connect(hello(1, 0)) // of vol0
	select {
	case <-client.closed:
		t.Fatal("the connection was fenced")
	default:
	}
	if a, _ := f.one(client, inlineRead(1, 0, 512)); a.Status != wire.StatusOK {
		t.Errorf("%+v", a)
	}
	again, _ := f.answerChallenge(lockedHello(1), secret)
	f.connect(again)
	select {
	case <-client.closed:
	case <-time.After(10 * time.Second):
		t.Error("a new connection of the session did not fence the old one")
	}
}

func TestAllowedAddresses(t *testing.T) {
	f := newFixture(t)
	for _, private := range [][]byte{hello(1, 0).Append(nil), nil} {
		_, err := f.target.Admit(private, other)
		var reject *wire.Reject
		if !errors.As(err, &reject) || reject.Reason != wire.RejectNotAllowed {
			t.Errorf("%v", err)
		}
	}
	if n := f.target.Rejected.Load(); n != 2 {
		t.Errorf("%d clients are counted as rejected, want 2", n)
	}
}
