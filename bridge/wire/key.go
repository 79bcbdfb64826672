// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
)

// Sizes in bytes of structures of kmod/uapi/krping.h.
const (
	ChallengeSize     = 32
	ProvenWelcomeSize = WelcomeSize + 16
)

// Nonces of both sides, and the proof that a side has the key.
type (
	TargetNonce [16]byte
	ClientNonce [8]byte
	Proof       [16]byte
)

// Challenge is the private data of a reject with RejectChallenge. It is an error, as every
// reject is.
type Challenge struct {
	Version uint8 // of the protocol: the client's; Append takes 0 for Version
	ID      uint32
	Nonce   TargetNonce
}

func (*Challenge) Error() string { return "the client has to prove that it has the key" }

// Append adds the 32 bytes of the challenge to b.
func (c *Challenge) Append(b []byte) []byte {
	b = (&Reject{Version: c.Version, Reason: RejectChallenge}).Append(b)
	b = binary.BigEndian.AppendUint32(b, c.ID)
	return append(b, c.Nonce[:]...)
}

// DecodeChallenge decodes the private data of a reject.
func DecodeChallenge(b []byte) (*Challenge, error) {
	r, err := DecodeReject(b)
	if err != nil {
		return nil, err
	}
	if r.Reason != RejectChallenge || len(b) < ChallengeSize {
		return nil, errors.New("the reject is not a challenge")
	}
	return &Challenge{r.Version, binary.BigEndian.Uint32(b[RejectSize:]), TargetNonce(b[RejectSize+4:])}, nil
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

// Transcript is the part of a handshake that both proofs cover.
type Transcript struct {
	Hello  Hello // with the answer, whose proof is not covered
	Volume VolumeID
	Nonce  TargetNonce // of the challenge
}

func (t Transcript) append(b []byte, label string, welcome []byte) []byte {
	b = append(b, label...)
	b = append(b, 0)
	b = append(b, t.Nonce[:]...)
	b = append(b, t.Hello.Answer.Nonce[:]...)
	b = t.Hello.appendHead(b)
	b = append(b, t.Volume.field[:]...)
	return append(b, welcome...)
}

func (t Transcript) prove(key []byte, label string, welcome []byte) Proof {
	h := hmac.New(sha256.New, key)
	h.Write(t.append(nil, label, welcome))
	return Proof(h.Sum(nil))
}

// label names a prover, in the version of the hello.
func (t Transcript) label(prover string) string {
	return fmt.Sprintf("krping %s %d", prover, orCurrent(t.Hello.Version))
}

// ClientProof returns the proof that the client has the key.
func (t Transcript) ClientProof(key []byte) Proof {
	return t.prove(key, t.label("client"), make([]byte, welcomeSize(t.Hello.Version)))
}

// TargetProof returns the proof that the target has the key and sent this welcome.
func (t Transcript) TargetProof(key []byte, w Welcome) Proof {
	return t.prove(key, t.label("target"), w.Append(nil))
}

// Equal compares two proofs in constant time.
func (p Proof) Equal(other Proof) bool { return hmac.Equal(p[:], other[:]) }

// DecodeProvenWelcome decodes the private data of an accept: a welcome and the target's proof.
func DecodeProvenWelcome(b []byte) (Welcome, Proof, error) {
	w, err := DecodeWelcome(b)
	if err != nil {
		return Welcome{}, Proof{}, err
	}
	if b = b[welcomeSize(w.Version):]; len(b) < len(Proof{}) {
		return Welcome{}, Proof{}, errors.New("the target did not prove that it has the key")
	}
	return w, Proof(b), nil
}
