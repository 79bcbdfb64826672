// SPDX-License-Identifier: Apache-2.0

// Package web is the agent's page: live throughput, a latency heat map, the sessions. It is a
// handler for a server that listens on a Unix socket or on 127.0.0.1, and knows no users: whoever
// reaches it may read it, and can change nothing. All that the page loads comes from here.
package web

import (
	"embed"
	"io/fs"
	"net/http"

	"krping/agent/stats/sampler"
)

//go:embed static
var embedded embed.FS

// policy lets the page load its own files, and nothing else from anywhere.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// Page serves the page at / and the samples, as server-sent events, at /api/live. Its own links are
// relative, so that it may be mounted below a prefix that is stripped.
type Page struct {
	mux  *http.ServeMux
	feed feed
}

// New returns a page without samples.
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

// Publish sends a sample to all who look at the page, and keeps it for those who come later. It
// does not wait for them. A sampler's Run may call it.
func (p *Page) Publish(s sampler.Sample) error { return p.feed.publish(s) }

// Close ends the streams, which else would keep http.Server.Shutdown waiting. Later ones are
// refused.
func (p *Page) Close() { p.feed.close() }
