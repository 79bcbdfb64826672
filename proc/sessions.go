// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// ErrNoSession is returned for an unknown session name.
var ErrNoSession = errors.New("no such session")

// Session is a block session: a line of /proc/krping_sessions. Sizes are bytes.
type Session struct {
	ID         int    `json:"id"`
	Name       string `json:"name"`
	Role       string `json:"role"`
	Mode       string `json:"mode"`
	Dev        string `json:"dev"` // such as krping0; "" for a served volume
	State      string `json:"state"`
	Peer       string `json:"peer"`
	Source     string `json:"source,omitempty"` // address that it connects from, if the command has one
	TOS        *uint8 `json:"tos,omitempty"`    // IP type of service of its packets, if the command has one
	IBDev      string `json:"ibdev"`            // RDMA device; "" if it has none now
	Size       uint64 `json:"size"`
	BlockSize  uint64 `json:"block_size"`
	Writeback  bool   `json:"writeback"`
	ReadOnly   bool   `json:"read_only"`
	UUID       string `json:"uuid,omitempty"`    // of the volume; "" if the target does not say
	Version    uint64 `json:"version,omitempty"` // of the protocol; 0 for a served volume
	Volatile   bool   `json:"volatile"`          // the volume is empty when its target starts
	Shared     bool   `json:"shared"`            // any number of clients may write
	Writer     string `json:"writer,omitempty"`  // served volume: address of the client that writes; "" for none
	Queues     uint64 `json:"queues"`
	PollQueues uint64 `json:"poll_queues"`
	Depth      uint64 `json:"depth"`
	Inflight   uint64 `json:"inflight"`
	Reads      uint64 `json:"reads"`
	Writes     uint64 `json:"writes"`
	Flushes    uint64 `json:"flushes"`
	Digests    uint64 `json:"digests"`
	Discards   uint64 `json:"discards"`
	Zeroes     uint64 `json:"zeroes"`
	ReadBytes  uint64 `json:"read_bytes"`
	WriteBytes uint64 `json:"write_bytes"`
	Messages   uint64 `json:"messages"`
	Errors     uint64 `json:"errors"`
	CRCErrors  uint64 `json:"crc_errors"`
	Retries    uint64 `json:"retries"`
	Reconnects uint64 `json:"reconnects"`
	Stalls     uint64 `json:"stalls"`    // times that a request waited for a free message or receive
	Timeout    uint64 `json:"timeout"`   // seconds
	FastFail   uint64 `json:"fast_fail"` // seconds, 0: none
	Heartbeat  uint64 `json:"heartbeat"` // seconds, 0: none
	Backing    string `json:"backing,omitempty"`
	Tap        *Tap   `json:"tap,omitempty"`
	DirtyBytes uint64 `json:"dirty_bytes,omitempty"` // size of the chunks that the target lacks
	// Counters of a served volume.
	Connections uint64 `json:"connections,omitempty"` // accepted
	Violations  uint64 `json:"violations,omitempty"`  // connections ended for a protocol violation
	Rejected    uint64 `json:"rejected,omitempty"`    // clients refused
	// Other holds keys unknown to this version.
	Other map[string]string `json:"other,omitempty"`
}

// Tap counts the bios of a disk with mode=tap. A bio that matches the filter is forwarded or
// dropped.
type Tap struct {
	Forwarded      uint64 `json:"forwarded"`
	ForwardedBytes uint64 `json:"forwarded_bytes"`
	Skipped        uint64 `json:"skipped"` // did not match
	Dropped        uint64 `json:"dropped"`
	DroppedBytes   uint64 `json:"dropped_bytes"`
	DropsLost      uint64 `json:"drops_lost"`   // the target was lost
	DropsFull      uint64 `json:"drops_full"`   // too many copies were queued
	DropsMemory    uint64 `json:"drops_memory"` // out of memory
	DropsError     uint64 `json:"drops_error"`  // the backing or the target returned an error
	Mismatches     uint64 `json:"mismatches"`   // reads whose data differs at the target
	Unchecked      uint64 `json:"unchecked"`    // reads that could not be compared
	Queued         uint64 `json:"queued"`       // copies without a response
}

// Device returns the path of the session's block device, or "" for a served volume, which has none.
func (s Session) Device() string {
	if s.Dev == "" {
		return ""
	}
	return "/dev/" + s.Dev
}

// Sessions returns the block sessions.
func (f FS) Sessions() ([]Session, error) {
	data, err := f.read("krping_sessions")
	if err != nil {
		return nil, err
	}
	return ParseSessions(string(data))
}

