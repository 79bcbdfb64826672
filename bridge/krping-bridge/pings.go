// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rs/zerolog"

	"krping/bridge/cli"
	"krping/bridge/input"
	"krping/bridge/pingpong"
	"krping/bridge/verbs"
	"krping/bridge/wire"
)

const (
	pingTimeout = 10 * time.Second // the module's default
	maxPings    = 256              // concurrent connections
)

// addPings adds the endpoints of ping/pong clients.
func (b *bridge) addPings(ctx context.Context, o options) error {
	size, err := input.Size(o.pingSize)
	if err != nil || size < 1 || size > math.MaxInt32 {
		return cli.Usagef("--ping-max-size %s: must be 1 byte to 2 GiB, like 2MiB", o.pingSize)
	}
	server := pingpong.Server{MaxSize: uint32(size), Timeout: pingTimeout, Allow: b.allow}
	warnings := limited(b.log)
	slots := make(chan struct{}, maxPings)
	serve := func(ctx context.Context, r *verbs.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			answer(ctx, b.log, warnings, server, b.memory, r)
		default:
			refuse(warnings, r, &wire.Reject{Reason: wire.RejectBusy, Value: maxPings, Detail: "too many ping clients"})
		}
	}
	e := endpoint{
		refuse:   func([]byte) []byte { return (&wire.Reject{Version: 1, Reason: wire.RejectResources}).Append(nil) },
		serve:    serve,
		announce: func(where string) { fmt.Printf("answering pings on %s\n", where) },
	}
	for _, addr := range o.ping {
		if err := b.add(ctx, "--ping", addr, e); err != nil {
			return err
		}
	}
	return nil
}

func refuse(warnings zerolog.Logger, request *verbs.Request, reject *wire.Reject) {
	reject.Version = 1 // of the ping/pong protocol
	warnings.Warn().Str("peer", request.Peer()).Msg(reject.Error())
	request.Reject(reject.Append(nil))
}

// answer serves one ping/pong client until it disconnects.
func answer(ctx context.Context, log, warnings zerolog.Logger, server pingpong.Server, memory *verbs.Budget, request *verbs.Request) {
	peer := request.Peer()
	hello, err := server.Admit(request.Private, request.Addr())
	var reject *wire.Reject
	if errors.As(err, &reject) {
		refuse(warnings, request, reject)
		return
	}
	conn, err := request.Accept(nil, verbs.Config{
		Receives:   2,
		MaxMessage: 2 * wire.PingMessageSize, // so that a message that is too long is noticed
		Buffers:    1,
		MaxData:    int(hello.Size),
		Budget:     memory,
	})
	if err != nil {
		warnings.Error().Str("peer", peer).Err(err).Msg("connection not accepted")
		return
	}
	stop := context.AfterFunc(ctx, conn.Close)
	pings, err := server.Serve(conn, hello)
	stop()
	conn.Release()
	event := log.Debug()
	if err != nil && ctx.Err() == nil {
		event = warnings.Warn().Err(err)
	}
	event.Str("peer", peer).Uint64("pings", pings).Msg("ping client has ended")
}
