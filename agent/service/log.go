// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// NewLogger returns the agent's logger. Lines for the systemd journal begin with a severity such
// as "<4>"; lines for other files with the time and level.
func NewLogger(f *os.File) zerolog.Logger {
	if isJournal(f, os.Getenv("JOURNAL_STREAM")) {
		return zerolog.New(newJournal(f))
	}
	return zerolog.New(zerolog.ConsoleWriter{Out: f, NoColor: true, TimeFormat: time.DateTime}).With().Timestamp().Logger()
}

// isJournal reports whether f is the journal's stream, which systemd names as DEVICE:INODE.
func isJournal(f *os.File, stream string) bool {
	var stat unix.Stat_t
	if stream == "" || unix.Fstat(int(f.Fd()), &stat) != nil {
		return false
	}
	return stream == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// journal writes each message as a line that begins with its severity; see sd-daemon(3).
type journal struct {
	out io.Writer

	mu     sync.Mutex
	line   bytes.Buffer
	format zerolog.ConsoleWriter // writes to line
}

func newJournal(out io.Writer) *journal {
	j := &journal{out: out}
	j.format = zerolog.ConsoleWriter{Out: &j.line, NoColor: true, PartsOrder: []string{zerolog.MessageFieldName}}
	return j
}

// Write implements io.Writer, for messages without a level.
func (j *journal) Write(p []byte) (int, error) { return j.WriteLevel(zerolog.InfoLevel, p) }

// WriteLevel implements zerolog.LevelWriter.
func (j *journal) WriteLevel(level zerolog.Level, p []byte) (int, error) {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.line.Reset()
	fmt.Fprintf(&j.line, "<%d>", severity(level))
	if _, err := j.format.Write(p); err != nil {
		return 0, err
	}
	if _, err := j.out.Write(j.line.Bytes()); err != nil {
		return 0, err
	}
	return len(p), nil
}

// severity returns the syslog severity of a level.
func severity(level zerolog.Level) int {
	switch {
	case level >= zerolog.FatalLevel && level <= zerolog.PanicLevel:
		return 2
	case level == zerolog.ErrorLevel:
		return 3
	case level == zerolog.WarnLevel:
		return 4
	case level <= zerolog.DebugLevel:
		return 7
	}
	return 6
}

// levelOf returns the level of a kernel log severity, and its name.
func levelOf(severity int) (zerolog.Level, string) {
	switch {
	case severity <= 3:
		return zerolog.ErrorLevel, "error"
	case severity == 4:
		return zerolog.WarnLevel, "warning"
	case severity == 7:
		return zerolog.DebugLevel, "debug"
	}
	return zerolog.InfoLevel, "info"
}
