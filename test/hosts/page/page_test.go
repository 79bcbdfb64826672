// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package page tests the agent's web page in a browser. A session in a VM provides the samples, by
// `krpingctl top --json`. The page's server and the browser run on this host.
package page

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"krping/agent/service/web"
	"krping/agent/stats/sampler"
	"krping/test/hosts/internal/hosts"
	"krping/test/internal/late"
	"krping/test/lab"
)

// server serves a page. After a stop it can serve a new one at the same address, like a restarted agent.
type server struct {
	t       *testing.T
	address string
	page    atomic.Pointer[web.Page]
	http    *http.Server
}

func (s *server) start() {
	s.t.Helper()
	listener, err := net.Listen("tcp", s.address)
	if err != nil {
		s.t.Fatal(err)
	}
	s.address = listener.Addr().String()
	p := web.New()
	s.page.Store(p)
	s.http = &http.Server{Handler: p}
	s.http.RegisterOnShutdown(p.Close)
	go func() { _ = s.http.Serve(listener) }()
}

func (s *server) stop() {
	s.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	if err := s.http.Shutdown(ctx); err != nil {
		s.t.Errorf("stop the server: %v", err)
	}
}

// publish runs top in the VM and passes its samples to the current page.
func (s *server) publish(vm *lab.VM) {
	s.t.Helper()
	r, w := io.Pipe()
	top, err := vm.Start(lab.Cmd{Argv: []string{lab.Build() + "/krpingctl", "top", "--json"}, Stdout: w})
	if err != nil {
		s.t.Fatal(err)
	}
	go func() {
		<-top.Done()
		_ = w.Close()
	}()
	go func() {
		decoder := json.NewDecoder(r)
		for {
			var sample sampler.Sample
			if decoder.Decode(&sample) != nil || s.page.Load().Publish(sample) != nil {
				return
			}
		}
	}()
}

// cells returns the texts of the only row of the sessions' table, by column.
func cells(b *browser) map[string]string {
	b.t.Helper()
	return value[map[string]string](b, `Object.fromEntries(Array.from(document.querySelectorAll("#sessions tbody tr:only-child td"), td => [td.dataset.label ?? "Volume", td.innerText]))`)
}

// painted counts the pixels of the heat map's cells, which are blue in both colour schemes.
const painted = `(() => {
  const canvas = document.getElementById("heat");
  const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  let n = 0;
  for (let i = 0; i < data.length; i += 4) {
    n += data[i + 3] === 255 && data[i + 2] - data[i] > 30;
  }
  return n;
})()`

