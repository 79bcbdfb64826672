// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"krping/agent/service/config"
	"krping/agent/stats/sampler"
)

// blocked is a source of metrics whose reads wait until it is closed.
type blocked struct {
	reads   chan struct{} // one for each read that has begun
	release chan struct{}
}

func (b blocked) Describe(c chan<- *prometheus.Desc) {
	c <- prometheus.NewDesc("blocked", "A metric.", nil, nil)
}

func (b blocked) Collect(chan<- prometheus.Metric) {
	b.reads <- struct{}{}
	<-b.release
}

// Many scrapes at a time are refused, so that a source that blocks does not hold ever more of them.
func TestTooManyScrapes(t *testing.T) {
	source := blocked{make(chan struct{}, maxScrapes+1), make(chan struct{})}
	a := newAgent(Options{})
	a.registry = prometheus.NewRegistry()
	a.registry.MustRegister(source)
	mux := a.mux()
	scrape := func() int {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		return w.Code
	}
	var scrapes sync.WaitGroup
	for range maxScrapes {
		scrapes.Go(func() {
			if code := scrape(); code != http.StatusOK {
				t.Errorf("one of %d scrapes: %d", maxScrapes, code)
			}
		})
	}
	for range maxScrapes {
		<-source.reads
	}
	more := make(chan int, 1)
	go func() { more <- scrape() }()
	select {
	case code := <-more:
		if code != http.StatusServiceUnavailable {
			t.Errorf("one more scrape: %d, want %d", code, http.StatusServiceUnavailable)
		}
	case <-source.reads:
		t.Error("one more scrape is served")
	}
	close(source.release)
	scrapes.Wait()
	if code := scrape(); code != http.StatusOK {
		t.Errorf("a scrape after them: %d", code)
	}
}

// pipes is a listener whose connections are made by dial, in this process.
type pipes chan net.Conn

func (p pipes) Accept() (net.Conn, error) {
	if conn, open := <-p; open {
		return conn, nil
	}
	return nil, net.ErrClosed
}

func (p pipes) Close() error   { return nil }
func (p pipes) Addr() net.Addr { return new(net.UnixAddr) }

// dial returns a connection over which it has requested a path.
func (p pipes) dial(t *testing.T, path string) net.Conn {
	t.Helper()
	ours, theirs := net.Pipe()
	p <- theirs
	if _, err := io.WriteString(ours, "GET "+path+" HTTP/1.1\r\nHost: agent\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	return ours
}

// serveInPipes serves in a test's own time until the test ends.
func serveInPipes(t *testing.T, a *agent) pipes {
	p := make(pipes)
	server := a.newServer(t.Context(), config.Address{Network: "unix"})
	go func() { _ = server.Serve(p) }() // ends with p
	t.Cleanup(func() {
		close(p)
		_ = server.Close()
	})
	return p
}

// A client that reads nothing does not hold its connection.
func TestClientThatReadsNothingIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		conn := serveInPipes(t, newAgent(Options{})).dial(t, "/healthz")
		defer conn.Close()
		time.Sleep(writeTimeout + time.Second)
		synctest.Wait()
		_ = conn.SetReadDeadline(time.Now().Add(time.Second))
		if got, err := io.ReadAll(conn); len(got) > 0 || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Errorf("after %v: %q, %v, want a closed connection", writeTimeout, got, err)
		}
	})
}

// The samples of the web page go on for longer than another request may take.
func TestSamplesGoOn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := newAgent(Options{})
		conn := serveInPipes(t, a).dial(t, "/api/live")
		defer conn.Close()
		synctest.Wait() // until it waits for samples
		response, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(response.Body)
		for range 3 * writeTimeout / time.Second {
			time.Sleep(time.Second)
			at := time.Now()
			if err := a.page.Publish(sampler.Sample{Time: at}); err != nil {
				t.Fatal(err)
			}
			for want := fmt.Sprintf("id: %d", at.UnixMilli()); lines.Scan() && lines.Text() != want; {
			}
			if lines.Err() != nil || !strings.HasPrefix(lines.Text(), "id: ") {
				t.Fatalf("the stream has ended at %v: %v", at, lines.Err())
			}
		}
	})
}
