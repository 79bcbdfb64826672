// SPDX-License-Identifier: Apache-2.0

package reconciler

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/agent/service/volumes"
	"krping/proc"
)

// Known remembers the volumes of sessions; volumes.File is one.
type Known interface {
	Get(session string) (volumes.Volume, error)
	Set(session string, v volumes.Volume) error
	Refuse(session, why string) error
	Forget(session string) (known bool, err error)
}

// expected returns what is known of the volume that the session must have; the zero Volume if any one
// may be attached. A volume that failed meanwhile counts even if it could not be remembered. The error is
// that of a memory that cannot be read, if that matters.
func (s *session) expected(want config.Session) (volumes.Volume, error) {
	v, err := s.reconciler.known.Get(s.name)
	if err != nil && want.Command.UUID == "" && want.Reattach != config.ReattachAlways && s.failed == nil {
		return volumes.Volume{}, err
	}
	if err != nil {
		s.complain(err)
	}
	if f := s.failed; f != nil && len(s.complaints) > 0 {
		v = volumes.Volume{UUID: f.UUID, Size: f.Size, BlockSize: f.BlockSize, Volatile: f.Volatile}
	}
	if want.Command.UUID != "" {
		v.UUID = want.Command.UUID // the operator knows better
	} else if v.Volatile && want.Reattach == config.ReattachAlways {
		return volumes.Volume{}, nil
	}
	return v, nil
}

// unknown notes that it cannot be told which volume the session must have.
func (s *session) unknown(err error) {
	s.set(Refused)
	s.report(zerolog.ErrorLevel, err.Error(), fmt.Sprintf(
		"not attached: which volume was attached here before cannot be told: %v. Mend the file, or write the volume's UUID into krping.yaml as uuid; `krpingctl agent --forget %s` begins the file anew, and any volume is attached",
		err, s.name))
}

// attachCommand returns the command that attaches the expected volume and no other. A session that has
// failed does not take the volume over again: it may have failed because another client did.
func (s *session) attachCommand(want config.Session, expected volumes.Volume) proc.Command {
	c := want.Command
	c.UUID = expected.UUID
	c.TakeOver = c.TakeOver && s.failed == nil
	return c
}

// other says why the volume of a session that was just attached is not the expected one, or returns "".
// Version 1 of the protocol does not tell the UUID: then only the sizes can differ.
func other(expected volumes.Volume, is proc.Session) string {
	if expected.UUID != "" || expected.Size == 0 || is.Size == expected.Size && is.BlockSize == expected.BlockSize {
		return ""
	}
	return fmt.Sprintf("the target has another volume: it has %d bytes in blocks of %d, the one seen last had %d in blocks of %d",
		is.Size, is.BlockSize, expected.Size, expected.BlockSize)
}

// isRefusal reports whether attaching failed because the target has another volume than the expected
// one, or does not say which.
func isRefusal(c proc.Command, err error) bool {
	return c.UUID != "" && (errors.Is(err, unix.ESTALE) || errors.Is(err, unix.EPROTONOSUPPORT))
}

// refuse notes that the target has another volume than the expected one.
func (s *session) refuse(want config.Session, expected volumes.Volume, why string) {
	seen := "krping.yaml pins it"
	wayOut := "correct uuid in krping.yaml"
	if want.Command.UUID == "" {
		seen = "it was attached here since " + expected.Seen.Format("2006-01-02")
		wayOut = "`krpingctl agent --forget " + s.name + "`, or write its UUID into krping.yaml as uuid"
	}
	what := "UUID " + expected.UUID
	if expected.UUID == "" {
		what = fmt.Sprintf("%d bytes", expected.Size)
	}
	why = fmt.Sprintf("not attached: %s. Expected is the volume with %s (%s). Check the target: is its file system mounted? To attach the other volume: %s",
		why, what, seen, wayOut)
	s.set(Refused)
	s.report(zerolog.ErrorLevel, string(Refused), why)
	err := s.reconciler.known.Refuse(s.name, why)
	if err != nil {
		s.complain(err)
	}
	s.noted = err == nil
}

// reason returns why a command failed, without the command.
func reason(err error) string {
	var failed *proc.CommandError
	if !errors.As(err, &failed) {
		return err.Error()
	}
	return cmp.Or(strings.Join(failed.Reasons, "; "), failed.Errno.Error())
}

// remember remembers the volume of an attached session. A volume that was attached by somebody else and
// is not the expected one is not remembered: the next attempt would accept it.
func (s *session) remember(want config.Session, is proc.Session) {
	v := volumes.Volume{UUID: is.UUID, Size: is.Size, BlockSize: is.BlockSize, Volatile: is.Volatile}
	if is.State != "live" || is.Size == 0 || v == s.remembered {
		return
	}
	if e, err := s.expected(want); err != nil {
		s.complain(err)
		return
	} else if e.UUID != "" && !strings.EqualFold(e.UUID, is.UUID) || other(e, is) != "" {
		s.log.Warn().Str("uuid", is.UUID).Str("expected", e.UUID).Uint64("size", is.Size).
			Msg("attached to another volume than the expected one, by another process: it stays attached, but is not remembered")
		s.remembered = v // only the warning: once
		return
	}
	if err := s.reconciler.known.Set(s.name, v); err != nil {
		s.complain(err) // and tries again at the next step
		return
	}
	s.remembered, s.complaints = v, nil
}

// complain logs an error of the memory of volumes, but each once until the volume could be remembered.
func (s *session) complain(err error) {
	cause := err.Error()
	if errno := unix.Errno(0); errors.As(err, &errno) {
		cause = errno.Error() // the name of a temporary file differs each time
	}
	if !slices.Contains(s.complaints, cause) {
		s.complaints = append(s.complaints, cause)
		s.log.Error().Err(err).Msg("another volume may not be noticed after a restart of the agent")
	}
}
