// SPDX-License-Identifier: Apache-2.0

// Package systemd tells systemd what a program does, if systemd has started it with Type=notify.
package systemd

import (
	"time"

	"github.com/coreos/go-systemd/v22/daemon"
	"github.com/rs/zerolog"
)

// States to Notify of.
const (
	Ready     = daemon.SdNotifyReady
	Reloading = daemon.SdNotifyReloading
	Stopping  = daemon.SdNotifyStopping
	Alive     = daemon.SdNotifyWatchdog // answers the watchdog
)

// Notify sends states, separated by newlines. A failure is logged.
func Notify(log zerolog.Logger, states string) {
	if _, err := daemon.SdNotify(false, states); err != nil {
		log.Warn().Err(err).Msg("cannot notify systemd")
	}
}

// Watchdog returns a channel that tells when to notify systemd's watchdog that the program is Alive. Without a
// watchdog it never does.
func Watchdog() <-chan time.Time {
	limit, err := daemon.SdWatchdogEnabled(false)
	if err != nil || limit <= 0 {
		return nil
	}
	return time.Tick(limit / 3)
}
