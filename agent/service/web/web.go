// SPDX-License-Identifier: Apache-2.0

// Package web serves the agent's web page: live throughput, a latency heat map, and the sessions.
// It has no authentication: serve it at a Unix socket or a loopback address. It is read-only, and
// the page loads nothing from other hosts.
package web

import (
	"embed"
	"io/fs"
	"net/http"

	"krping/agent/stats/sampler"
)

//go:embed static
var embedded embed.FS

// policy lets the page load only its own files.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Page serves the page at / and samples, as server-sent events, at /api/live. Links in the page are
// relative, so that it works behind a proxy that strips a path prefix.
type Page struct {
	mux  *http.ServeMux
	feed feed
}

// New returns a Page without samples.
func New() *Page {
	files, err := fs.Sub(embedded, "static")
	if err != nil {
		panic(err) // the name is a constant
	}
	p := &Page{mux: http.NewServeMux()}
	p.mux.Handle("GET /", http.FileServerFS(files))
	p.mux.HandleFunc("GET /api/live", p.feed.serve)
	return p
}

// ServeHTTP implements http.Handler.
func (p *Page) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-cache")
	p.mux.ServeHTTP(w, r)
}

// Publish sends a sample to all clients and keeps it for later ones. It does not wait for clients.
func (p *Page) Publish(s sampler.Sample) error { return p.feed.publish(s) }

// Close ends all streams, which would otherwise block http.Server.Shutdown, and refuses new ones.
func (p *Page) Close() { p.feed.close() }
