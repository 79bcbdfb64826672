// SPDX-License-Identifier: Apache-2.0

package web

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"krping/agent/host/schema"
	"krping/agent/stats/sampler"
)

const (
	// keep and keepBytes limit the history that a new client gets.
	keep      = 5 * time.Minute
	keepBytes = 16 << 20
	// backlog is how many samples may wait for a client. A slower client is disconnected; it may
	// connect again.
	backlog    = 16
	maxClients = 32
	// sendLimit is how long a write to a client may block.
	sendLimit = 10 * time.Second
)

// event is an encoded sample.
type event struct {
	at   time.Time
	text []byte
}

// feed sends samples to its clients. The zero value has no clients.
type feed struct {
	mu      sync.Mutex
	past    []event
	bytes   int                     // size of past
	clients map[chan event]struct{} // a channel is closed when its client is dropped
	closed  bool
}

// publish sends a sample as an event, with the JSON of `krpingctl top`. Its id is the sample's time in milliseconds.
func (f *feed) publish(s sampler.Sample) error {
	data, err := schema.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode a sample: %w", err)
	}
	e := event{s.Time, fmt.Appendf(nil, "id: %d\ndata: %s\n\n", s.Time.UnixMilli(), data)}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.past = append(f.past, e)
	f.bytes += len(e.text)
	old := 0
	for ; old < len(f.past) && (f.bytes > keepBytes || e.at.Sub(f.past[old].at) > keep); old++ {
		f.bytes -= len(f.past[old].text)
	}
	f.past = slices.Delete(f.past, 0, old)
	for client := range f.clients {
		select {
		case client <- e:
		default:
			f.drop(client)
		}
	}
	return nil
}

// drop ends the stream of a client, unless that has ended. The caller holds f.mu.
func (f *feed) drop(client chan event) {
	if _, found := f.clients[client]; found {
		delete(f.clients, client)
		close(client)
	}
}

func (f *feed) close() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	for client := range f.clients {
		f.drop(client)
	}
}

var (
	errFull   = errors.New("too many clients of the web page")
	errClosed = errors.New("the agent is shutting down")
)

// join adds a client. It returns the past events after a time, and a channel of the next ones.
func (f *feed) join(after time.Time) ([]event, chan event, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.closed {
		return nil, nil, errClosed
	}
	if len(f.clients) >= maxClients {
		return nil, nil, errFull
	}
	if f.clients == nil {
		f.clients = map[chan event]struct{}{}
	}
	client := make(chan event, backlog)
	f.clients[client] = struct{}{}
	first := slices.IndexFunc(f.past, func(e event) bool { return e.at.UnixMilli() > after.UnixMilli() })
	if first < 0 {
		first = len(f.past)
	}
	return slices.Clone(f.past[first:]), client, nil
}

func (f *feed) leave(client chan event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.drop(client)
}

// serve streams past and new events. A browser that reconnects sends the id of its last event.
func (f *feed) serve(w http.ResponseWriter, r *http.Request) {
	last, _ := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64) // 0, if missing: all events
	past, client, err := f.join(time.UnixMilli(last))
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	defer f.leave(client)
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	out := http.NewResponseController(w)
	send := func(text []byte) error {
		if err := out.SetWriteDeadline(time.Now().Add(sendLimit)); err != nil && !errors.Is(err, http.ErrNotSupported) {
			return err
		}
		if _, err := w.Write(text); err != nil {
			return err
		}
		return nil
	}
	if send([]byte("retry: 1000\n\n")) != nil {
		return
	}
	for _, e := range past {
		if send(e.text) != nil {
			return
		}
	}
	for {
		if out.Flush() != nil {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case e, open := <-client:
			if !open || send(e.text) != nil {
				return
			}
		}
	}
}
