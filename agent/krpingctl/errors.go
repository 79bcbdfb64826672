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
	"krping/bridge/cli"
	"krping/bridge/inuse"
	"krping/proc"
)

// Exit codes. exitHelp and the README document them.
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

// verdictError is the failed result of a check. It stays one if the check was interrupted.
type verdictError struct{ error }

func (e verdictError) Unwrap() error { return e.error }

func usagef(format string, args ...any) error { return usageError{fmt.Errorf(format, args...)} }

func verdictf(format string, args ...any) error { return verdictError{fmt.Errorf(format, args...)} }

func isUsage(err error) bool {
	return errors.As(err, new(usageError)) || errors.As(err, new(cli.UsageError))
}

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
	case isUsage(err), errors.As(err, new(config.Errors)), isAny(err, unix.EINVAL, unix.EOPNOTSUPP):
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

// report logs the error with a hint about fixing it.
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
	var failed *proc.CommandError
	if fix := kernel.Fix(err); fix != "" {
		return fix
	}
	if used := new(inuse.Error); errors.As(err, &used) {
		if errors.As(err, &failed) && strings.HasPrefix(failed.Command, "stop") {
			return used.Fix() + "; or add --force, which fails I/O in flight"
		}
		return used.Fix()
	}
	switch {
	case errors.Is(err, config.ErrNoFile):
		return "write one: agent/service/krping.yaml of the source is an example, and krpingctl agent --check finds mistakes"
	case errors.Is(err, proc.ErrNotLoaded):
		return "load it: modprobe rdma_krping; or modprobe rdma_cm, then insmod rdma_krping.ko"
	case errors.Is(err, os.ErrPermission):
		return deniedHint()
	case isAny(err, unix.EADDRNOTAVAIL, unix.ENETUNREACH, unix.EHOSTUNREACH):
		return addressHint()
	case isAny(err, nvmet.ErrUnknown, nvmet.ErrExists):
		return "`krpingctl nvme target list` lists the served subsystems"
	case errors.Is(err, unix.ECONNREFUSED):
		return "check that a server or krping-bridge is listening at that address and port"
	case errors.Is(err, unix.ENOKEY):
		return "give --key-file with a copy of the target's key file, or --key with the description of a key that `keyctl show` lists"
	case errors.Is(err, unix.EKEYREJECTED):
		return "check that both sides have the same key: compare sha256sum of the key files"
	case errors.Is(err, unix.ETIMEDOUT):
		return "run `krpingctl doctor --peer` with that address to find the cause"
	case errors.Is(err, unix.ENOENT) && errors.As(err, new(*proc.CommandError)):
		return "`krpingctl stat` lists the sessions; krping-bridge prints its volumes when it starts"
	case errors.Is(err, unix.EADDRINUSE):
		return "use another --port, or stop the server that uses this one"
	case errors.Is(err, unix.EBUSY) && errors.As(err, &failed) && strings.HasPrefix(failed.Command, "client"):
		hint := "stop the other client, or attach beside it with --read-only, or replace it with --take-over, which fences it"
		if strings.Contains(failed.Command, "mode=tap") {
			hint += "; or check that nothing else uses the --backing disk"
		}
		return hint
	case errors.Is(err, unix.EBUSY) && errors.As(err, &failed) && strings.HasPrefix(failed.Command, "server"):
		return "lsblk shows what uses the --backing disk"
	case errors.Is(err, unix.ESTALE) && errors.As(err, &failed):
		return "check the target: is the file system of the volume mounted there? Or give the --uuid of the volume that you want"
	case errors.Is(err, unix.EPROTONOSUPPORT) && errors.As(err, &failed) && strings.Contains(failed.Command, "uuid="):
		return "update the target, or attach without --uuid"
	case errors.Is(err, unix.EBUSY) && errors.As(err, new(*proc.CommandError)):
		return "unmount or close the device, or add --force, which fails I/O in flight"
	case isUsage(err):
		return "see krpingctl help, or --help of a command"
	}
	return ""
}

// deniedHint returns the reason if this process has less than root's rights.
func deniedHint() string {
	why, fix := kernel.Denied()
	if why == "" {
		return ""
	}
	return why + ": " + fix
}

func addressHint() string {
	links, err := rdmalink.List()
	if err != nil {
		return ""
	}
	if len(links) == 0 {
		return "this host has no RDMA device: create a Soft-RoCE device with `modprobe rdma_rxe && krpingctl link add rxe0 --netdev eth0`"
	}
	var names []string
	for _, l := range links {
		for _, p := range l.Ports {
			names = append(names, fmt.Sprintf("%s on %s (%s)", l.PortName(p), emptyAs(p.Netdev, "no network device"), p.State))
		}
	}
	return "no RDMA device serves or reaches that address; this host's devices: " + strings.Join(names, ", ")
}
