// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"

	"krping/proc"
)

// followKernel logs the module's new messages in the kernel log, until ctx ends.
func (a *agent) followKernel(ctx context.Context) {
	kmsg, err := a.FS.OpenKmsg(true)
	if err != nil {
		a.Log.Warn().Err(err).Msg("cannot follow the module's messages")
		return
	}
	defer kmsg.Close()
	lost := 0
	for {
		m, err := kmsg.Wait(ctx)
		if kmsg.Lost > lost {
			lost = kmsg.Lost
			a.Log.Warn().Int("times", lost).Msg("the kernel log was overwritten before it was read: messages of the module may be missing")
		}
		switch {
		case err == nil:
			a.event(m)
		case errors.Is(err, context.Canceled):
			return
		default:
			a.Log.Warn().Err(err).Msg("no longer following the module's messages")
			return
		}
	}
}

// event logs and counts a message of the module.
func (a *agent) event(m proc.Message) {
	level, severity := levelOf(m.Level)
	a.messages.WithLabelValues(m.Subject, severity).Inc()
	event := a.Log.WithLevel(level).Str("source", "kernel")
	switch {
	case m.PID != 0:
		event = event.Str("subject", m.Subject).Int("pid", m.PID)
	case m.Subject == "module":
		event = event.Str("subject", m.Subject)
	default:
		event = event.Str("session", m.Subject)
	}
	if m.Peer != "" {
		event = event.Str("peer", m.Peer)
	}
	event.Uint64("sequence", m.Sequence).Msg(m.Text)
}
