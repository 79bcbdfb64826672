// SPDX-License-Identifier: Apache-2.0

//go:build lab

package agent

import (
	"bytes"
	"os"
	"strings"
	"testing"
	"time"

	"krping/agent/service/volumes"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

const (
	uuidA = "aaaaaaaa-e89b-12d3-a456-426614174000"
	uuidB = "bbbbbbbb-e89b-12d3-a456-426614174000"
)

// reboots stands for a reboot of this host: the agent and its session end.
func (a *agent) reboots() {
	a.t.Helper()
	a.kill()
	if err := guest.Command("stop,block=vol0", guest.Limit); err != nil {
		a.t.Fatal(err)
	}
}

// After a reboot, the target has an empty volume of the same name and size: it is not attached, and metrics, log, stat
// and doctor say why and what to do. The right one is attached as soon as it is there.
func TestEmptyVolumeIsRefusedAfterReboot(t *testing.T) {
	const port = 9970
	stopAtEnd(t, "vol0")
	right := targets.Config{Port: port, Store: targets.Module.NewStore(t, 16<<20), UUID: uuidA}
	served := targets.Module.Serve(t, right)
	declare(t, port, map[string]string{"vol0": "    queues: 1\n"})
	a := start(t)
	s := a.attached("vol0")
	if s["uuid"] != uuidA || a.find("krping_session_info", "session=vol0", "role=client", "uuid="+uuidA).Gauge == nil {
		t.Errorf("uuid=%s, and in the metrics %v", s["uuid"], a.metric["krping_session_info"])
	}
	data := bytes.Repeat([]byte("x"), 4096)
	dev := guest.OpenDirect(t, "/dev/"+s["dev"])
	block := guest.Aligned(t, 4096)
	copy(block, data)
	if _, err := dev.WriteAt(block, 0); err != nil {
		t.Fatal(err)
	}
	_ = dev.Close()
	a.reboots()
	served.Stop()

	wrong := targets.Module.Serve(t, targets.Config{Port: port, Store: targets.Module.NewStore(t, 16<<20), UUID: uuidB})
	a = start(t)
	a.shows("krping_declared_session_state", "session=vol0", "state=refused")
	a.logs(uuidB)
	a.logs("krpingctl agent --forget vol0")
	time.Sleep(3 * time.Second)
	if s := guest.Session(t, "vol0"); s != nil {
		t.Fatalf("the empty volume was attached: %v", s)
	}
	stat := guest.MustKrpingctl(t, "stat")
	doctor := guest.Krpingctl(t, "doctor")
	for what, text := range map[string]string{"stat": stat, "doctor": doctor.Stdout} {
		if !strings.Contains(text, "the target has another volume") || !strings.Contains(text, "krpingctl agent --forget vol0") {
			t.Errorf("%s does not say that the volume is refused:\n%s", what, text)
		}
	}
	if doctor.Code != 1 {
		t.Errorf("doctor: exit code %d", doctor.Code)
	}
	wrong.Stop()
	served.Again(t)
	s = a.attached("vol0")
	if _, err := guest.OpenDirect(t, "/dev/"+s["dev"]).ReadAt(block, 0); err != nil || !bytes.Equal(block, data) {
		t.Errorf("read %.20q, %v", block, err)
	}
	if stat := guest.MustKrpingctl(t, "stat"); strings.Contains(stat, "another volume") || !strings.Contains(stat, uuidA) || !strings.Contains(stat, "the only writer") {
		t.Errorf("stat:\n%s", stat)
	}
}

// The way out of a refusal: an operator says that the other volume is right.
func TestForgetVolume(t *testing.T) {
	const port = 9971
	stopAtEnd(t, "vol0")
	first := targets.Module.ServeNew(t, 16<<20, targets.Config{Port: port, UUID: uuidA})
	declare(t, port, map[string]string{"vol0": ""})
	a := start(t)
	a.attached("vol0")
	a.reboots()
	first.Stop()
	targets.Module.ServeNew(t, 16<<20, targets.Config{Port: port, UUID: uuidB})
	a = start(t)
	a.shows("krping_declared_session_state", "session=vol0", "state=refused")
	guest.MustKrpingctl(t, "agent", "--forget", "vol0")
	if s := a.attached("vol0"); s["uuid"] != uuidB {
		t.Errorf("attached %v", s)
	}
	if ran := guest.Krpingctl(t, "agent", "--forget", "vol9"); ran.Code != 1 || !strings.Contains(ran.Stderr, "nothing to forget") {
		t.Errorf("forget an unknown volume: exit code %d\n%s", ran.Code, ran.Stderr)
	}

	// What the configuration says wins over what is remembered.
	declare(t, port, map[string]string{"vol0": "    uuid: " + uuidA + "\n"})
	a.reload()
	a.shows("krping_declared_session_state", "session=vol0", "state=refused")
	declare(t, port, map[string]string{"vol0": "    uuid: " + uuidB + "\n"})
	a.reload()
	a.attached("vol0")
}

// A volume in the target's memory is empty when the target is back. The session fails, and is not attached again with
// reattach: safe, not even if the volume has the same UUID.
func TestNoReattachOfVolatileVolume(t *testing.T) {
	const port = 9972
	stopAtEnd(t, "vol0")
	serve := func() {
		t.Helper()
		guest.MustKrpingctl(t, "server", "--addr", guest.Addr(t), "--port", "9972", "--block", "vol0", "--backing", "ram:16M", "--uuid", uuidA)
	}
	serve()
	t.Cleanup(func() { guest.StopServing(t, "vol0") })
	declare(t, port, map[string]string{"vol0": "    heartbeat: 1\n"})
	a := start(t)
	if s := a.attached("vol0"); s["volatile"] != "1" {
		t.Errorf("session %v", s)
	}
	guest.StopServing(t, "vol0")
	serve()
	a.shows("krping_declared_session_state", "session=vol0", "state=lost")
	a.logs("keeps the volume in memory only")
	time.Sleep(3 * time.Second)
	if state := guest.Session(t, "vol0")["state"]; state != "failed" {
		t.Errorf("state %q, want failed", state)
	}
	guest.MustKrpingctl(t, "stop", "vol0")
	a.attached("vol0") // the operator has said so

	guest.StopServing(t, "vol0")
	serve()
	a.shows("krping_declared_session_state", "session=vol0", "state=lost")
	declare(t, port, map[string]string{"vol0": "    heartbeat: 1\n    reattach: always\n"})
	a.reload()
	a.attached("vol0")
}

// The file with what the agent remembers is broken: the agent attaches nothing until an operator has it begun anew, and
// the broken one is kept.
func TestBrokenMemory(t *testing.T) {
	const port = 9973
	stopAtEnd(t, "vol0")
	targets.Module.ServeNew(t, 16<<20, targets.Config{Port: port, UUID: uuidA})
	declare(t, port, map[string]string{"vol0": ""})
	t.Cleanup(forgetVolumes)
	if err := os.MkdirAll("/var/lib/krping", 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(volumes.DefaultPath, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	a := start(t)
	a.logs("not attached: which volume was attached here before cannot be told: " + volumes.DefaultPath + " is broken")
	if guest.Session(t, "vol0") != nil {
		t.Error("a volume was attached all the same")
	}
	guest.MustKrpingctl(t, "agent", "--forget", "vol0")
	a.attached("vol0")
	guest.Eventually(t, 10*time.Second, "the volume is remembered", func() bool {
		text, err := os.ReadFile(volumes.DefaultPath)
		return err == nil && strings.Contains(string(text), uuidA)
	})
	if kept, err := os.ReadFile(volumes.DefaultPath + ".broken"); err != nil || string(kept) != "{" {
		t.Errorf("kept %q, %v", kept, err)
	}
}
