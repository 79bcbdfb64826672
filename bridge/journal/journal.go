// SPDX-License-Identifier: Apache-2.0

// Package journal writes log messages for the systemd journal: each line begins with its severity,
// such as "<4>". See sd-daemon(3).
package journal

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"sync"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

// Is reports whether f is the journal's stream, which systemd names as DEVICE:INODE in JOURNAL_STREAM.
func Is(f *os.File) bool { return isStream(f, os.Getenv("JOURNAL_STREAM")) }

func isStream(f *os.File, stream string) bool {
	var stat unix.Stat_t
	if stream == "" || unix.Fstat(int(f.Fd()), &stat) != nil {
		return false
	}
	return stream == fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)
}

// Writer writes each message as a line that begins with its severity. It is a zerolog.LevelWriter.
type Writer struct {
	out io.Writer

	mu     sync.Mutex
	line   bytes.Buffer
	format zerolog.ConsoleWriter // writes to line
}

// New returns a Writer to out.
func New(out io.Writer) *Writer {
	w := &Writer{out: out}
	w.format = zerolog.ConsoleWriter{Out: &w.line, NoColor: true, PartsOrder: []string{zerolog.MessageFieldName}}
	return w
}

// Write implements io.Writer, for messages without a level.
func (w *Writer) Write(p []byte) (int, error) { return w.WriteLevel(zerolog.InfoLevel, p) }

// WriteLevel implements zerolog.LevelWriter.
func (w *Writer) WriteLevel(level zerolog.Level, p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.line.Reset()
	fmt.Fprintf(&w.line, "<%d>", severity(level))
	if _, err := w.format.Write(p); err != nil {
		return 0, err
	}
	// Each line of a message is one of the journal's, and would have no severity.
	text := bytes.TrimSuffix(w.line.Bytes(), []byte("\n"))
	text = bytes.ReplaceAll(text, []byte("\n"), fmt.Appendf(nil, "\n<%d>", severity(level)))
	if _, err := w.out.Write(append(text, '\n')); err != nil {
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
