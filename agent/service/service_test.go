// SPDX-License-Identifier: Apache-2.0

package service

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/rs/zerolog"
	"golang.org/x/crypto/bcrypt"
	"golang.org/x/sys/unix"

	"krping/agent/service/config"
	"krping/proc"
	"krping/test/output"
)

// running is an agent in this process, with a directory of its own.
type running struct {
	t      *testing.T
	dir    string
	log    *output.Buffer
	notify *net.UnixConn // stands in for systemd's notification socket
	stop   context.CancelFunc
	ended  chan error
}

// vol0 is attached according to proc/testdata, so the agent has nothing to do for it.
const vol0 = "sessions:\n  - name: vol0\n    addr: 192.168.77.1\n"

func start(t *testing.T) *running {
	t.Helper()
	r := &running{t: t, dir: t.TempDir(), log: &output.Buffer{}, ended: make(chan error, 1)}
	socket := filepath.Join(r.dir, "notify")
	var err error
	if r.notify, err = net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = r.notify.Close() })
	t.Setenv("NOTIFY_SOCKET", socket)
	t.Setenv("WATCHDOG_USEC", "300000")
	t.Setenv("WATCHDOG_PID", fmt.Sprint(os.Getpid()))
	r.configure("listen: " + r.socket() + "\n" + vol0)
	var ctx context.Context
	ctx, r.stop = context.WithCancel(t.Context())
	go func() { r.ended <- Run(ctx, r.options()) }()
	t.Cleanup(r.stop)
	if state := r.notified("READY=1"); !strings.Contains(state, "STATUS=attached 1 of 1, ") {
		t.Errorf("systemd got %q", state)
	}
	return r
}

func (r *running) socket() string { return filepath.Join(r.dir, "agent.sock") }

func (r *running) options() Options {
	// A copy, as commands are written to it.
	mount := filepath.Join(r.dir, "proc")
	if err := os.CopyFS(mount, os.DirFS("../../proc/testdata")); err != nil && !errors.Is(err, os.ErrExist) {
		r.t.Fatal(err)
	}
	fs, err := proc.NewFS(mount)
	if err != nil {
		r.t.Fatal(err)
	}
	noMeter := func() (Meter, error) { return nil, errors.New("no BTF") }
	return Options{Config: filepath.Join(r.dir, "krping.yaml"), RunDir: r.dir, Known: filepath.Join(r.dir, "volumes.json"), FS: fs, Log: zerolog.New(r.log), Meter: noMeter}
}

func (r *running) configure(text string) {
	r.t.Helper()
	if err := os.WriteFile(filepath.Join(r.dir, "krping.yaml"), []byte(text), 0o600); err != nil {
		r.t.Fatal(err)
	}
}

// notified returns the next state sent to systemd, which must begin with want. Watchdog messages and
// changes of the status are skipped unless wanted.
func (r *running) notified(want string) string {
	r.t.Helper()
	buf := make([]byte, 4096)
	for {
		_ = r.notify.SetReadDeadline(time.Now().Add(time.Minute))
		n, err := r.notify.Read(buf)
		if err != nil {
			r.t.Fatalf("waiting for %s: %v\n%s", want, err, r.log.String())
		}
		state := string(buf[:n])
		if state == "WATCHDOG=1" && want != state || strings.HasPrefix(state, "STATUS=") && !strings.HasPrefix(state, want) {
			continue
		}
		if !strings.HasPrefix(state, want) {
			r.t.Fatalf("systemd got %q, want %s", state, want)
		}
		return state
	}
}

// reload has the agent read its configuration again, and returns what it tells systemd then.
func (r *running) reload() string {
	r.t.Helper()
	if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
		r.t.Fatal(err)
	}
	if state := r.notified("RELOADING=1"); !strings.Contains(state, "\nMONOTONIC_USEC=") {
		r.t.Errorf("systemd got %q", state)
	}
	return r.notified("READY=1")
}

