// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"
	"github.com/prometheus/exporter-toolkit/web"
	"github.com/rs/zerolog"

	"krping/agent/service/config"
)

const (
	maxScrapes = 8 // at a time: each reads all sources
	// writeTimeout is how long a request may take until its response is written. The stream of the web
	// page sets a deadline for each sample instead.
	writeTimeout = 30 * time.Second
)

// mux returns the handler of all that the agent serves. All of it is read-only. A streaming
// response must end when the context of its request ends.
func (a *agent) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{
		EnableOpenMetrics:   true,
		ErrorHandling:       promhttp.ContinueOnError, // a failed source must not hide the others
		ErrorLog:            log.New(a.Log, "", 0),
		MaxRequestsInFlight: maxScrapes,
	}))
	mux.Handle("GET /", a.page)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // fails if the client has disconnected
	})
	return mux
}

// endpoint is a server at one address.
type endpoint struct {
	address config.Address
	server  *http.Server
}

// serve listens at the address and serves in the background. An error while serving ends the agent.
func (a *agent) serve(address config.Address) (*endpoint, error) {
	l, err := listen(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &endpoint{address, a.newServer(ctx, address)}
	e.server.RegisterOnShutdown(cancel)
	a.running.Go(func() {
		flags := &web.FlagConfig{WebConfigFile: &address.Web}
		log := slog.New(zerolog.NewSlogHandler(a.Log.Level(zerolog.WarnLevel)))
		if err := web.Serve(l, e.server, flags, log); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			a.broken <- err
		}
	})
	return e, nil
}

// newServer returns a server for an address. ctx is that of its requests.
func (a *agent) newServer(ctx context.Context, address config.Address) *http.Server {
	return &http.Server{
		Handler: onlyByAddress(address, a.mux()), ErrorLog: log.New(a.Log, "", 0), BaseContext: func(net.Listener) context.Context { return ctx },
		ReadHeaderTimeout: 5 * time.Second, WriteTimeout: writeTimeout, IdleTimeout: 2 * time.Minute,
	}
}

// close stops serving. Running requests have one second to finish.
func (e *endpoint) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := e.server.Shutdown(ctx); err != nil {
		return e.server.Close()
	}
	return nil
}
