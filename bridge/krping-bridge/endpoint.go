// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/verbs"
)

// listenInterval is the time between attempts to listen while there is no RDMA device.
const listenInterval = time.Second

// endpoint is an address that the bridge listens on whenever an RDMA device has it.
type endpoint struct {
	log      zerolog.Logger
	addr     netip.AddrPort
	manager  *manager
	refuse   verbs.Refusal
	serve    func(context.Context, *verbs.Request) // until the connection or the context ends
	announce func(where string)                    // called when it listens for the first time

	listener *verbs.Listener // nil if there is no device
	device   string
	served   bool // it has listened before
}

// listen listens, if that is possible now.
func (e *endpoint) listen() error {
	l, err := verbs.Listen(e.addr, e.refuse)
	if err != nil {
		e.manager.set(e, fmt.Sprintf("not listening on %s: %v", e.addr, reasonOf(err)))
		return err
	}
	e.listener, e.device = l, deviceName(l.Device())
	e.manager.set(e, fmt.Sprintf("listening on %s (%s)", e.addr, e.device))
	return nil
}

// start listens. With wait, an RDMA device that does not exist yet is no error: run waits for it.
func (e *endpoint) start(wait bool) error {
	err := e.listen()
	if wait && (errors.Is(err, verbs.ErrNoDevice) || errors.Is(err, verbs.ErrNoManager)) {
		return nil
	}
	return explainListen(err)
}

// run serves clients until ctx ends.
func (e *endpoint) run(ctx context.Context) error {
	for e.await(ctx) {
		e.tell()
		err := e.accept(ctx)
		e.listener = nil
		if ctx.Err() != nil {
			return nil
		}
		e.log.Error().Str("device", e.device).Msg(err.Error())
		e.manager.set(e, fmt.Sprintf("not listening on %s: %v", e.addr, err))
	}
	return nil
}

// await listens as soon as that is possible. It returns false when ctx has ended.
func (e *endpoint) await(ctx context.Context) bool {
	ticker := time.NewTicker(listenInterval)
	defer ticker.Stop()
	for reported := ""; e.listener == nil; {
		err := e.listen()
		if err == nil {
			return true
		}
		if reason := reasonOf(err); reason != reported {
			e.log.Warn().Msg("not listening: " + reason)
			reported = reason
		}
		select {
		case <-ctx.Done():
			return false
		case <-ticker.C:
		}
	}
	return true
}

// tell tells the user that it listens.
func (e *endpoint) tell() {
	if e.served {
		e.log.Info().Str("device", e.device).Msg("serving again")
		return
	}
	e.served = true
	e.announce(fmt.Sprintf("%s (%s)", e.addr, e.device))
}

// accept calls serve for each connect request, in a goroutine, until ctx ends or the listener does. Then
// it ends the connections, and waits until they are released.
func (e *endpoint) accept(ctx context.Context) error {
	connections, end := context.WithCancel(ctx)
	defer end()
	stop := context.AfterFunc(ctx, e.listener.StopAccepting)
	defer stop()
	var clients sync.WaitGroup
	for {
		request, err := e.listener.Accept()
		if err != nil {
			end()
			clients.Wait()
			e.listener.Close()
			return err
		}
		clients.Go(func() { e.serve(connections, request) })
	}
}

// close ends an endpoint that is not run.
func (e *endpoint) close() {
	if e.listener != nil {
		e.listener.Close()
	}
}

// reasonOf returns why listening failed, without the address.
func reasonOf(err error) string {
	for _, reason := range []error{verbs.ErrNoDevice, verbs.ErrNoManager, verbs.ErrAddrInUse} {
		if errors.Is(err, reason) {
			return reason.Error()
		}
	}
	return err.Error()
}

func explainListen(err error) error {
	if errors.Is(err, verbs.ErrNoDevice) {
		return fmt.Errorf("%w (`rdma link` lists RDMA devices; `krpingctl link add rxe0 --netdev eth0` creates a Soft-RoCE device; --wait waits for one)", err)
	}
	return err
}

func deviceName(name string) string {
	if name == "" {
		return "all RDMA devices"
	}
	return name
}
