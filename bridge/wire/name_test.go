// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
)

// longName is the name that orchestrators give to volumes. It is too long for a hello.
const longName = "pvc-123e4567-e89b-12d3-a456-426614174000"

// This package and the module's kmod/wire/name.c have one rule.
func TestVolumeNames(t *testing.T) {
	names := map[string]bool{
		"v": true, "vol0.a_b-c": true, "-": true, "...": true, ".a": true, "a.": true, "..a": true, "a..": true,
		longName: true, "pool/image": true, "a/b/c": true, "a/.b": true, "a/...": true, "default/" + longName: true,
		strings.Repeat("a", 27): true, strings.Repeat("a", 28): true, strings.Repeat("a", 63): true, "b/" + strings.Repeat("a", 61): true,
		strings.Repeat("a", 64): false, "b/" + strings.Repeat("a", 62): false, strings.Repeat("a/", 32): false,
		"": false, ".": false, "..": false, "/": false, "//": false, "/a": false, "a/": false, "a//b": false,
		"./a": false, "../a": false, "a/.": false, "a/..": false, "a/./b": false, "a/../b": false,
		"a b": false, "a\tb": false, "a\n": false, "a=b": false, "a,b": false, "a:b": false, "a@b": false, "a%b": false, "a\\b": false, "\xc3\xa4": false, "a\xffb": false,
	}
	var lines, want []string
	for name, valid := range names {
		if err := CheckVolumeName(name); (err == nil) != valid {
			t.Errorf("%q: %v, want valid %v", name, err, valid)
		}
		lines, want = append(lines, fmt.Sprintf("name %x00", name)), append(want, map[bool]string{true: "ok", false: "refused"}[valid])
	}
	for i, got := range module(t, lines) {
		if got != want[i] {
			t.Errorf("%s: the module says %s, want %s", lines[i], got, want[i])
		}
	}
}

// A name that does not fit into a hello is its digest there.
func TestLongNamesInHellos(t *testing.T) {
	fits, digest := strings.Repeat("a", 27), "9c547cb8115a44883b9f70ba68f75117cd55359c92611875e386f8af"
	short, long := Hello{QueueCount: 1, Depth: 1, Session: SessionID{1}, Volume: VolumeIDOf(fits)}.Append(nil), Hello{QueueCount: 1, Depth: 1, Session: SessionID{1}, Volume: VolumeIDOf(fits + "a")}.Append(nil)
	if want := append([]byte(fits), 0); !bytes.Equal(short[headSize:], want) || short[5] != 0 {
		t.Errorf("27 characters: %x with flags %#x", short[headSize:], short[5])
	}
	if hex.EncodeToString(long[headSize:]) != digest || long[5] != HelloDigest {
		t.Errorf("28 characters: %x with flags %#x, want %s", long[headSize:], long[5], digest)
	}
	for _, b := range [][]byte{short, long} {
		if h, err := DecodeHello(b); err != nil || !bytes.Equal(h.Append(nil), b) {
			t.Errorf("%x: decoded to %+v, %v", b, h, err)
		}
	}
	if h, err := DecodeHello(long); err != nil || h.Volume != VolumeIDOf(fits+"a") || h.Volume.String() != "sha256:"+digest {
		t.Errorf("28 characters: decoded to %+v, %v", h, err)
	}
}

// A name and a digest of the same bytes are different volumes.
func TestDigestIsNoName(t *testing.T) {
	name := VolumeIDOf("v")
	if digest := (VolumeID{digest: true, field: name.field}); digest == name || digest.String() == name.String() {
		t.Errorf("%v is %v", digest, name)
	}
}
