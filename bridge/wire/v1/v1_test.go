// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"testing"
)

const key = "recorded-key-of-version-1"

func load(t *testing.T, name string) Conversation {
	t.Helper()
	c, err := Load(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// lent is the memory of a recorded message.
type lent struct{ Message }

func (l lent) reached(addr uint64, rkey uint32, n int) error {
	want := l.Bytes(nil)
	if addr != binary.BigEndian.Uint64(want[16:]) || rkey != binary.BigEndian.Uint32(want[24:]) || n != len(l.Memory) {
		return fmt.Errorf("%d bytes at %#x with rkey %#x are not lent", n, addr, rkey)
	}
	return nil
}

func (l lent) Fetch(addr uint64, rkey uint32, n int) ([]byte, error) {
	return l.Memory, l.reached(addr, rkey, n)
}

func (l lent) Put(addr uint64, rkey uint32, data []byte) error {
	if !bytes.Equal(data, l.Memory) {
		return errors.New("other data was read than was recorded")
	}
	return l.reached(addr, rkey, len(data))
}

// The target made here answers the recorded client as the recorded target did.
func TestVolumeAnswersAsRecorded(t *testing.T) {
	volume := NewVolume(8 << 20)
	exchanges := load(t, "plain").Exchanges()[1:]
	if len(exchanges) < 20 {
		t.Fatalf("only %d messages", len(exchanges))
	}
	for _, x := range exchanges {
		replies, err := volume.Answer(x.Client.Bytes(nil), lent{x.Client})
		if err != nil {
			t.Fatalf("%s: %v", x.Client.Name, err)
		}
		var all []byte
		for _, r := range replies {
			all = append(all, r.Message...)
			if (r.Invalidate != 0) != (x.Client.Memory != nil) {
				t.Errorf("%s: the answer invalidates %#x", x.Client.Name, r.Invalidate)
			}
		}
		if err := x.Target.Is(all); err != nil {
			t.Error(err)
		}
	}
}

func TestVolumeRefusesWhatVersion1Lacks(t *testing.T) {
	exchanges := load(t, "plain")
	change := func(name string, at int, value byte) []byte {
		b := exchanges.Find(name).Bytes(nil)
		b[at] = value
		return b
	}
	for name, msg := range map[string][]byte{
		"NO_UNMAP":               change("WRITE_ZEROES 8192 at 1048576", 1, 0x08),
		"BYE":                    change("KEEP_ALIVE", 1, 0x12),
		"an op":                  change("FLUSH", 0, 8),
		"a key with a FLUSH":     change("FLUSH", 27, 1),
		"FUA with a DISCARD":     change("DISCARD 4096 at 8192", 1, 1),
		"a WRITE that is pushed": change("WRITE 512 at 0", 1, 0x20),
		"nothing":                nil,
	} {
		if _, err := NewVolume(8<<20).Answer(msg, nil); err == nil {
			t.Errorf("%s was answered", name)
		}
	}
}

func TestProofsAreTheRecordedOnes(t *testing.T) {
	c := load(t, "key")
	for _, queue := range []string{"queue 0", "queue 1"} {
		h := Handshake{Challenge: c.Find("challenge, " + queue).Bytes(nil), Answer: c.Find("answer, " + queue).Bytes(nil), Volume: "vol0"}
		welcome := c.Find("proven welcome, " + queue).Bytes(nil)
		if got := h.ClientProof(key); !bytes.Equal(got, h.Answer[40:]) {
			t.Errorf("%s: client's proof %x, recorded is %x", queue, got, h.Answer[40:])
		}
		if got := h.TargetProof(key, welcome); !bytes.Equal(got, welcome[WelcomeSize:]) {
			t.Errorf("%s: target's proof %x, recorded is %x", queue, got, welcome[WelcomeSize:])
		}
	}
}

func TestSizes(t *testing.T) {
	for file, sizes := range map[string]map[string]int{
		"plain":   {"hello": HelloSize, "welcome": WelcomeSize, "KEEP_ALIVE": CommandSize, "answer to FLUSH": ResponseSize},
		"key":     {"hello, queue 1": HelloSize, "challenge, queue 1": ChallengeSize, "answer, queue 1": HelloSize, "proven welcome, queue 1": ProvenWelcomeSize},
		"rejects": {"a hello of version 2": HelloSize, "reject of a hello of version 2": RejectSize},
	} {
		for name, want := range sizes {
			if got := len(load(t, file).Find(name).Bytes(nil)); got != want {
				t.Errorf("%s: %s has %d bytes, want %d", file, name, got, want)
			}
		}
	}
}

func TestMatch(t *testing.T) {
	welcome := load(t, "plain").Find("welcome")
	other := welcome.Bytes(Values{"epoch": []byte("another1")})
	values, err := welcome.Match(append(other, 0, 0, 0), nil)
	if err != nil || string(values["epoch"]) != "another1" || !bytes.Equal(values["depth"], []byte{0, 16}) {
		t.Errorf("another epoch: %v, %v", values, err)
	}
	for name, b := range map[string][]byte{"short": other[:WelcomeSize-1], "long": append(other, 1), "another version": append([]byte("KRPB\x02"), other[5:]...)} {
		if _, err := welcome.Match(b, nil); err == nil {
			t.Errorf("%s: matches", name)
		}
	}
	if _, err := welcome.Match(other, Values{"epoch": make([]byte, 8)}); err == nil {
		t.Error("an epoch other than the given one matches")
	}
	three := load(t, "plain").Find("answer to three WRITEs in one message")
	b := three.Bytes(nil)
	if err := three.Is(append(b[32:], b[:32]...)); err != nil {
		t.Errorf("in another order: %v", err)
	}
	if three.Is(b[16:]) == nil {
		t.Error("two responses are taken for three")
	}
}