// client returns an HTTP client for a socket's path or ADDRESS:PORT.
func client(address string, timeout time.Duration) *http.Client {
	network := "tcp"
	if filepath.IsAbs(address) {
		network = "unix"
	}
	return &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, address)
		},
		DisableKeepAlives: true,
	}}
}

// get sends a request to the agent at an address.
func get(t *testing.T, method, address, path, accept string) (code int, kind, body string) {
	t.Helper()
	request, err := http.NewRequestWithContext(t.Context(), method, "http://agent"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Accept", accept)
	response, err := client(address, time.Minute).Do(request)
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	data, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, response.Header.Get("Content-Type"), string(data)
}

const asProtobuf = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"

func TestServesAndNotifies(t *testing.T) {
	r := start(t)
	if info, err := os.Stat(r.socket()); err != nil || info.Mode().Perm() != 0o660 {
		t.Errorf("socket: %v, %v", info, err)
	}
	const inflight = `krping_session_inflight{role="client",session="vol1"} 3`
	for accept, wantKind := range map[string]string{
		"": "text/plain",
		"application/openmetrics-text; version=1.0.0": "application/openmetrics-text",
	} {
		code, kind, body := get(t, "GET", r.socket(), "/metrics", accept)
		if code != 200 || !strings.HasPrefix(kind, wantKind) || !strings.Contains(body, inflight) {
			t.Errorf("as %q: code %d, %s, %.300s", accept, code, kind, body)
		}
	}
	_, kind, body := get(t, "GET", r.socket(), "/metrics", asProtobuf)
	decoder, families := expfmt.NewDecoder(strings.NewReader(body), expfmt.ResponseFormat(http.Header{"Content-Type": {kind}})), 0
	for {
		var f dto.MetricFamily
		if err := decoder.Decode(&f); err != nil {
			if !errors.Is(err, io.EOF) {
				t.Error(err)
			}
			break
		}
		families++
	}
	if families < 30 {
		t.Errorf("%d families as %s", families, kind)
	}
	if code, _, body := get(t, "GET", r.socket(), "/healthz", ""); code != 200 || body != "ok\n" {
		t.Errorf("healthz: %d, %s", code, body)
	}
	if code, _, _ := get(t, "POST", r.socket(), "/metrics", ""); code != 405 {
		t.Errorf("POST: code %d, want 405", code)
	}
	r.notified("WATCHDOG=1")
	if err := Run(t.Context(), r.options()); !errors.Is(err, errRunning) {
		t.Errorf("a second agent: %v, want %v", err, errRunning)
	}
	r.stop()
	r.notified("STOPPING=1")
	if err := <-r.ended; err != nil {
		t.Errorf("end: %v", err)
	}
	if _, err := os.Stat(r.socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket after the agent ended: %v", err)
	}
}

// The status follows the sessions.
func TestStatusFollowsSessions(t *testing.T) {
	r := start(t)
	commands := filepath.Join(r.dir, "proc/krping")
	if err := os.Remove(commands); err != nil { // so that all fail
		t.Fatal(err)
	}
	r.configure("listen: " + r.socket() + "\n" + vol0 + "  - name: away\n    addr: 192.168.77.9\n")
	if state := r.reload(); !strings.Contains(state, "STATUS=attached 1 of 2: away: ") {
		t.Errorf("systemd got %q", state)
	}
	if err := os.WriteFile(commands, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r.notified("STATUS=attached 2 of 2, ")
}

func TestReload(t *testing.T) {
	r := start(t)
	address := freeAddress(t)
	r.configure("listen: " + address + "\nlog: loud\n" + vol0 + "    que: 1\n")
	r.reload()
	config := filepath.Join(r.dir, "krping.yaml")
	for _, want := range []string{config + `:2:6: log \"loud\": must be debug`, config + ":6:5: unknown key", "refused"} {
		if !strings.Contains(r.log.String(), want) {
			t.Errorf("the log has no %s:\n%s", want, r.log.String())
		}
	}
	get(t, "GET", r.socket(), "/healthz", "")

	ended := stream(t, r.socket())
	r.configure("listen: " + address + "\n" + vol0)
	r.reload()
	get(t, "GET", address, "/healthz", "")
	ends(t, ended)
	ended = stream(t, address)
	if _, err := os.Stat(r.socket()); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the socket that is no longer used: %v", err)
	}
	r.stop()
	if err := <-r.ended; err != nil {
		t.Errorf("end: %v", err)
	}
	ends(t, ended)
}

// freeAddress returns an address of this host at which nobody listens. The kernel gives its port to nobody who does not
// ask for it.
func freeAddress(t *testing.T) string {
	t.Helper()
	for range 100 {
		address := fmt.Sprintf("127.0.0.1:%d", 10000+mathrand.IntN(20000)) // below ip_local_port_range
		if l, err := net.Listen("tcp", address); err == nil {
			_ = l.Close()
			return address
		}
	}
	t.Fatal("no port is free")
	return ""
}

// With a web configuration, the page and the metrics need TLS and a password.
func TestWebConfig(t *testing.T) {
	r := start(t)
	web := filepath.Join(r.dir, "web.yml")
	cert, key := filepath.Join(r.dir, "cert.pem"), filepath.Join(r.dir, "key.pem")
	pool := writeCertificate(t, cert, key)
	password, err := bcrypt.GenerateFromPassword([]byte("secret"), bcrypt.MinCost)
	if err != nil {
		t.Fatal(err)
	}
	text := fmt.Sprintf("tls_server_config: {cert_file: %s, key_file: %s}\nbasic_auth_users: {prometheus: %s}\n", cert, key, password)
	if err := os.WriteFile(web, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	address := freeAddress(t)
	r.configure("listen: " + address + "\nweb_config: " + web + "\n" + vol0)
	r.reload()
	c := &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}
	for password, want := range map[string]int{"secret": http.StatusOK, "wrong": http.StatusUnauthorized} {
		request, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "https://"+address+"/metrics", nil)
		if err != nil {
			t.Fatal(err)
		}
		request.SetBasicAuth("prometheus", password)
		answer, err := c.Do(request)
		if err != nil {
			t.Fatal(err)
		}
		_ = answer.Body.Close()
		if answer.StatusCode != want {
			t.Errorf("with the password %q: %s, want %d", password, answer.Status, want)
		}
	}
	c.CloseIdleConnections()
	r.configure("listen: " + address + "\n" + vol0) // the same address without TLS
	r.reload()
	get(t, http.MethodGet, address, "/healthz", "")
}

