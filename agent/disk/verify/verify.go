// SPDX-License-Identifier: Apache-2.0

// Package verify compares what a block device returns with what its target has stored, and with what
// was written.
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

// Range is a range of bytes of the device.
type Range struct {
	Offset int64 `json:"offset"`
	Length int64 `json:"length"`
}

// Mismatch is the error for the first block that differs, with the SHA-256 of both sides.
type Mismatch struct {
	Range
	What string `json:"what"` // the two sides that differ
	Want string `json:"want_sha256"`
	Got  string `json:"got_sha256"`
}

func (m *Mismatch) Error() string {
	return fmt.Sprintf("%s: first difference in %d bytes at offset %d: want sha256 %s, got %s", m.What, m.Length, m.Offset, m.Want, m.Got)
}

// Options of a comparison.
type Options struct {
	Range
	Pattern *pattern.Pattern  // of what was written; nil if that is not known
	Block   int64             // size of the range in a Mismatch, in bytes
	Step    int64             // bytes to compare at a time, a multiple of Block
	Done    func(bytes int64) // if not nil, called with the progress
}

// Result describes what was compared and agreed.
type Result struct {
	Bytes  int64  `json:"bytes"`
	SHA256 string `json:"sha256"`
	Target bool   `json:"target_asked"`  // compared with the target's digests
	Known  bool   `json:"data_expected"` // compared with what was written
}

// Run compares the range, and returns a *Mismatch for the first difference. It does not compare with
// the target if asker is nil.
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
				What:  "the device does not have what was written",
				Want:  digest(want[i:end]), Got: digest(got[i:end]),
			}
		}
	}
	return nil
}

// compareTarget compares the digest of the whole range and, if it differs, of its halves, until it finds
// the first block that differs.
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
		return &Mismatch{Range: at, What: "the target does not have what the device returns", Want: ours, Got: theirs}
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
	return errors.New("the data changed while it was verified")
}

func digest(data []byte) string {
	sum := sha256.Sum256(data)
	return hex.EncodeToString(sum[:])
}
