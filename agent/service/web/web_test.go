// SPDX-License-Identifier: Apache-2.0

package web

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"krping/agent/stats/sampler"
)

var start = time.Date(2026, 11, 21, 7, 0, 0, 0, time.UTC)

// sample returns the sample of a time in seconds after start.
func sample(second int) sampler.Sample {
	return sampler.Sample{Time: start.Add(time.Duration(second) * time.Second), Interval: time.Second, Loaded: true}
}

func publish(t *testing.T, p *Page, s sampler.Sample) {
	t.Helper()
	if err := p.Publish(s); err != nil {
		t.Fatal(err)
	}
}

func serve(t *testing.T, p *Page) string {
	t.Helper()
	server := httptest.NewServer(p)
	t.Cleanup(func() {
		p.Close()
		server.Close()
	})
	return server.URL
}

// get requests a URL. The body is closed at the end of the test.
func get(t *testing.T, url, lastEventID string) *http.Response {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	if lastEventID != "" {
		request.Header.Set("Last-Event-ID", lastEventID)
	}
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = response.Body.Close()
		cancel()
	})
	return response
}

// stream reads samples from a response.
type stream struct {
	t     *testing.T
	lines *bufio.Scanner
}

func follow(t *testing.T, url, lastEventID string) stream {
	t.Helper()
	response := get(t, url+"/api/live", lastEventID)
	if kind := response.Header.Get("Content-Type"); response.StatusCode != http.StatusOK || kind != "text/event-stream" {
		t.Fatalf("%s, %s", response.Status, kind)
	}
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	return stream{t, lines}
}

// field returns the value of the next line with that field of an event.
func (s stream) field(name string) string {
	s.t.Helper()
	for s.lines.Scan() {
		if value, found := bytes.CutPrefix(s.lines.Bytes(), []byte(name+": ")); found {
			return string(value)
		}
	}
	s.t.Fatalf("the stream has ended: %v", s.lines.Err())
	return ""
}

// id returns the time in the id of the next event, in seconds after start.
func (s stream) id() int {
	s.t.Helper()
	ms, err := strconv.ParseInt(s.field("id"), 10, 64)
	if err != nil {
		s.t.Fatal(err)
	}
	return int(time.UnixMilli(ms).Sub(start) / time.Second)
}

// second returns the time of the next sample, in seconds after start.
func (s stream) second() int {
	s.t.Helper()
	id := s.id()
	var sample sampler.Sample
	if err := json.Unmarshal([]byte(s.field("data")), &sample); err != nil {
		s.t.Fatal(err)
	}
	second := int(sample.Time.Sub(start) / time.Second)
	if second != id {
		s.t.Errorf("the sample of second %d has the id of second %d", second, id)
	}
	return second
}

func TestFiles(t *testing.T) {
	url := serve(t, New())
	for path, kind := range map[string]string{
		"/": "text/html; charset=utf-8", "/page.js": "text/javascript; charset=utf-8", "/style.css": "text/css; charset=utf-8",
		"/uPlot.iife.min.js": "text/javascript; charset=utf-8", "/uPlot.LICENSE": "text/plain; charset=utf-8", "/icon.svg": "image/svg+xml",
	} {
		r := get(t, url+path, "")
		if got := r.Header.Get("Content-Type"); r.StatusCode != http.StatusOK || got != kind {
			t.Errorf("%s: %s, %s, want %s", path, r.Status, got, kind)
		}
		for name, want := range map[string]string{"Content-Security-Policy": policy, "X-Content-Type-Options": "nosniff"} {
			if got := r.Header.Get(name); got != want {
				t.Errorf("%s: %s is %q", path, name, got)
			}
		}
	}
	if r := get(t, url+"/nosuch", ""); r.StatusCode != http.StatusNotFound {
		t.Errorf("/nosuch: %s", r.Status)
	}
	r, err := http.Post(url+"/api/live", "text/plain", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Body.Close()
	if r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %s", r.Status)
	}
}

