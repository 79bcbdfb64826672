// SPDX-License-Identifier: Apache-2.0

//go:build lab

package agent

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"krping/agent/service/config"
	"krping/agent/service/volumes"
	"krping/test/guest/internal/guest"
)

// systemd is a systemd in its own namespaces, as the VM's init is another program.
type systemd struct {
	t   *testing.T
	pid string
	log string // of the agent
}

const (
	unitName   = "krping-agent.service"
	serverUnit = "krping-server@.service"
)

// alone returns a unit without its dependencies, which this systemd does not have.
func alone(unit string) string {
	unit = regexp.MustCompile(`(?m)^(Wants|After)=.*\n`).ReplaceAllString(unit, "")
	return strings.Replace(unit, "[Unit]\n", "[Unit]\nDefaultDependencies=no\n", 1)
}

// startSystemd starts systemd with the agent's unit, which restarts sooner and logs to a file, and the unit of a volume.
func startSystemd(t *testing.T) *systemd {
	t.Helper()
	s := &systemd{t: t, log: "/run/krping-agent.log"}
	unit := strings.Replace(alone(unitFile(t, unitName)), "RestartSec=5\n", "RestartSec=1\n", 1)
	unit = strings.Replace(unit, "[Service]\n", "[Service]\nStandardError=append:"+s.log+"\n", 1)
	for path, text := range map[string]string{
		unitName: unit, "agent.target": "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\nWants=" + unitName + "\n",
		serverUnit: alone(unitFile(t, serverUnit)),
	} {
		if err := os.WriteFile(filepath.Join("/etc/systemd/system", path), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Dir(volumes.DefaultPath), 0o755); err != nil { // as krping-tmpfiles.conf does
		t.Fatal(err)
	}
	const program = "/usr/bin/krpingctl"
	guest.Run(t, "touch", program)
	guest.Run(t, "mount", "--bind", guest.Binary(t, "krpingctl"), program)
	t.Cleanup(func() { guest.Run(t, "umount", "--lazy", program) }) // systemd may still be ending
	cmd := guest.Start(t, "unshare", "--fork", "--kill-child", "--pid", "--uts", "--ipc", "--mount", "--mount-proc", "env", "container=lxc",
		"/lib/systemd/systemd", "--system", "--unit=agent.target", "--log-target=console", "--log-level=warning")
	guest.Eventually(t, 20*time.Second, "systemd starts", func() bool {
		children, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%[1]d/children", cmd.Process.Pid))
		s.pid = strings.TrimSpace(string(children))
		return err == nil && s.pid != ""
	})
	t.Cleanup(func() {
		if t.Failed() {
			text, _ := os.ReadFile(s.log)
			t.Logf("the agent's log:\n%s", text)
		}
	})
	return s
}

// systemctl runs systemctl in the namespaces of systemd.
func (s *systemd) systemctl(args ...string) (string, error) {
	return guest.TryRun(append([]string{"nsenter", "--target", s.pid, "--pid", "--mount", "systemctl"}, args...)...)
}

func (s *systemd) property(name string) string {
	out, _ := s.systemctl("show", "--value", "--property="+name, unitName) // systemd may not be ready
	return strings.TrimSpace(out)
}

func (s *systemd) active() {
	s.t.Helper()
	guest.Eventually(s.t, 2*time.Minute, "the agent is active", func() bool {
		time.Sleep(500 * time.Millisecond) // systemctl is expensive in an emulated VM
		return s.property("ActiveState") == "active"
	})
}

// The agent works in its unit's sandbox: with the module, a disk as backing, eBPF, netlink and its socket.
func TestSystemdUnit(t *testing.T) {
	if _, err := exec.LookPath("/lib/systemd/systemd"); err != nil {
		t.Fatal(err)
	}
	guest.StartBridge(t, 9964, guest.StorePath(t), "16MiB")
	disk := guest.NullDisk(t, "nullb7", nil)
	stopAtEnd(t, "vol0")
	t.Cleanup(forgetVolumes)
	declare(t, 9964, map[string]string{"vol0": "    mode: tap\n    heartbeat: 0\n    backing: " + disk + "\n"})
	s := startSystemd(t)
	s.active()
	a := &agent{t: t}
	kept := a.attached("vol0")
	dev := guest.OpenDirect(t, "/dev/"+kept["dev"])
	guest.Eventually(t, guest.TraceStarts, "latencies are measured", func() bool {
		if _, err := dev.WriteAt(guest.Aligned(t, 4096), 0); err != nil {
			t.Fatal(err)
		}
		a.scrape()
		return a.find("krping_latency_seconds", "device="+kept["dev"], "op=WRITE", "stage=total").GetHistogram().GetSampleCount() > 0
	})
	for _, m := range a.metric["krping_collector_up"].GetMetric() {
		if m.GetGauge().GetValue() != 1 {
			t.Errorf("not up: %v", m)
		}
	}
	guest.Eventually(t, 10*time.Second, "the status says that the session is attached", func() bool {
		return s.property("StatusText") == "attached 1 of 1, metrics at "+config.DefaultListen
	})

	if known, err := os.ReadFile(volumes.DefaultPath); err != nil || !strings.Contains(string(known), `"vol0"`) {
		t.Errorf("the agent remembers %s, %v", known, err)
	}

	good, err := os.ReadFile(config.DefaultPath)
	if err != nil {
		t.Fatal(err)
	}
	configure(t, string(good)+"x: 1\n")
	if out, err := s.systemctl("reload", unitName); err == nil {
		t.Errorf("a reload of an invalid configuration succeeded: %s", out)
	}
	configure(t, string(good)+"log: debug\n")
	if out, err := s.systemctl("reload", unitName); err != nil {
		t.Errorf("reload: %v, %s", err, out)
	}

	s.servesVolume()

	// The signal that the watchdog sends.
	if out, err := s.systemctl("kill", "--signal=ABRT", unitName); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	guest.Eventually(t, 60*time.Second, "systemd restarts the agent", func() bool { return s.property("NRestarts") == "1" })
	s.active()
	a.shows("krping_declared_session_state", "session=vol0", "state=attached")
	if out, err := s.systemctl("stop", unitName); err != nil || s.property("Result") != "success" {
		t.Errorf("stop: %v, %s", err, out)
	}
	is := guest.Session(t, "vol0")
	for _, key := range []string{"id", "dev", "state", "reconnects"} {
		if is[key] != kept[key] {
			t.Errorf("%s=%s, was %s", key, is[key], kept[key])
		}
	}
}

// servesVolume starts and stops a unit that serves a disk from the kernel.
func (s *systemd) servesVolume() {
	t := s.t
	t.Helper()
	const conf = "/etc/krping/servers/disk0.conf"
	text := fmt.Sprintf("OPTIONS=--addr %s --port %d --backing %s\n", guest.Addr(t), guest.NextPort(), guest.NullDisk(t, "nullb8", nil))
	if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(conf, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	instance := strings.Replace(serverUnit, "@", "@disk0", 1)
	if out, err := s.systemctl("start", instance); err != nil {
		t.Fatalf("%v, %s", err, out)
	}
	if v := guest.Volume(t, "disk0"); v["state"] != "live" {
		t.Errorf("the unit's volume: %v", v)
	}
	if out, err := s.systemctl("stop", instance); err != nil || guest.Volume(t, "disk0") != nil {
		t.Errorf("stop: %v, %s; volume %v", err, out, guest.Volume(t, "disk0"))
	}
}