// writeCertificate makes a certificate of 127.0.0.1 and returns a pool with it.
func writeCertificate(t *testing.T, certFile, keyFile string) *x509.CertPool {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{SerialNumber: big.NewInt(1), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, NotAfter: time.Now().Add(time.Hour)}
	cert, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	certText := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert})
	keyText := pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})
	if err := errors.Join(os.WriteFile(certFile, certText, 0o600), os.WriteFile(keyFile, keyText, 0o600)); err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(certText)
	return pool
}

// An address that overlaps the old one cannot be listened at before that is given up.
func TestReloadToOverlappingAddress(t *testing.T) {
	r := start(t)
	local := freeAddress(t)
	_, port, _ := net.SplitHostPort(local)
	all := "0.0.0.0:" + port
	for _, address := range []string{local, all, local} {
		r.configure("listen: " + address + "\n" + vol0)
		r.reload()
		get(t, "GET", local, "/healthz", "")
	}
	if log := r.log.String(); strings.Contains(log, "refused") || strings.Count(log, `"message":"reloaded"`) != 3 {
		t.Errorf("log:\n%s", log)
	}

	other, err := net.Listen("tcp", "127.0.0.2:"+port) // so that the agent cannot listen at all addresses
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	r.configure("listen: " + all + "\n" + vol0)
	r.reload()
	if !strings.Contains(r.log.String(), "new configuration refused") {
		t.Errorf("log:\n%s", r.log.String())
	}
	get(t, "GET", local, "/healthz", "")
}

