// SPDX-License-Identifier: Apache-2.0

// Package replay records traced bios in a file, and replays them on a device.
package replay

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"krping/agent/trace/biotrace"
)

// A recording has one JSON object per line: a Header, the bios in the order of their ends, and a
// Trailer, without which it is incomplete.
const version = 1

// Header is the first line.
type Header struct {
	Version int       `json:"krping_recording"`
	Device  string    `json:"device"`
	Size    int64     `json:"size"` // of the device in bytes
	Start   time.Time `json:"start"`
}

// Trailer is the last line.
type Trailer struct {
	End  time.Time `json:"end"`
	Bios int       `json:"bios"`
	Lost uint64    `json:"lost"` // sum of what the trace has missed
}

// Writer writes a recording.
type Writer struct {
	buffer *bufio.Writer
	lines  *json.Encoder
	first  uint64 // sector of the disk at which the device begins
	bios   int
}

// NewWriter writes the header of a recording of a device with size bytes, which begins at a sector of its
// disk: that of a partition, else 0.
func NewWriter(w io.Writer, device string, size int64, first uint64, start time.Time) (*Writer, error) {
	buffer := bufio.NewWriterSize(w, 1<<16)
	r := &Writer{buffer: buffer, lines: json.NewEncoder(buffer), first: first}
	return r, r.put(Header{version, device, size, start})
}

func (r *Writer) put(line any) error {
	if err := r.lines.Encode(line); err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	return nil
}

// Add writes a bio, whose sector is of the disk.
func (r *Writer) Add(b *biotrace.Bio) error {
	r.bios++
	of := *b
	of.Sector -= min(r.first, b.Sector) // a flush has no sector
	return r.put(of)
}

// End writes the trailer. The caller closes the file.
func (r *Writer) End(end time.Time, lost uint64) error {
	if err := r.put(Trailer{end, r.bios, lost}); err != nil {
		return err
	}
	if err := r.buffer.Flush(); err != nil {
		return fmt.Errorf("write the recording: %w", err)
	}
	return nil
}

// Recording is a whole recording.
type Recording struct {
	Header
	Trailer
	List []biotrace.Bio // in the order of submission
}

// ErrIncomplete is returned for a recording without a trailer.
var ErrIncomplete = errors.New("the recording is cut off: its last line is missing")

// Read reads a recording, and returns an error if it cannot be replayed.
func Read(from io.Reader) (*Recording, error) {
	r := &Recording{}
	lines := bufio.NewScanner(from)
	lines.Buffer(nil, 1<<16)
	number := 0
	complete := false
	for lines.Scan() {
		number++
		var err error
		switch {
		case complete:
			err = errors.New("text after the last line")
		case number == 1:
			if err = json.Unmarshal(lines.Bytes(), &r.Header); err == nil {
				err = r.Header.check()
			}
		default:
			complete, err = r.line(lines.Bytes())
		}
		if err != nil {
			return nil, fmt.Errorf("line %d of the recording: %w", number, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read the recording: %w", err)
	}
	switch {
	case !complete:
		return nil, ErrIncomplete
	case r.Bios != len(r.List):
		return nil, fmt.Errorf("the recording has %d bios, but its last line says %d", len(r.List), r.Bios)
	}
	slices.SortStableFunc(r.List, func(a, b biotrace.Bio) int { return a.Time.Compare(b.Time) })
	return r, nil
}

func (h Header) check() error {
	switch {
	case h.Version == 0:
		return errors.New("not a recording of `krpingctl trace --record`")
	case h.Version != version:
		return fmt.Errorf("version is %d, this program reads version %d", h.Version, version)
	case h.Size <= 0:
		return fmt.Errorf("size of the device is %d bytes, must be positive", h.Size)
	}
	return nil
}

func (r *Recording) line(text []byte) (last bool, err error) {
	var trailer struct {
		Trailer
		End *time.Time `json:"end"`
	}
	if err := json.Unmarshal(text, &trailer); err == nil && trailer.End != nil {
		r.Trailer = trailer.Trailer
		r.Trailer.End = *trailer.End
		return true, nil
	}
	var b biotrace.Bio
	if err := json.Unmarshal(text, &b); err != nil {
		return false, err
	}
	end := b.Sector*sectorSize + uint64(b.Bytes)
	if b.Sector > uint64(r.Size)/sectorSize || end > uint64(r.Size) {
		return false, fmt.Errorf("bio ends at byte %d of a device of %d", end, r.Size)
	}
	if _, err := operationOf(&b); err != nil {
		return false, err
	}
	r.List = append(r.List, b)
	return false, nil
}

const sectorSize = 512

// Writes reports whether a replay changes data on the device.
func (r *Recording) Writes() bool {
	return slices.ContainsFunc(r.List, func(b biotrace.Bio) bool { return b.Op != "READ" && b.Op != "FLUSH" })
}

// Largest returns the size in bytes of the largest read or write.
func (r *Recording) Largest() (size uint32) {
	for i := range r.List {
		if op := r.List[i].Op; op == "READ" || op == "WRITE" {
			size = max(size, r.List[i].Bytes)
		}
	}
	return size
}
