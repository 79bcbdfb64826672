// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	v1 "krping/bridge/wire/v1"
)

// encodeAgain decodes a message of version 1 and encodes it.
func encodeAgain(m v1.Message) ([]byte, error) {
	b := m.Bytes(nil)
	switch name, _, _ := strings.Cut(m.Name, ","); {
	case name == "hello", name == "answer":
		h, err := DecodeHello(b)
		return h.Append(nil), err
	case name == "welcome":
		w, err := DecodeWelcome(b)
		return w.Append(nil), err
	case name == "proven welcome":
		w, proof, err := DecodeProvenWelcome(b)
		return append(w.Append(nil), proof[:]...), err
	case name == "challenge":
		c, err := DecodeChallenge(b)
		if err != nil {
			return nil, err
		}
		return c.Append(nil), nil
	case m.FromClient:
		requests, err := DecodeRequests(b, v1Limits)
		var again []byte
		for _, r := range requests {
			again = r.Append(again)
		}
		return again, err
	default:
		answers, err := DecodeAnswers(b)
		var again []byte
		for _, a := range answers {
			again = a.Response.Append(again, a.Data)
		}
		return again, err
	}
}

// v1Limits are those of the recorded welcome.
var v1Limits = Limits{BlockSize: 512, MaxData: 1 << 20, MaxInline: 4096, MaxMessage: 33024, Depth: 16}

func TestVersion1IsEncodedUnchanged(t *testing.T) {
	for _, m := range append(v1.Recorded(t, "plain"), v1.Recorded(t, "key")...) {
		if got, err := encodeAgain(m); err != nil || !bytes.Equal(got, m.Bytes(nil)) {
			t.Errorf("%s: %v\n%.200x, recorded is\n%.200x", m.Name, err, got, m.Bytes(nil))
		}
	}
}

func TestVersion1Rejects(t *testing.T) {
	for _, x := range v1.Recorded(t, "rejects").Exchanges() {
		want := x.Target.Bytes(nil)
		got, err := DecodeReject(want)
		if err != nil || uint16(got.Reason) != uint16(want[6])<<8|uint16(want[7]) || got.Value != uint32(want[11]) {
			t.Errorf("%s: %+v, %v", x.Target.Name, got, err)
		}
		if got != nil && !bytes.Equal(got.Append(nil), want) {
			t.Errorf("%s: encoded as %x, recorded is %x", x.Target.Name, got.Append(nil), want)
		}
	}
}

func TestVersion1Proofs(t *testing.T) {
	c := v1.Recorded(t, "key")
	for _, queue := range []string{"queue 0", "queue 1"} {
		hello, err := DecodeHello(c.Find("answer, " + queue).Bytes(nil))
		if err != nil {
			t.Fatal(err)
		}
		challenge, err := DecodeChallenge(c.Find("challenge, " + queue).Bytes(nil))
		if err != nil {
			t.Fatal(err)
		}
		welcome, proof, err := DecodeProvenWelcome(c.Find("proven welcome, " + queue).Bytes(nil))
		if err != nil {
			t.Fatal(err)
		}
		transcript := Transcript{Hello: hello, Volume: VolumeIDOf("vol0"), Nonce: challenge.Nonce}
		key := []byte("recorded-key-of-version-1")
		if got := transcript.ClientProof(key); !got.Equal(hello.Answer.Proof) {
			t.Errorf("%s: the client's proof is %x, recorded is %x", queue, got, hello.Answer.Proof)
		}
		if got := transcript.TargetProof(key, welcome); !got.Equal(proof) {
			t.Errorf("%s: the target's proof is %x, recorded is %x", queue, got, proof)
		}
	}
}

// The module's decoder accepts what is recorded, with the same values.
func TestVersion1InTheModule(t *testing.T) {
	var lines, want []string
	add := func(kind string, b []byte, outcome string) {
		lines, want = append(lines, fmt.Sprintf("%s %x", kind, b)), append(want, outcome)
	}
	for _, m := range append(v1.Recorded(t, "plain"), v1.Recorded(t, "key")...) {
		b := m.Bytes(nil)
		switch name, _, _ := strings.Cut(m.Name, ","); {
		case name == "hello", name == "answer":
			add("hello", b, helloOutcome(b))
		case name == "welcome", name == "proven welcome":
			add("welcome", b, welcomeOutcome(b))
		case name == "challenge":
		case m.FromClient:
			add("commands1", b, commandsOutcome(b, 1))
		default:
			add("responses", b, responsesOutcome(b))
		}
	}
	for _, x := range v1.Recorded(t, "rejects").Exchanges() {
		add("hello", x.Client.Bytes(nil), helloOutcome(x.Client.Bytes(nil)))
	}
	for i, got := range module(t, lines) {
		if !strings.HasPrefix(got, want[i]) {
			t.Errorf("%.100s:\nthe module: %s, want %s", lines[i], got, want[i])
		}
	}
}

// welcomeOutcome is what wire_dump.c prints of a welcome.
func welcomeOutcome(b []byte) string {
	w, err := DecodeWelcome(b)
	if err != nil {
		return "refused"
	}
	return fmt.Sprintf("ok %d %d %d %d %d %d %d %d %d %x %d %d", w.Flags, w.Depth, w.Capacity, w.Epoch, w.BlockSize, w.MaxData, w.MaxInline,
		w.MaxMessage, w.Version, w.UUID[:], w.Writer, w.Caps)
}

// responsesOutcome is what wire_dump.c prints of responses.
func responsesOutcome(b []byte) string {
	answers, err := DecodeAnswers(b)
	if err != nil {
		return "refused"
	}
	var out strings.Builder
	out.WriteString("ok")
	for _, a := range answers {
		fmt.Fprintf(&out, " %d/%d/%d/%d/%d/%d", a.Tag, a.Status, a.Flags, a.Length, a.CRC, len(a.Data))
	}
	return out.String()
}