// stream reads the web page's samples until the agent ends the stream.
func stream(t *testing.T, address string) <-chan error {
	t.Helper()
	response, err := client(address, 0).Get("http://agent/api/live")
	if err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() {
		defer response.Body.Close()
		_, err := io.Copy(io.Discard, response.Body)
		ended <- err
	}()
	return ended
}

func ends(t *testing.T, ended <-chan error) {
	t.Helper()
	select {
	case <-ended:
	case <-time.After(time.Minute):
		t.Error("samples still arrive from an address where the agent no longer listens")
	}
}

func TestStartFails(t *testing.T) {
	dir := t.TempDir()
	o := Options{Config: filepath.Join(dir, "c"), RunDir: dir, Log: zerolog.Nop()}
	if err := Run(t.Context(), o); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("no configuration: %v", err)
	}
	write := func(text string) {
		if err := os.WriteFile(o.Config, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("x: 1\n")
	if err := Run(t.Context(), o); !errors.As(err, new(config.Errors)) {
		t.Errorf("a wrong configuration: %v", err)
	}
	write("listen: " + o.Config + "\n")
	if err := Run(t.Context(), o); err == nil || !strings.Contains(err.Error(), "is not a socket") {
		t.Errorf("a file at the socket's path: %v", err)
	}
}

func TestReplacesSocketOfKilledAgent(t *testing.T) {
	address := config.Address{Network: "unix", Address: filepath.Join(t.TempDir(), "dir", "agent.sock")}
	first, err := listen(address)
	if err != nil {
		t.Fatal(err)
	}
	first.(*net.UnixListener).SetUnlinkOnClose(false)
	_ = first.Close()
	second, err := listen(address)
	if err != nil {
		t.Fatal(err)
	}
	_ = second.Close()
}

func TestLogOfAFile(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if text := line(t, NewLogger(f), f); strings.HasPrefix(text, "<") || !strings.Contains(text, " ERR ") || strings.Contains(text, "\x1b") {
		t.Errorf("to a file: %q", text)
	}
	// Times have milliseconds, which are not always 0.
	const when = "2006-01-02 15:04:05.000"
	var digits string
	for range 20 {
		text := line(t, NewLogger(f), f)
		if _, err := time.Parse(when, text[:min(len(when), len(text))]); err != nil {
			t.Fatalf("%q: %v", text, err)
		}
		if digits = text[len(when)-3 : len(when)]; digits != "000" {
			break
		}
		time.Sleep(time.Millisecond)
		if err := f.Truncate(0); err != nil {
			t.Fatal(err)
		}
	}
	if digits == "000" {
		t.Error("all times end in .000")
	}
}

func line(t *testing.T, log zerolog.Logger, f *os.File) string {
	t.Helper()
	log.Error().Msg("x")
	if _, err := f.Seek(0, io.SeekStart); err != nil {
		t.Fatal(err)
	}
	text, err := bufio.NewReader(f).ReadString('\n')
	if err != nil {
		t.Fatal(err)
	}
	return text
}

func TestKernelMessagesAreLogged(t *testing.T) {
	var out bytes.Buffer
	a := newAgent(Options{Log: zerolog.New(&out)})
	a.event(proc.Message{Sequence: 7, Level: 4, Subject: "vol0", Peer: "10.0.0.1:9999", Text: "connection lost (-104), requests wait"})
	a.event(proc.Message{Sequence: 8, Level: 3, Subject: "control", PID: 12, Text: "unknown option 'x'"})
	want := `{"level":"warn","source":"kernel","session":"vol0","peer":"10.0.0.1:9999","sequence":7,"message":"connection lost (-104), requests wait"}
{"level":"error","source":"kernel","subject":"control","pid":12,"sequence":8,"message":"unknown option 'x'"}
`
	if out.String() != want {
		t.Errorf("%s, want %s", out.String(), want)
	}
}
