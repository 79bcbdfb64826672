// SPDX-License-Identifier: Apache-2.0

package target

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net/netip"
	"path/filepath"
	"slices"
	"testing"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/store"
	"krping/bridge/wire"
	v1 "krping/bridge/wire/v1"
)

const recordedKey = "recorded-key-of-version-1"

// recordedFixture serves what the recorded target did: vol0, with a key unless it is nil, and open,
// which has none, to the address addr.
func recordedFixture(t *testing.T, key access.Key) *fixture {
	t.Helper()
	f := &fixture{t: t}
	open := func(name string) *Volume {
		path := filepath.Join(t.TempDir(), name)
		if _, err := store.Create(t.Context(), store.New{Path: path, Size: 8 << 20}); err != nil {
			t.Fatal(err)
		}
		s, err := store.Open("file:"+path, store.Options{Writeback: true})
		if err != nil {
			t.Fatal(err)
		}
		return &Volume{Name: name, Store: s, BlockSize: 512, Writeback: true}
	}
	f.volume = open("vol0")
	f.volume.Key = key
	var err error
	if f.target, err = New(zerolog.Nop(), access.List{netip.PrefixFrom(addr, 32)}, f.volume, open("open")); err != nil {
		t.Fatal(err)
	}
	f.target.epoch = binary.BigEndian.Uint64(v1.Recorded(t, "plain")[1].Bytes(nil)[16:])
	return f
}

// ask hands a recorded request to the target and returns the private data of its accept or reject.
func (f *fixture) ask(m v1.Message, from netip.Addr) ([]byte, *Session) {
	f.t.Helper()
	session, err := f.target.Admit(m.Bytes(nil), from)
	var reject *wire.Reject
	var challenge *wire.Challenge
	switch {
	case err == nil:
		return session.Private, session
	case errors.As(err, &reject):
		return reject.Append(nil), nil
	case errors.As(err, &challenge):
		return f.replaceChallenge(challenge), nil
	}
	f.t.Fatalf("%s: %v", m.Name, err)
	return nil, nil
}

// replaceChallenge replaces a challenge by the recorded one, and returns that.
func (f *fixture) replaceChallenge(c *wire.Challenge) []byte {
	private := v1.Recorded(f.t, "key").Find("challenge, queue 0").Bytes(nil)
	want, err := wire.DecodeChallenge(private)
	if err != nil {
		f.t.Fatal(err)
	}
	table := f.target.challenges
	i := slices.IndexFunc(table.pending, func(p pending) bool { return p.id == c.ID })
	if i < 0 {
		f.t.Fatalf("challenge %d is not pending", c.ID)
	}
	table.pending[i].id, table.pending[i].nonce = want.ID, want.Nonce
	c.ID, c.Nonce = want.ID, want.Nonce
	return c.Append(nil)
}

// The bridge answers a recorded client of version 1 as the recorded bridge did, to the byte.
func TestVersion1Conversation(t *testing.T) {
	f := recordedFixture(t, nil)
	exchanges := v1.Recorded(t, "plain").Exchanges()
	private, session := f.ask(exchanges[0].Client, addr)
	if _, err := exchanges[0].Target.Match(private, nil); err != nil || len(private) != v1.WelcomeSize {
		t.Fatalf("%v, %d bytes", err, len(private))
	}
	p := f.serve(session)
	for _, x := range exchanges[1:] {
		values := v1.Values{}
		if x.Client.Memory != nil { // it is at address 0, with rkey 1
			values = v1.Values{"addr": make([]byte, 8), "rkey": {0, 0, 0, 1}}
			if x.Client.Bytes(nil)[0] == byte(wire.OpWrite) {
				copy(p.memory, x.Client.Memory)
			} else {
				clear(p.memory)
			}
		}
		p.toTarget <- x.Client.Bytes(values)
		answer, invalidated := f.recordedAnswer(p, len(x.Target.Bytes(nil)))
		if err := x.Target.Is(answer); err != nil {
			t.Error(err)
		}
		if invalidated != 0 != (x.Client.Memory != nil) {
			t.Errorf("%s: the answer invalidates rkey %d", x.Client.Name, invalidated)
		}
		if !bytes.HasPrefix(p.memory, x.Client.Memory) {
			t.Errorf("%s: other data in the client's memory than recorded", x.Client.Name)
		}
	}
	if n := f.volume.Counters.Violations.Load(); n != 0 {
		t.Errorf("%d violations", n)
	}
}

// recordedAnswer receives messages of at least n bytes in all.
func (f *fixture) recordedAnswer(p *pipe, n int) (all []byte, invalidated uint32) {
	f.t.Helper()
	for len(all) < n {
		select {
		case s := <-p.toClient:
			all, invalidated = append(all, s.msg...), s.invalidate
		case <-p.closed:
			f.t.Fatalf("the connection was closed after %d of %d bytes", len(all), n)
		}
	}
	return all, invalidated
}

func TestVersion1Handshake(t *testing.T) {
	f := recordedFixture(t, access.Key(recordedKey))
	for _, x := range v1.Recorded(t, "key").Exchanges() {
		private, session := f.ask(x.Client, addr)
		want := x.Target.Bytes(nil)
		if session != nil {
			defer f.target.Leave(session)
			// A message may be smaller than the recorded one. The recorded proof covers the recorded size.
			copy(want[36:v1.WelcomeSize], private[36:v1.WelcomeSize])
			copy(want[v1.WelcomeSize:], v1.Handshake{
				Challenge: v1.Recorded(t, "key").Find("challenge, queue 0").Bytes(nil), Answer: x.Client.Bytes(nil), Volume: "vol0",
			}.TargetProof(recordedKey, want))
		}
		if !bytes.Equal(private, want) {
			t.Errorf("%s: got\n%x, want\n%x", x.Target.Name, private, want)
		}
	}
}

func TestVersion1IsRejectedAsRecorded(t *testing.T) {
	f := recordedFixture(t, access.Key(recordedKey))
	for _, x := range v1.Recorded(t, "rejects").Exchanges() {
		if x.Client.Name == "a hello of version 2" && wire.Version != 1 {
			continue
		}
		from := addr
		if x.Client.Name == "an address that is not allowed" {
			from = other
		}
		if x.Client.Name == "a wrong proof" {
			asks := x.Client.Bytes(nil)
			asks[5] = wire.HelloKey
			copy(asks[28:], append([]byte("vol0"), make([]byte, 24)...))
			_, err := f.target.Admit(asks, addr)
			var challenge *wire.Challenge
			if !errors.As(err, &challenge) {
				t.Fatal(err)
			}
			f.replaceChallenge(challenge)
		}
		private, _ := f.ask(x.Client, from)
		if _, err := x.Target.Match(private, nil); err != nil || len(private) != v1.RejectSize {
			t.Errorf("%v, %d bytes", err, len(private))
		}
	}
}
