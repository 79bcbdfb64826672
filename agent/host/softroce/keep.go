// SPDX-License-Identifier: Apache-2.0

// Package softroce keeps a Soft-RoCE device on a network device: it makes the device when the network
// device is there, and makes it anew when it makes no connections any more.
package softroce

import (
	"context"
	"fmt"
	"time"

	"github.com/rs/zerolog"

	"krping/agent/host/kernel"
)

// Host is what a Keeper reads of the host, and does to it.
type Host interface {
	// Netdev returns the state of a network device; the zero value if there is none of that name.
	Netdev(name string) (Netdev, error)
	// Device returns the name of the Soft-RoCE device of a network device, "" if it has none.
	Device(netdev string) (string, error)
	// Dead returns why a Soft-RoCE device makes no connections any more, "" if it does. With try, it may
	// also try to make one, which takes seconds if it does not succeed.
	Dead(ctx context.Context, device string, try bool) (string, error)
	Add(ctx context.Context, device, netdev string) error
	// Del waits until all programs have closed the device.
	Del(device string) error
}

// Netdev is the state of a network device.
type Netdev struct {
	Exists  bool
	Up      bool   // with a carrier
	Changes uint64 // of the carrier
}

// Keeper keeps the device of a network device.
type Keeper struct {
	Netdev string
	Name   string // of a device that it makes
	Host   Host
	Log    zerolog.Logger
	State  func(text string) // called when what it does has changed

	state   string
	before  Netdev
	suspect time.Time // when the network device was last down
	tried   time.Time // when Dead was last called with try
	kept    string    // the device
}

const (
	lookInterval = time.Second
	slowDel      = 5 * time.Second

	// Linux before 6.4 does not show that a device is dead. There a connection is tried after the network
	// device was down.
	suspectTime = 20 * time.Second
	tryInterval = 5 * time.Second
)

// Run keeps the device until ctx ends, and deletes it then.
func (k *Keeper) Run(ctx context.Context) error {
	ticker := time.NewTicker(lookInterval)
	defer ticker.Stop()
	for {
		k.look(ctx, time.Now())
		select {
		case <-ctx.Done():
			if k.kept == "" {
				return nil
			}
			return k.del("deleted")
		case <-ticker.C:
		}
	}
}

// look makes what is missing.
func (k *Keeper) look(ctx context.Context, now time.Time) {
	text, err := k.mend(ctx, now)
	if ctx.Err() != nil {
		return
	}
	if err != nil {
		text = err.Error()
	}
	if text == k.state {
		return
	}
	k.state = text
	if err != nil {
		event := k.Log.Error()
		if fix := kernel.Fix(err); fix != "" {
			event = event.Str("fix", fix)
		}
		event.Msg(text)
	} else {
		k.Log.Info().Msg(text)
	}
	k.State(text)
}

func (k *Keeper) mend(ctx context.Context, now time.Time) (string, error) {
	n, err := k.Host.Netdev(k.Netdev)
	if err != nil {
		return "", err
	}
	if !n.Up || n.Changes != k.before.Changes {
		k.suspect = now
	}
	k.before = n
	if k.kept, err = k.Host.Device(k.Netdev); err != nil {
		return "", err
	}
	switch {
	case !n.Exists:
		return fmt.Sprintf("no network device %s", k.Netdev), nil
	case k.kept == "":
		return k.add(ctx, k.Name)
	case !n.Up: // a new device would be dead at once
		return fmt.Sprintf("%s on %s, which is down or has no carrier", k.kept, k.Netdev), nil
	}
	why, err := k.dead(ctx, now)
	if err != nil || why == "" {
		return k.text(), err
	}
	k.Log.Warn().Str("device", k.kept).Str("netdev", k.Netdev).
		Msg("makes no connections any more: " + why + "; making it anew")
	name := k.kept
	if err := k.del("deleted, to be made anew"); err != nil {
		return "", err
	}
	return k.add(ctx, name)
}

func (k *Keeper) dead(ctx context.Context, now time.Time) (string, error) {
	try := now.Sub(k.suspect) < suspectTime && now.Sub(k.tried) >= tryInterval
	if try {
		k.tried = now
	}
	return k.Host.Dead(ctx, k.kept, try)
}

func (k *Keeper) add(ctx context.Context, name string) (string, error) {
	if err := k.Host.Add(ctx, name, k.Netdev); err != nil {
		return "", err
	}
	k.Log.Info().Str("device", name).Str("netdev", k.Netdev).Msg("made")
	k.kept = name
	return k.text(), nil
}

func (k *Keeper) text() string { return fmt.Sprintf("%s on %s", k.kept, k.Netdev) }

// del deletes the device.
func (k *Keeper) del(what string) error {
	log := k.Log.With().Str("device", k.kept).Logger()
	slow := time.AfterFunc(slowDel, func() { log.Warn().Msg("waiting until all programs have closed the device") })
	defer slow.Stop()
	if err := k.Host.Del(k.kept); err != nil {
		return err
	}
	log.Info().Msg(what)
	k.kept = ""
	return nil
}
