// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
)

// ChallengeSize and ProvenWelcomeSize are the sizes in bytes of what kmod/uapi/krping.h has.
const (
	ChallengeSize     = 32
	ProvenWelcomeSize = 56
)

// Random numbers of the two sides, and what proves that one has the key.
type (
	TargetNonce [16]byte
	ClientNonce [8]byte
	Proof       [16]byte
)

// Challenge is the private data of a reject with RejectChallenge. It is an error, as any other
// reject is.
type Challenge struct {
	ID    uint32
	Nonce TargetNonce
}

func (*Challenge) Error() string { return "challenged to prove a key" }

// Append adds the 32 bytes of the challenge to b.
func (c *Challenge) Append(b []byte) []byte {
	b = (&Reject{Reason: RejectChallenge}).Append(b)
	b = binary.BigEndian.AppendUint32(b, c.ID)
	return append(b, c.Nonce[:]...)
}

// DecodeChallenge reads the private data of a reject.
func DecodeChallenge(b []byte) (*Challenge, error) {
	r, err := DecodeReject(b)
	if err != nil {
		return nil, err
	}
	if r.Reason != RejectChallenge || len(b) < ChallengeSize {
		return nil, errors.New("this reject is no challenge")
	}
	return &Challenge{binary.BigEndian.Uint32(b[RejectSize:]), TargetNonce(b[RejectSize+4:])}, nil
}

// KeyAnswer is the answer to a challenge.
type KeyAnswer struct {
	Challenge uint32
	Nonce     ClientNonce
	Proof     Proof
}

func (a KeyAnswer) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, a.Challenge)
	b = append(b, a.Nonce[:]...)
	return append(b, a.Proof[:]...)
}

func decodeAnswer(b []byte) KeyAnswer {
	return KeyAnswer{binary.BigEndian.Uint32(b), ClientNonce(b[4:]), Proof(b[12:])}
}

// Transcript is what both proofs of a handshake are of.
type Transcript struct {
	Hello  Hello // with the answer, whose proof does not count
	Volume string
	Nonce  TargetNonce // of the challenge
}

func (t Transcript) append(b []byte, label string, welcome []byte) []byte {
	b = append(b, label...)
	b = append(b, 0)
	b = append(b, t.Nonce[:]...)
	b = append(b, t.Hello.Answer.Nonce[:]...)
	b = t.Hello.appendHead(b)
	b = appendVolume(b, t.Volume)
	return append(b, welcome...)
}

func (t Transcript) prove(key []byte, label string, welcome []byte) Proof {
	h := hmac.New(sha256.New, key)
	h.Write(t.append(nil, label, welcome))
	return Proof(h.Sum(nil))
}

// ClientProof is what proves to the target that the client has the key.
func (t Transcript) ClientProof(key []byte) Proof {
	return t.prove(key, "krping client 1", make([]byte, WelcomeSize))
}

// TargetProof is what proves to the client that the target has the key, and is the one that
// grants this.
func (t Transcript) TargetProof(key []byte, w Welcome) Proof {
	return t.prove(key, "krping target 1", w.Append(nil))
}

// Equal compares two proofs in a time that tells nothing about where they differ.
func (p Proof) Equal(other Proof) bool { return hmac.Equal(p[:], other[:]) }

// DecodeProvenWelcome reads the private data of an accept, and the target's proof behind the
// welcome.
func DecodeProvenWelcome(b []byte) (Welcome, Proof, error) {
	if len(b) < ProvenWelcomeSize {
		return Welcome{}, Proof{}, errors.New("the target proves no key")
	}
	w, err := DecodeWelcome(b)
	return w, Proof(b[WelcomeSize:]), err
}
