// SPDX-License-Identifier: Apache-2.0

package service

import (
	"os"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/display"
	"krping/bridge/journal"
)

// NewLogger returns the agent's logger. Lines for the systemd journal begin with a severity such
// as "<4>"; lines for other files with the time and level.
func NewLogger(f *os.File) zerolog.Logger {
	if journal.Is(f) {
		return zerolog.New(journal.New(f))
	}
	zerolog.TimeFieldFormat = time.RFC3339Nano // else to the second
	format := zerolog.ConsoleWriter{Out: f, NoColor: true, TimeFormat: time.DateTime + ".000", FormatPrepare: printable}
	return zerolog.New(format).With().Timestamp().Logger()
}

// printable makes a message safe to print: it may quote what others have sent.
func printable(event map[string]any) error {
	if message, ok := event[zerolog.MessageFieldName].(string); ok {
		event[zerolog.MessageFieldName] = display.Lines(message)
	}
	return nil
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