// Session returns the client session of that name.
func (f FS) Session(name string) (Session, error) { return f.session(name, "client") }

// Target returns the served volume of that name.
func (f FS) Target(name string) (Session, error) { return f.session(name, "target") }

func (f FS) session(name, role string) (Session, error) {
	sessions, err := f.Sessions()
	if err != nil {
		return Session{}, err
	}
	for _, s := range sessions {
		if s.Name == name && s.Role == role {
			return s, nil
		}
	}
	return Session{}, fmt.Errorf("%s: %w", name, ErrNoSession)
}

// parseTOS parses a type of service; "-" is none.
func parseTOS(text string) (*uint8, error) {
	if text == "-" {
		return nil, nil
	}
	n, err := strconv.ParseUint(text, 10, 8)
	tos := uint8(n)
	return &tos, err
}

// ParseSessions parses /proc/krping_sessions.
func ParseSessions(text string) ([]Session, error) {
	var sessions []Session
	for line := range strings.Lines(text) {
		s, err := parseSession(line)
		if err != nil {
			return nil, fmt.Errorf("session %.100q: %w", line, err)
		}
		sessions = append(sessions, s)
	}
	return sessions, nil
}

func parseSession(line string) (Session, error) {
	var s Session
	texts := map[string]*string{
		"name": &s.Name, "role": &s.Role, "mode": &s.Mode, "dev": &s.Dev,
		"state": &s.State, "peer": &s.Peer, "ibdev": &s.IBDev, "backing": &s.Backing,
		"uuid": &s.UUID, "writer": &s.Writer, "source": &s.Source,
	}
	var tap Tap
	numbers := map[string]*uint64{
		"size": &s.Size, "block_size": &s.BlockSize, "queues": &s.Queues, "poll_queues": &s.PollQueues, "depth": &s.Depth,
		"inflight": &s.Inflight, "reads": &s.Reads, "writes": &s.Writes, "flushes": &s.Flushes,
		"digests": &s.Digests, "discards": &s.Discards, "zeroes": &s.Zeroes, "read_bytes": &s.ReadBytes, "write_bytes": &s.WriteBytes,
		"messages": &s.Messages, "errors": &s.Errors, "crc_errors": &s.CRCErrors,
		"retries": &s.Retries, "reconnects": &s.Reconnects, "timeout": &s.Timeout,
		"stalls": &s.Stalls, "fast_fail": &s.FastFail, "heartbeat": &s.Heartbeat,
		"dirty_bytes": &s.DirtyBytes, "connections": &s.Connections, "violations": &s.Violations,
		"rejected": &s.Rejected, "version": &s.Version,
		"forwarded": &tap.Forwarded, "forwarded_bytes": &tap.ForwardedBytes, "skipped": &tap.Skipped,
		"dropped": &tap.Dropped, "dropped_bytes": &tap.DroppedBytes, "drops_lost": &tap.DropsLost,
		"drops_full": &tap.DropsFull, "drops_memory": &tap.DropsMemory, "drops_error": &tap.DropsError,
		"mismatches": &tap.Mismatches, "unchecked": &tap.Unchecked, "queued": &tap.Queued,
	}
	flags := map[string]*bool{"writeback": &s.Writeback, "read_only": &s.ReadOnly, "volatile": &s.Volatile, "shared": &s.Shared}
	for _, field := range strings.Fields(line) {
		key, value, found := strings.Cut(field, "=")
		if !found {
			return s, fmt.Errorf("field %q is not key=value", field)
		}
		var err error
		switch {
		case key == "id":
			s.ID, err = strconv.Atoi(value)
		case key == "tos":
			s.TOS, err = parseTOS(value)
		case texts[key] != nil:
			*texts[key] = value
		case numbers[key] != nil:
			*numbers[key], err = strconv.ParseUint(value, 10, 64)
		case flags[key] != nil:
			*flags[key], err = strconv.ParseBool(value)
		default:
			if s.Other == nil {
				s.Other = map[string]string{}
			}
			s.Other[key] = value
		}
		if err != nil {
			return s, fmt.Errorf("%s: %w", key, err)
		}
	}
	for _, text := range []*string{&s.Dev, &s.IBDev, &s.UUID, &s.Writer, &s.Source} {
		if *text == "-" {
			*text = ""
		}
	}
	if s.Mode == "tap" {
		s.Tap = &tap
	}
	if s.Name == "" {
		return s, errors.New("has no name")
	}
	return s, nil
}
