// SPDX-License-Identifier: Apache-2.0

package v1

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
)

// Handshake is what the proofs of version 1 cover.
type Handshake struct {
	Challenge []byte // the target's reject
	Answer    []byte // the client's second hello; its proof is not covered
	Volume    string
}

// ClientProof returns the 16 bytes that end the client's second hello.
func (h Handshake) ClientProof(key string) []byte {
	return h.prove(key, "krping client 1\x00", make([]byte, WelcomeSize))
}

// TargetProof returns the 16 bytes that follow the welcome.
func (h Handshake) TargetProof(key string, welcome []byte) []byte {
	return h.prove(key, "krping target 1\x00", welcome[:WelcomeSize])
}

func (h Handshake) prove(key, label string, welcome []byte) []byte {
	volume := make([]byte, 28)
	copy(volume, h.Volume)
	mac := hmac.New(sha256.New, []byte(key))
	mac.Write(bytes.Join([][]byte{
		[]byte(label),
		h.Challenge[16:32], // the target's nonce
		h.Answer[32:40],    // the client's
		h.Answer[:28],      // the hello up to the answer
		volume,
		welcome,
	}, nil))
	return mac.Sum(nil)[:16]
}
