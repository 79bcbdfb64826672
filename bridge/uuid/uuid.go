// SPDX-License-Identifier: Apache-2.0

// Package uuid has the identities of volumes: UUIDs of RFC 9562.
package uuid

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
)

// UUID is 16 bytes. The zero value identifies nothing.
type UUID [16]byte

// New returns a random UUID (version 4).
func New() UUID {
	var u UUID
	_, _ = rand.Read(u[:]) // never fails
	return u.as(4)
}

// FromName returns the UUID of a name: always the same one (version 8, from SHA-256).
func FromName(name string) UUID {
	sum := sha256.Sum256([]byte("krping volume\x00" + name))
	return UUID(sum[:16]).as(8)
}

func (u UUID) as(version byte) UUID {
	u[6] = u[6]&0x0f | version<<4
	u[8] = u[8]&0x3f | 0x80
	return u
}

// Parse reads the usual form, 8-4-4-4-12 hexadecimal digits.
func Parse(text string) (UUID, error) {
	var u UUID
	digits := make([]byte, 0, 2*len(u))
	for i, c := range []byte(text) {
		dash := i == 8 || i == 13 || i == 18 || i == 23
		if dash != (c == '-') {
			return UUID{}, malformed(text)
		}
		if !dash {
			digits = append(digits, c)
		}
	}
	if len(digits) != 2*len(u) {
		return UUID{}, malformed(text)
	}
	if _, err := hex.Decode(u[:], digits); err != nil {
		return UUID{}, malformed(text)
	}
	if u.IsZero() {
		return UUID{}, fmt.Errorf("UUID %q: must not be zero", text)
	}
	return u, nil
}

func malformed(text string) error {
	return fmt.Errorf("UUID %q: must be like 123e4567-e89b-42d3-a456-426614174000", text)
}

// IsZero reports whether u identifies nothing.
func (u UUID) IsZero() bool { return u == UUID{} }

func (u UUID) String() string {
	h := hex.EncodeToString(u[:])
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}
