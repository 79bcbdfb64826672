// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/rs/zerolog/log"
	"golang.org/x/sys/unix"

	"krping/agent/disk/verify"
	"krping/agent/host/kernel"
	"krping/agent/host/rdmalink"
	"krping/agent/nvme/nvmet"
	"krping/agent/service"
	"krping/agent/service/config"
	"krping/proc"
)

// Exit codes; exitHelp and the README name them.
const (
	exitOK          = 0
	exitFailure     = 1
	exitUsage       = 2
	exitMismatch    = 3
	exitMissing     = 4
	exitPeer        = 5
	exitInterrupted = 130
)

type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

type interruptedError struct{ error }

func (e interruptedError) Unwrap() error { return e.error }

// verdictError is what a check has found. An interruption may have ended the check, but has not failed it.
type verdictError struct{ error }

func (e verdictError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func verdictf(format string, args ...any) error { return verdictError{fmt.Errorf(format, args...)} }

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

func exitCode(err error) int {
	var mismatch *verify.Mismatch
	switch {
	case err == nil:
		return exitOK
	case errors.As(err, new(interruptedError)), isAny(err, context.Canceled, unix.EINTR):
		return exitInterrupted
	case errors.As(err, new(usageError)), errors.As(err, new(config.Errors)), isAny(err, unix.EINVAL, unix.EOPNOTSUPP):
		return exitUsage
	case errors.As(err, &mismatch), isAny(err, unix.EBADMSG):
		return exitMismatch
	case isAny(err, proc.ErrNotLoaded, kernel.ErrNoModule, unix.EADDRNOTAVAIL):
		return exitMissing
	case isAny(err, unix.ECONNREFUSED, unix.ETIMEDOUT, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ECONNRESET, unix.EPROTO, unix.ENOKEY, unix.EKEYREJECTED):
		return exitPeer
	}
	return exitFailure
}

// report logs the error, with what to do about it.
func report(err error) {
	if err == nil {
		return
	}
	if errors.As(err, new(config.Errors)) {
		service.LogMistakes(log.Logger, err)
		return
	}
	event := log.Error()
	if hint := hint(err); hint != "" {
		event = event.Str("hint", hint)
	}
	event.Msg(err.Error())
}

func hint(err error) string {
	if fix := kernel.Fix(err); fix != "" {
		return fix
	}
	switch {
	case errors.Is(err, proc.ErrNotLoaded):
		return "load it: modprobe rdma_krping, or insmod rdma_krping.ko after modprobe rdma_cm"
	case errors.Is(err, os.ErrPermission):
		return "this needs root: try again with sudo"
	case isAny(err, unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH):
		return addressHint()
	case isAny(err, nvmet.ErrUnknown, nvmet.ErrExists):
		return "`krpingctl nvme target list` lists what is served"
	case errors.Is(err, unix.ECONNREFUSED):
		return "is a server or krping-bridge listening at that address and port?"
	case errors.Is(err, unix.ENOKEY):
		return "--key-file with the file that the target has, or --key with the description of a key that `keyctl show` lists"
	case errors.Is(err, unix.EKEYREJECTED):
		return "do both sides have the same key? compare: sha256sum of the key files"
	case errors.Is(err, unix.ETIMEDOUT):
		return "`krpingctl doctor --peer` with that address looks for the reason"
	case errors.Is(err, unix.ENOENT) && errors.As(err, new(*proc.CommandError)):
		return "`krpingctl stat` lists the sessions; `krping-bridge` prints its volumes when it starts"
	case errors.Is(err, unix.EADDRINUSE):
		return "choose another --port, or end what listens there"
	case errors.Is(err, unix.EBUSY) && errors.As(err, new(*proc.CommandError)):
		return "unmount or close the device, or add --force: I/O that is under way then fails"
	case errors.As(err, new(usageError)):
		return "krpingctl help, or --help after a command"
	}
	return ""
}

func addressHint() string {
	links, err := rdmalink.List()
	if err != nil {
		return ""
	}
	if len(links) == 0 {
		return "this host has no RDMA device: make one with `krpingctl link add rxe0 --netdev eth0` (modprobe rdma_rxe)"
	}
	names := make([]string, len(links))
	for i, l := range links {
		names[i] = fmt.Sprintf("%s on %s (%s)", l.Name, l.Netdev, l.State)
	}
	return "no RDMA device serves or reaches that address; there are: " + strings.Join(names, ", ")
}
