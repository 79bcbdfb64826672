// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package agent tests krpingctl agent inside one VM. It starts the agent as systemd does, with the capabilities of its
// unit and a notification socket.
package agent

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/agent/service/volumes"
	"krping/agent/stats/sampler"
	"krping/test/guest/internal/guest"
	"krping/test/output"
)

// agent is a running krpingctl agent.
type agent struct {
	t      *testing.T
	cmd    *exec.Cmd
	log    output.Buffer
	notify *net.UnixConn
	metric map[string]*dto.MetricFamily // of the last scrape
}

func configure(t *testing.T, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(config.DefaultPath), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config.DefaultPath, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// declare writes a configuration with sessions of this host's bridge.
func declare(t *testing.T, port int, options map[string]string) {
	t.Helper()
	text := "sessions:\n"
	for _, name := range slices.Sorted(maps.Keys(options)) {
		text += fmt.Sprintf("  - name: %s\n    addr: %s\n    port: %d\n%s", name, guest.Addr(t), port, options[name])
	}
	configure(t, text)
}

func unitFile(t *testing.T, name string) string {
	t.Helper()
	unit, err := os.ReadFile(filepath.Join(guest.Binary(t, ".."), "scripts/system", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(unit)
}

// capabilities returns the unit's capability bounding set as an argument of setpriv.
func capabilities(t *testing.T) string {
	t.Helper()
	_, rest, found := strings.Cut(unitFile(t, unitName), "\nCapabilityBoundingSet=")
	names, _, _ := strings.Cut(rest, "\n")
	if !found || names == "" {
		t.Fatal("the unit names no capabilities")
	}
	set := "-all"
	for _, name := range strings.Fields(names) {
		set += ",+" + strings.ToLower(strings.TrimPrefix(name, "CAP_"))
	}
	return set
}

// start starts the agent and waits until it is ready. At the end of the test it is killed and the sessions are stopped.
func start(t *testing.T) *agent {
	t.Helper()
	t.Cleanup(forgetVolumes)
	a := &agent{t: t}
	socket := filepath.Join(t.TempDir(), "notify")
	var err error
	if a.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = a.notify.Close() })
	a.cmd = exec.Command("setpriv", "--no-new-privs", "--bounding-set="+capabilities(t), guest.Binary(t, "krpingctl"), "agent")
	a.cmd.Env = append(os.Environ(), "NOTIFY_SOCKET="+socket, "WATCHDOG_USEC=3000000")
	a.cmd.Stdout, a.cmd.Stderr = &a.log, &a.log
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		a.kill()
		if t.Failed() {
			t.Logf("the agent's log:\n%s", a.log.String())
		}
	})
	a.wantNotify("READY=1")
	return a
}

// forgetVolumes removes what the agent remembers: each test has volumes of its own under the same names.
func forgetVolumes() { _ = os.RemoveAll(filepath.Dir(volumes.DefaultPath)) }

func (a *agent) kill() {
	_ = a.cmd.Process.Kill()
	_ = a.cmd.Wait()
}

// stopAtEnd stops sessions at the end of the test, after the agent.
func stopAtEnd(t *testing.T, names ...string) {
	t.Cleanup(func() {
		for _, name := range names {
			if err := guest.Command("stop,force,block="+name, guest.Limit); err != nil && !errors.Is(err, unix.ENOENT) {
				t.Errorf("stop %s: %v", name, err)
			}
		}
	})
}

// wantNotify waits for the next notification to systemd, except for watchdog messages and changes of the status.
func (a *agent) wantNotify(want string) {
	a.t.Helper()
	buf := make([]byte, 4096)
	for {
		_ = a.notify.SetReadDeadline(time.Now().Add(20 * time.Second))
		n, err := a.notify.Read(buf)
		if err != nil {
			a.t.Fatalf("no notification %s: %v", want, err)
		}
		if state := string(buf[:n]); strings.HasPrefix(state, want) {
			return
		} else if state != "WATCHDOG=1" && !strings.HasPrefix(state, "STATUS=") {
			a.t.Fatalf("notification %q, want %s", state, want)
		}
	}
}

