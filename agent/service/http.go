// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"errors"
	"io"
	"log"
	"net"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus/promhttp"

	"krping/agent/service/config"
)

// mux has all that the agent serves, at whatever address: new pages are added here. Nothing of it
// changes anything. A response that has no end has to end with its request's context.
func (a *agent) mux() *http.ServeMux {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(a.registry, promhttp.HandlerOpts{
		EnableOpenMetrics: true,
		ErrorHandling:     promhttp.ContinueOnError, // what cannot be read hides nothing else
		ErrorLog:          log.New(a.Log, "", 0),
	}))
	mux.Handle("GET /", a.page)
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "ok\n") // who asked may be gone
	})
	return mux
}

// endpoint is a server at one address.
type endpoint struct {
	address config.Address
	server  *http.Server
}

// serve listens at the address and serves in the background. An error of that ends the agent.
func (a *agent) serve(address config.Address) (*endpoint, error) {
	l, err := listen(address)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	e := &endpoint{address, &http.Server{
		Handler: onlyByAddress(address, a.mux()), ErrorLog: log.New(a.Log, "", 0), ReadHeaderTimeout: 5 * time.Second, IdleTimeout: 2 * time.Minute,
		BaseContext: func(net.Listener) context.Context { return ctx },
	}}
	e.server.RegisterOnShutdown(cancel)
	a.running.Go(func() {
		if err := e.server.Serve(l); !errors.Is(err, http.ErrServerClosed) && !errors.Is(err, net.ErrClosed) {
			a.broken <- err
		}
	})
	return e, nil
}

// close lets requests that are under way have a second.
func (e *endpoint) close() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if err := e.server.Shutdown(ctx); err != nil {
		return e.server.Close()
	}
	return nil
}
