// SPDX-License-Identifier: Apache-2.0

package systemd

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/rs/zerolog"
)

func TestNotify(t *testing.T) {
	var logged strings.Builder
	log := zerolog.New(&logged)
	t.Setenv("NOTIFY_SOCKET", "")
	Notify(log, Ready) // not started by systemd

	socket := filepath.Join(t.TempDir(), "notify")
	t.Setenv("NOTIFY_SOCKET", socket)
	systemd, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: socket, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	Notify(log, Ready+"\nSTATUS=works")
	if err := systemd.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	text := make([]byte, 100)
	if n, err := systemd.Read(text); string(text[:n]) != "READY=1\nSTATUS=works" || err != nil {
		t.Errorf("%q, %v", text[:n], err)
	}
	if logged.Len() > 0 {
		t.Errorf("logged %s", logged.String())
	}
	_ = systemd.Close()
	Notify(log, Stopping)
	if !strings.Contains(logged.String(), `"level":"warn"`) || !strings.Contains(logged.String(), "cannot notify systemd") {
		t.Errorf("logged %q", logged.String())
	}
}

func TestWatchdog(t *testing.T) {
	for name, tc := range map[string]struct {
		limit, pid string
		ticks      bool
	}{
		"none": {}, "wrong": {"x", fmt.Sprint(os.Getpid()), false}, "of another process": {"30000", "1", false}, "ours": {"30000", fmt.Sprint(os.Getpid()), true},
	} {
		t.Setenv("WATCHDOG_USEC", tc.limit)
		t.Setenv("WATCHDOG_PID", tc.pid)
		watchdog := Watchdog()
		if watchdog == nil != !tc.ticks {
			t.Errorf("%s: ticks: %v", name, watchdog != nil)
		}
		for range 2 {
			if watchdog != nil {
				<-watchdog
			}
		}
	}
}