func TestPageInBrowser(t *testing.T) {
	h := hosts.BootOne(t)
	vm := h.Lab.VM(0)
	h.Sh(vm, "krping-bridge create --store file:/run/vol0.img --size 64MiB")
	bridge := h.Spawn(vm, "krping-bridge --listen "+vm.Addr()+" --store file:/run/vol0.img >/run/bridge.log 2>&1")
	h.Eventually(20*time.Second, "krping-bridge listens", func() bool {
		_, err := h.Try(vm, "grep -q listening /run/bridge.log")
		return err == nil
	})
	h.Sh(vm, "krpingctl client --addr "+vm.Addr()+" --block vol0")
	h.Spawn(vm, "fio --name=load --filename=/dev/krping0 --direct=1 --ioengine=libaio --rw=randrw --bssplit=4k/90:64k/10 --iodepth=8 "+
		"--size=32M --time_based --runtime=1h --verify=crc32c --verify_backlog=64 >/run/fio.log 2>&1")
	s := &server{t: t, address: "127.0.0.1:0"}
	s.start()
	defer func() { s.stop() }()
	s.publish(vm)
	b := openBrowser(t)
	b.visit("http://" + s.address + "/")

	b.shows("#sessions", "vol0", 3*time.Minute) // top loads its eBPF program first: see guest.TraceStarts
	b.shows("#connection", "live", 10*time.Second)
	b.shows("#stages", "WRITE", 10*time.Second)
	b.shows("#links", "rxe0 on eth0 ACTIVE", time.Second)
	time.Sleep(20 * time.Second) // for a screenshot with some history
	row := cells(b)
	// The load need not both read and write in each second.
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end) && (row["Read"] == "0 B/s" || row["Write"] == "0 B/s"); row = cells(b) {
		time.Sleep(time.Second / 4)
	}
	for label, pattern := range map[string]string{
		"Volume": `^vol0$`, "State": `^live$`, "Device": `^/dev/krping0 \(remote\)$`, "Peer": `^192\.168\.77\.1:9999$`,
		"Read": `^[1-9][\d.]* [kM]?B/s$`, "Write": `^[1-9][\d.]* [kM]?B/s$`, "IOPS": `^[1-9]\d*$`, "In flight": `^\d+/\d+$`,
		"p99": `^[1-9][\d.]* (µs|ms|s)$`, "Errors": `^0$`, "CRC": `^0$`, "Reconnects": `^0$`,
	} {
		if !regexp.MustCompile(pattern).MatchString(row[label]) {
			t.Errorf("%s is %q, want %s", label, row[label], pattern)
		}
	}
	if n := value[int](b, painted); n < 500 {
		t.Errorf("the heat map has %d blue pixels, want 500", n)
	}
	if text := b.text("#heat-scale"); !regexp.MustCompile(`^1\s*\d+ bios$`).MatchString(text) {
		t.Errorf("the heat map's legend is %q", text)
	}
	var stages []string // each both of reads and of writes; a second may have one of them alone
	for _, stage := range []string{"queue", "send", "peer", "finish", "device", "total"} {
		stages = append(stages, `(?s)(`+stage+`(\t[1-9][\d.]* (µs|ms|s)){3}.*){2}`)
	}
	b.matches("#stages", 30*time.Second, stages...)
	b.matches(".u-legend", 30*time.Second, `read:?\s*[1-9][\d.]* [kM]?B/s`)
	if problems := b.text("#problems"); problems != "" {
		// An interrupt that meets a tracing program loses its event.
		late.ErrorfIf(t, strings.Contains(problems, "latencies are incomplete"), "problems: %s", problems)
	}
	b.click("#sessions button")
	b.shows("#throughput-of", "of vol0", 5*time.Second)
	b.click("#sessions button")
	for _, l := range []screen{
		{name: "light", width: 1200, height: 900}, {name: "dark", width: 1200, height: 900, dark: true},
		{name: "phone", width: 390, height: 844, phone: true}, {name: "phone-dark", width: 390, height: 844, phone: true, dark: true},
	} {
		b.screenshot(l)
	}
	if errors := b.takeErrors(); len(errors) > 0 {
		t.Errorf("errors in the browser:\n%s", strings.Join(errors, "\n"))
	}

	// The agent restarts: the page reports it and reconnects without being loaded again.
	loads := value[int](b, "performance.getEntriesByType('navigation').length")
	s.stop()
	b.shows("#connection", "agent gone since", 10*time.Second)
	b.screenshot(screen{name: "gone", width: 1200, height: 900})
	s.start()
	b.shows("#connection", "live", 20*time.Second)
	if n := value[int](b, "performance.getEntriesByType('navigation').length"); n != loads {
		t.Error("the page was loaded again")
	}
	for _, text := range b.takeErrors() {
		if !strings.Contains(text, "ERR_CONNECTION_REFUSED") && !strings.Contains(text, "ERR_INCOMPLETE_CHUNKED_ENCODING") {
			t.Errorf("error in the browser: %s", text)
		}
	}

	// The target is lost.
	if err := bridge.Signal(9); err != nil {
		t.Fatal(err)
	}
	b.shows("#problems", "vol0: reconnecting", 20*time.Second)
	b.shows("#sessions", "reconnecting", 5*time.Second)
	b.screenshot(screen{name: "reconnecting", width: 1200, height: 900})

	h.Sh(vm, "krpingctl stop vol0 --force")
	b.shows("#nothing", "No session", 10*time.Second)
	h.Sh(vm, "pkill -x fio; until rmmod rdma_krping 2>/dev/null; do sleep 0.2; done")
	b.shows("#nothing", "The module is not loaded", 10*time.Second)
	if errors := b.takeErrors(); len(errors) > 0 {
		t.Errorf("errors in the browser:\n%s", strings.Join(errors, "\n"))
	}
}
