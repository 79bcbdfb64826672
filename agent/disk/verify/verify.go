// SPDX-License-Identifier: Apache-2.0

// Package verify compares the two ends of a block device: what it reads back, what its
// target says rests there, and what was written.
package verify

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"

	"krping/agent/disk/pattern"
	"krping/agent/disk/rawio"
)

// Range is bytes of the device; its block is the smallest unit that is named.
type Range struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// Mismatch is the first range that differs, with the SHA-256 of both sides.
type Mismatch struct {
	Range
	What string `json:"what"` // which two sides differ
	Want string `json:"want_sha256"`
	Got  string `json:"got_sha256"`
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("%s: first difference in %d bytes at offset %d: want sha256 %s, got %s", m.What, m.Length, m.Offset, m.Want, m.Got)
}

// Options of a comparison.
type Options struct {
	Range
	Pattern *pattern.Pattern // what was written, if it is known
	Block   int64            // bytes; what a mismatch is narrowed to
	Step    int64            // bytes that are compared at a time, a multiple of Block
	Done    func(bytes int64)
}

// Result is what agreed.
type Result struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Target bool   `json:"target_asked"`  // the far end's digests agreed
	Known  bool   `json:"data_expected"` // the data is what was written
}

// Run compares the range and returns a *Mismatch for the first difference. The target
// is asked if asker is not nil.
func Run(ctx context.Context, device io.ReaderAt, asker Asker, o Options) (Result, error) {
	result := Result{Target: asker != nil, Known: o.Pattern != nil}
	buf, err := rawio.Buffer(int(o.Step))
	if err != nil {
		return result, err
	}
	defer rawio.Free(buf)
	expected := make([]byte, o.Step)
	sum := sha256.New()
	for done := int64(0); done < o.Length; {
		if err := ctx.Err(); err != nil {
			return result, err
		}
		at := Range{o.Offset + done, min(o.Step, o.Length-done)}
		got := buf[:at.Length]
		if _, err := device.ReadAt(got, at.Offset); err != nil {
			return result, fmt.Errorf("read %d bytes at offset %d: %w", at.Length, at.Offset, err)
		}
		if o.Pattern != nil {
			o.Pattern.Fill(expected[:at.Length], at.Offset)
			if err := compare(got, expected[:at.Length], at.Offset, o.Block); err != nil {
				return result, err
			}
		}
		if asker != nil {
			if err := compareTarget(asker, got, at, o.Block); err != nil {
				return result, err
			}
		}
		_, _ = sum.Write(got)
		done += at.Length
		result.Bytes = done
		if o.Done != nil {
			o.Done(done)
		}
	}
	result.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return result, nil
}

func compare(got, want []byte, offset, block int64) error {
	for i := int64(0); i < int64(len(got)); i += block {
		end := min(i+block, int64(len(got)))
		if !bytes.Equal(got[i:end], want[i:end]) {
			return &Mismatch{
				Range: Range{offset + i, end - i},
				What:  "the device does not hold what was written",
				Want:  digest(want[i:end]), Got: digest(got[i:end]),
			}
		}
	}
	return nil
}

// compareTarget asks for the digest of the whole range and, if that differs, of halves of
// it, until the first block that differs is found.
func compareTarget(asker Asker, got []byte, at Range, block int64) error {
	theirs, err := asker.SHA256(at)
	if err != nil {
		return fmt.Errorf("ask the target for the digest of %d bytes at offset %d: %w", at.Length, at.Offset, err)
	}
	ours := digest(got)
	if theirs == ours {
		return nil
	}
	if at.Length <= block {
		return &Mismatch{Range: at, What: "the target does not hold what the device reads", Want: ours, Got: theirs}
	}
	half := at.Length / block / 2 * block
	if half == 0 {
		half = block
	}
	err = compareTarget(asker, got[:half], Range{at.Offset, half}, block)
	if err != nil {
		return err
	}
	err = compareTarget(asker, got[half:], Range{at.Offset + half, at.Length - half}, block)
	if err != nil {
		return err
	}
	return errors.New("the target's data changes while it is verified")
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
