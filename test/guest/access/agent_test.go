// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/agent/service"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

// The agent attaches a volume with a key, and attaches it again when the configuration names another key file.
func TestAgentWithKey(t *testing.T) {
	guest.CheckResources(t)
	port := serve(t, targets.Module, secret).Port
	path := filepath.Join(t.TempDir(), "krping.yaml")
	configure := func(file string) {
		text := fmt.Sprintf("listen: %s.sock\nsessions:\n  - name: vol0\n    addr: %s\n    port: %d\n    queues: 1\n    key_file: %s\n", path, guest.Addr(t), port, file)
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	connected := func(times string) {
		t.Helper()
		guest.Eventually(t, 20*time.Second, "the session is live, connected "+times+" times", func() bool {
			return guest.Session(t, "vol0")["state"] == "live" && guest.Volume(t, "vol0")["connections"] == times
		})
	}
	if err := os.MkdirAll(service.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if guest.Session(t, "vol0") != nil {
			guest.MustKrpingctl(t, "stop", "--force", "vol0")
		}
	})
	configure(targets.KeyFile(t, secret))
	cmd := guest.Start(t, guest.Binary(t, "krpingctl"), "agent", "--config", path)
	connected("1")

	configure(targets.KeyFile(t, secret))
	guest.Signal(t, cmd, unix.SIGHUP)
	connected("2")

	// A key file that others may read is refused.
	file := targets.KeyFile(t, secret)
	if err := os.Chmod(file, 0o640); err != nil {
		t.Fatal(err)
	}
	configure(file)
	if r := guest.Krpingctl(t, "agent", "--check", "--config", path); r.Code != 2 || !strings.Contains(r.Stderr, "chmod 600") {
		t.Errorf("%+v", r)
	}
	guest.Signal(t, cmd, unix.SIGTERM)
	_ = cmd.Wait()
}
