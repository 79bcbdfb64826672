// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Message is a message of the module in the kernel log.
type Message struct {
	Sequence uint64        `json:"sequence"`
	Time     time.Duration `json:"time_ns"` // since boot
	Level    int           `json:"level"`   // syslog level: 3 error, 4 warning, 6 info
	Subject  string        `json:"subject"` // control, client, server, target, module, or a volume
	PID      int           `json:"pid,omitempty"`
	Peer     string        `json:"peer,omitempty"`
	Text     string        `json:"text"`
}

// ErrNotOurs is returned by ParseKmsg for a record of another part of the kernel.
var ErrNotOurs = errors.New("not a message of krping")

var tagged = regexp.MustCompile(`^krping: \[([A-Za-z0-9._/-]+)(?::(\d+))?(?:@([^ ]+))?\] (.*)$`)

// Record is a record of the kernel log.
type Record struct {
	Sequence uint64
	Time     time.Duration // since boot
	Level    int           // syslog level
	Text     string
}

// ParseRecord parses a record of /dev/kmsg, "level,sequence,microseconds,flags;text"; see
// Documentation/ABI/testing/dev-kmsg.
func ParseRecord(record string) (Record, error) {
	head, text, found := strings.Cut(record, ";")
	fields := strings.Split(head, ",")
	if !found || len(fields) < 3 {
		return Record{}, fmt.Errorf("kernel log record %.60q has no header", record)
	}
	text, _, _ = strings.Cut(text, "\n") // a dictionary may follow
	priority, err1 := strconv.Atoi(fields[0])
	sequence, err2 := strconv.ParseUint(fields[1], 10, 64)
	micros, err3 := strconv.ParseInt(fields[2], 10, 64)
	if err := errors.Join(err1, err2, err3); err != nil {
		return Record{}, fmt.Errorf("kernel log record %.60q: %w", record, err)
	}
	return Record{Sequence: sequence, Time: time.Duration(micros) * time.Microsecond, Level: priority & 7, Text: text}, nil
}

// ParseKmsg parses a record of the module. For other records it returns ErrNotOurs.
func ParseKmsg(record string) (Message, error) {
	r, err := ParseRecord(record)
	if err != nil {
		return Message{}, err
	}
	match := tagged.FindStringSubmatch(r.Text)
	if match == nil {
		return Message{}, ErrNotOurs
	}
	m := Message{Sequence: r.Sequence, Time: r.Time, Level: r.Level, Subject: match[1], Peer: match[3], Text: match[4]}
	m.PID, _ = strconv.Atoi(match[2]) // digits, or "" for none
	return m, nil
}

// Kmsg reads the module's messages from the kernel log.
type Kmsg struct {
	file *os.File
	// Lost counts how often records were overwritten before they were read.
	Lost int
}

// OpenKmsg opens the log at its beginning, or at its end to read only new messages.
func (f FS) OpenKmsg(atEnd bool) (*Kmsg, error) {
	file, err := os.OpenFile("/dev/kmsg", os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("read the kernel log: %w", err)
	}
	if atEnd {
		if _, err := file.Seek(0, io.SeekEnd); err != nil {
			_ = file.Close()
			return nil, fmt.Errorf("read the kernel log: %w", err)
		}
	}
	return &Kmsg{file: file}, nil
}

// Close closes the log.
func (k *Kmsg) Close() error { return k.file.Close() }

// Next returns the module's next message, or io.EOF if there is none.
func (k *Kmsg) Next(ctx context.Context) (Message, error) { return k.next(ctx, false) }

// Wait waits until ctx ends for the module's next message.
func (k *Kmsg) Wait(ctx context.Context) (Message, error) { return k.next(ctx, true) }

// NextRecord returns the next record of any part of the kernel, or io.EOF if there is none.
func (k *Kmsg) NextRecord(ctx context.Context) (Record, error) {
	for {
		text, err := k.read(ctx, false)
		if err != nil {
			return Record{}, err
		}
		if r, err := ParseRecord(text); err == nil {
			return r, nil
		}
	}
}

func (k *Kmsg) next(ctx context.Context, wait bool) (Message, error) {
	for {
		text, err := k.read(ctx, wait)
		if err != nil {
			return Message{}, err
		}
		if m, err := ParseKmsg(text); err == nil {
			return m, nil
		}
	}
}

// read returns the text of the next record.
func (k *Kmsg) read(ctx context.Context, wait bool) (string, error) {
	buf := make([]byte, 8192) // the maximum length of a record
	for {
		n, err := unix.Read(int(k.file.Fd()), buf)
		switch {
		case errors.Is(err, unix.EPIPE):
			k.Lost++
			continue
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN) && !wait:
			return "", io.EOF
		case errors.Is(err, unix.EAGAIN):
			select {
			case <-ctx.Done():
				return "", ctx.Err()
			case <-time.After(100 * time.Millisecond):
			}
			continue
		case err != nil:
			return "", fmt.Errorf("read the kernel log: %w", err)
		}
		return string(buf[:n]), nil
	}
}