func (a *agent) reload() {
	a.t.Helper()
	guest.Signal(a.t, a.cmd, unix.SIGHUP)
	a.wantNotify("RELOADING=1")
	a.wantNotify("READY=1")
}

// logs waits until the agent has logged a text.
func (a *agent) logs(text string) {
	a.t.Helper()
	guest.Eventually(a.t, 20*time.Second, "the agent logs "+text, func() bool { return strings.Contains(a.log.String(), text) })
}

// ask sends a request to the agent's socket. The caller closes the body.
func (a *agent) ask(path, accept string) *http.Response {
	a.t.Helper()
	c := http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "unix", config.DefaultListen)
		},
		DisableKeepAlives: true,
	}}
	request, err := http.NewRequestWithContext(a.t.Context(), http.MethodGet, "http://agent"+path, nil)
	if err != nil {
		a.t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := c.Do(request)
	if err != nil {
		a.t.Fatal(err)
	}
	return response
}

// get returns the agent's response.
func (a *agent) get(path, accept string) (kind string, body []byte) {
	a.t.Helper()
	response := a.ask(path, accept)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil || response.StatusCode != http.StatusOK {
		a.t.Fatalf("GET %s: %s, %v\n%s", path, response.Status, err, body)
	}
	return response.Header.Get("Content-Type"), body
}

// streams reads the web page's stream of samples until one is good.
func (a *agent) streams(good func(sampler.Sample) bool) {
	a.t.Helper()
	response := a.ask("/api/live", "text/event-stream")
	defer response.Body.Close()
	lines := bufio.NewScanner(response.Body)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		data, found := strings.CutPrefix(lines.Text(), "data: ")
		if !found {
			continue
		}
		var s sampler.Sample
		if err := json.Unmarshal([]byte(data), &s); err != nil {
			a.t.Fatalf("%s: %v", data, err)
		}
		if good(s) {
			return
		}
	}
	a.t.Fatalf("the stream of samples ended (%v) without a good one", lines.Err())
}

// scrape reads the metrics as Prometheus does, with native histograms.
func (a *agent) scrape() {
	a.t.Helper()
	kind, body := a.get("/metrics", "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited")
	decoder := expfmt.NewDecoder(bytes.NewReader(body), expfmt.ResponseFormat(http.Header{"Content-Type": {kind}}))
	a.metric = map[string]*dto.MetricFamily{}
	for {
		var f dto.MetricFamily
		err := decoder.Decode(&f)
		if errors.Is(err, io.EOF) {
			return
		}
		if err != nil {
			a.t.Fatalf("metrics as %s: %v", kind, err)
		}
		a.metric[f.GetName()] = &f
	}
}

// find returns the metric of a family with these labels, or an empty one.
func (a *agent) find(family string, labels ...string) *dto.Metric {
	for _, m := range a.metric[family].GetMetric() {
		have := map[string]bool{}
		for _, l := range m.GetLabel() {
			have[l.GetName()+"="+l.GetValue()] = true
		}
		if !slices.ContainsFunc(labels, func(l string) bool { return !have[l] }) {
			return m
		}
	}
	return &dto.Metric{}
}

// value returns the value of a gauge or a counter.
func (a *agent) value(family string, labels ...string) float64 {
	m := a.find(family, labels...)
	return m.GetGauge().GetValue() + m.GetCounter().GetValue()
}

// shows waits until a gauge is 1.
func (a *agent) shows(family string, labels ...string) {
	a.t.Helper()
	guest.Eventually(a.t, 30*time.Second, fmt.Sprintf("%s%q is 1", family, labels), func() bool {
		a.scrape()
		return a.value(family, labels...) == 1
	})
}

// attached waits until the agent has attached a session.
func (a *agent) attached(name string) map[string]string {
	a.t.Helper()
	guest.Eventually(a.t, 30*time.Second, name+" is live", func() bool { return guest.Session(a.t, name)["state"] == "live" })
	a.shows("krping_declared_session_state", "session="+name, "state=attached") // live comes first, while the disk is still being added
	return guest.Session(a.t, name)
}
