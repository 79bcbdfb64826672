// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sync/semaphore"

	"krping/bridge/cli"
	"krping/bridge/input"
	"krping/bridge/pingpong"
	"krping/bridge/verbs"
	"krping/bridge/verbstest"
	"krping/bridge/wire"
)

const pingTimeout = 10 * time.Second // the module's default

// Default of --ping-max-connections: one for so many bytes of the memory for connections, within these limits.
// Each takes a queue pair, two files and two goroutines, and a running verbs test a thread.
const (
	memoryPerPing = 512 << 10
	leastPings    = 256
	mostPings     = 4096
	limitPings    = 16384 // half as many verbs tests are less than the threads that a Go program may have
)

// pings is what the ping/pong clients have in common.
type pings struct {
	warnings zerolog.Logger
	log      zerolog.Logger
	server   pingpong.Server
	verbs    verbstest.Server
	memory   *verbs.Budget
	limit    int                 // of connections, and of queue pairs of verbs tests
	places   *semaphore.Weighted // as many
}

// addPings adds the endpoints of ping/pong clients.
func (b *bridge) addPings(ctx context.Context, o options) error {
	size, err := input.Size(o.pingSize)
	if err != nil || size < 1 || size > math.MaxInt32 {
		return cli.Usagef("--ping-max-size %s: must be 1 byte to 2 GiB, like 2MiB", o.pingSize)
	}
	limit := o.pingConnections
	if limit == 0 {
		limit = int(min(max(b.memory.Limit()/memoryPerPing, leastPings), mostPings))
	}
	if limit < 1 || limit > limitPings {
		return cli.Usagef("--ping-max-connections %d: must be 1 to %d", limit, limitPings)
	}
	p := &pings{
		warnings: limited(b.log), log: b.log, memory: b.memory, limit: limit, places: semaphore.NewWeighted(int64(limit)),
		server: pingpong.Server{MaxSize: uint32(size), Timeout: pingTimeout, Allow: b.allow},
		verbs:  verbstest.Server{MaxSize: uint32(size), Timeout: pingTimeout, Allow: b.allow, Poll: o.pingPoll},
	}
	e := endpoint{
		refuse:   func([]byte) []byte { return (&wire.Reject{Version: 1, Reason: wire.RejectResources}).Append(nil) },
		serve:    p.serve,
		announce: func(where string) { fmt.Printf("answering pings on %s\n", where) },
	}
	for _, addr := range o.ping {
		if err := b.add(ctx, "--ping", addr, e); err != nil {
			return err
		}
	}
	return nil
}

// serve serves a client until it disconnects.
func (p *pings) serve(ctx context.Context, r *verbs.Request) {
	if wire.IsVerbsHello(r.Private) {
		p.test(ctx, r)
	} else if p.take(r, 1) {
		defer p.places.Release(1)
		p.answer(ctx, r)
	}
}

// take takes n places, or rejects the client.
func (p *pings) take(r *verbs.Request, n int) bool {
	if p.places.TryAcquire(int64(n)) {
		return true
	}
	refuse(p.warnings, r, &wire.Reject{Reason: wire.RejectBusy, Value: uint32(p.limit), Detail: "too many ping clients"})
	return false
}

// test runs a verbs test, or hands the connection over to one that runs.
func (p *pings) test(ctx context.Context, request *verbs.Request) {
	peer := request.Peer()
	ability, err := request.Ability()
	if err != nil {
		p.warnings.Error().Str("peer", peer).Err(err).Msg("connection not accepted")
		refuse(p.warnings, request, &wire.Reject{Reason: wire.RejectResources, Detail: err.Error()})
		return
	}
	session, err := p.verbs.Admit(request.Private, request.Addr(), ability, request)
	if reject := (*wire.Reject)(nil); errors.As(err, &reject) {
		refuse(p.warnings, request, reject)
	}
	if session == nil {
		return
	}
	defer session.Leave()
	places := 1 + int(session.Hello.QPs)
	if !p.take(request, places) {
		return
	}
	defer p.places.Release(int64(places))
	conn, err := request.Accept(nil, verbs.Config{
		Receives: session.ControlDepth(), MaxMessage: wire.VerbsMessageSize,
		Buffers: 1, MaxData: wire.VerbsMessageSize, Budget: p.memory,
	})
	if err != nil {
		p.warnings.Error().Str("peer", peer).Err(err).Msg("connection not accepted")
		return
	}
	result, err := session.Serve(ctx, withVerbsFaults(conn, session.Hello.Size))
	conn.Release()
	event := p.log.Debug()
	if err != nil && ctx.Err() == nil {
		event = p.warnings.Warn().Err(err)
	}
	event.Str("peer", peer).Stringer("test", result).Msg("verbs test has ended")
}

func refuse(warnings zerolog.Logger, request *verbs.Request, reject *wire.Reject) {
	reject.Version = 1 // of the ping/pong protocol
	warnings.Warn().Str("peer", request.Peer()).Msg(reject.Error())
	request.Reject(reject.Append(nil))
}

// answer serves one ping/pong client until it disconnects.
func (p *pings) answer(ctx context.Context, request *verbs.Request) {
	peer := request.Peer()
	hello, err := p.server.Admit(request.Private, request.Addr())
	var reject *wire.Reject
	if errors.As(err, &reject) {
		refuse(p.warnings, request, reject)
		return
	}
	conn, err := request.Accept(nil, verbs.Config{
		Receives:   2,
		MaxMessage: 2 * wire.PingMessageSize, // so that a message that is too long is noticed
		Buffers:    1,
		MaxData:    int(hello.Size),
		Budget:     p.memory,
	})
	if err != nil {
		p.warnings.Error().Str("peer", peer).Err(err).Msg("connection not accepted")
		return
	}
	stop := context.AfterFunc(ctx, conn.Close)
	pings, err := p.server.Serve(conn, hello)
	stop()
	conn.Release()
	event := p.log.Debug()
	if err != nil && ctx.Err() == nil {
		event = p.warnings.Warn().Err(err)
	}
	event.Str("peer", peer).Uint64("pings", pings).Msg("ping client has ended")
}