// All links of the page are relative and can be loaded.
func TestLinksAreRelative(t *testing.T) {
	url := serve(t, New())
	body, err := io.ReadAll(get(t, url, "").Body)
	if err != nil {
		t.Fatal(err)
	}
	links := regexp.MustCompile(`(?:src|href)="([^"]*)"`).FindAllStringSubmatch(string(body), -1)
	if len(links) < 4 {
		t.Errorf("links: %q", links)
	}
	for _, link := range links {
		if strings.HasPrefix(link[1], "/") || strings.Contains(link[1], ":") {
			t.Errorf("%q is not relative", link[1])
		}
		if r := get(t, url+"/"+link[1], ""); r.StatusCode != http.StatusOK {
			t.Errorf("%s: %s", link[1], r.Status)
		}
	}
}

func TestHistoryThenNewSamples(t *testing.T) {
	p := New()
	url := serve(t, p)
	for i := range 400 {
		publish(t, p, sample(i))
	}
	s := follow(t, url, "")
	for want := 99; want < 400; want++ {
		if got := s.second(); got != want {
			t.Fatalf("second %d, want %d: five minutes, oldest first", got, want)
		}
	}
	publish(t, p, sample(400))
	if got := s.second(); got != 400 {
		t.Errorf("second %d, want 400", got)
	}
}

func TestReconnectGetsMissedSamples(t *testing.T) {
	p := New()
	url := serve(t, p)
	for i := range 10 {
		publish(t, p, sample(i))
	}
	s := follow(t, url, "1795244406000") // second 6 after the start
	if got := s.second(); got != 7 {
		t.Errorf("second %d, want 7", got)
	}
}

func TestSlowClientIsDropped(t *testing.T) {
	p := New()
	_, client, err := p.feed.join(time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range backlog + 1 {
		publish(t, p, sample(i))
	}
	n := 0
	for range client {
		n++
	}
	if n != backlog || len(p.feed.clients) != 0 {
		t.Errorf("it got %d samples, want %d; %d clients are left, want 0", n, backlog, len(p.feed.clients))
	}
	p.feed.leave(client) // as its handler does
}

// A client that reads nothing is dropped and does not delay others.
func TestClientThatReadsNothing(t *testing.T) {
	p := New()
	url := serve(t, p)
	big := sample(0)
	big.Problems = []string{strings.Repeat("x", 1<<20)}
	follow(t, url, "")
	quick := follow(t, url, "")
	quick.lines.Buffer(nil, 4<<20)
	for i := range 2 * backlog {
		big.Time = start.Add(time.Duration(i) * time.Second)
		publish(t, p, big)
		if got := quick.id(); got != i {
			t.Fatalf("second %d, want %d", got, i)
		}
	}
	p.feed.mu.Lock()
	defer p.feed.mu.Unlock()
	if n := len(p.feed.clients); n != 1 {
		t.Errorf("%d clients are left, want one, which reads", n)
	}
}

func TestMemoryIsBounded(t *testing.T) {
	p := New()
	big := sample(0)
	big.Problems = []string{strings.Repeat("x", 1<<20)}
	for range 20 {
		publish(t, p, big)
	}
	sum := 0
	for _, e := range p.feed.past {
		sum += len(e.text)
	}
	if sum != p.feed.bytes || sum > keepBytes || len(p.feed.past) != 15 {
		t.Errorf("%d samples of %d bytes are kept", len(p.feed.past), sum)
	}
	big.Problems[0] = strings.Repeat("x", keepBytes+1)
	publish(t, p, big)
	if len(p.feed.past) != 0 || p.feed.bytes != 0 {
		t.Errorf("%d samples of %d bytes are kept", len(p.feed.past), p.feed.bytes)
	}
}

func TestTooManyClients(t *testing.T) {
	p := New()
	url := serve(t, p)
	for range maxClients {
		if _, _, err := p.feed.join(time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	if r := get(t, url+"/api/live", ""); r.StatusCode != http.StatusServiceUnavailable {
		t.Errorf("one more: %s", r.Status)
	}
}

func TestCloseEndsStreams(t *testing.T) {
	p := New()
	server := httptest.NewServer(p)
	server.Config.RegisterOnShutdown(p.Close)
	follow(t, server.URL, "")
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := server.Config.Shutdown(ctx); err != nil {
		t.Errorf("shutdown with a client: %v", err)
	}
	recorder := httptest.NewRecorder()
	p.ServeHTTP(recorder, httptest.NewRequest(http.MethodGet, "/api/live", nil))
	if recorder.Code != http.StatusServiceUnavailable {
		t.Errorf("request after Close: %d, want %d", recorder.Code, http.StatusServiceUnavailable)
	}
}
