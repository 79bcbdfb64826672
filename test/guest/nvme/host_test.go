// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nvme

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"krping/agent/doctor"
	"krping/agent/nvme/nvmehost"
	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

const configfs = "/sys/kernel/config/nvmet"

// put writes a file of sysfs or configfs.
func put(t *testing.T, path, value string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(value), 0); err != nil {
		t.Fatal(err)
	}
}

// A controller whose target came back with another namespace is live and has no disk: list and doctor say why, and
// their fix works.
func TestTargetCameBackWithOtherNamespaces(t *testing.T) {
	needs.Test(t, needs.Once)
	serve(t, "--nqn", nqn, "--null", "16MiB", "--transport", "tcp")
	c, _ := connect(t, "--nqn", nqn, "--transport", "tcp", "--reconnect-delay", "1")
	link, namespace := configfs+"/ports/1/subsystems/"+nqn, configfs+"/subsystems/"+nqn+"/namespaces/1/"
	if err := os.Remove(link); err != nil {
		t.Fatal(err)
	}
	put(t, namespace+"enable", "0")
	put(t, namespace+"device_uuid", "b2710bda-8c47-4348-87f1-b71c8c2658bb")
	put(t, namespace+"enable", "1")
	if err := os.Symlink(configfs+"/subsystems/"+nqn, link); err != nil {
		t.Fatal(err)
	}
	var now nvmehost.Controller
	for ends := time.Now().Add(60 * time.Second); now.Problem == "" && time.Now().Before(ends); time.Sleep(200 * time.Millisecond) {
		now = controllers(t)[0]
	}
	const cause = "identifiers changed for nsid 1"
	if now.Name != c.Name || now.State != "live" || len(now.Namespaces) != 0 || !strings.Contains(now.Problem, cause) || !strings.Contains(now.Fix, "nvme disconnect --device "+c.Name) {
		t.Errorf("listed: %+v", now)
	}
	if ran := guest.Krpingctl(t, "nvme", "list"); ran.Code != 0 || !strings.Contains(ran.Stderr, cause) || !strings.Contains(ran.Stdout, "none") {
		t.Errorf("list: exit code %d, %s%s", ran.Code, ran.Stdout, ran.Stderr)
	}
	found := false
	for _, f := range decode[doctor.Report](t, guest.Binary(t, "krpingctl"), "doctor", "--json").Findings {
		found = found || f.Check == "nvme" && strings.Contains(f.Cause, cause)
	}
	if !found {
		t.Error("doctor does not tell")
	}
	command, _, _ := strings.Cut(now.Fix, ", then")
	failure{fix: command}.applyFix(t)
	if again, _ := connect(t, "--nqn", nqn, "--transport", "tcp"); again.Namespaces[0].UUID != "b2710bda-8c47-4348-87f1-b71c8c2658bb" {
		t.Errorf("connected: %+v", again)
	}
	nvme(t, "disconnect", "--nqn", nqn)
	nvme(t, "target", "remove", nqn)
	clean(t)
}

// A host with a key connects only with it, also after save and restore. A kernel that cannot authenticate refuses.
func TestAuthentication(t *testing.T) {
	needs.Test(t, needs.Once)
	const host = "nqn.2024-01.org.example:keyed"
	const key = "DHHC-1:00:ia6zGodOr4SEG0Zzaw398rpY0wqipUWj4jWjUh4HWUz6aQ2n:"
	serve(t, "--nqn", nqn, "--null", "16MiB", "--transport", "tcp", "--allow-host", host)
	at := []string{"connect", "--transport", "tcp", "--traddr", guest.Addr(t), "--nqn", nqn, "--hostnqn", host, keepAlive}
	dir := configfs + "/hosts/" + host
	if _, err := os.Stat(dir + "/dhchap_key"); err != nil { // 6.1
		with := write(t, []byte(`{"hosts":[{"nqn":"nqn.other","dhchap":{"key":"`+key+`"}}]}`))
		fails(t, 2, []string{"this kernel cannot authenticate hosts"}, "target", "restore", with)
		nvme(t, "target", "remove", nqn)
		clean(t)
		return
	}
	put(t, dir+"/dhchap_key", key)
	// A target that got a wrong key may close the connection before the host has read why. The host's kernel then
	// waits for its admin time-out, 60 s, which the kernel of the VM calls hung after 30 s.
	put(t, "/sys/module/nvme_core/parameters/admin_timeout", "20")
	t.Cleanup(func() { put(t, "/sys/module/nvme_core/parameters/admin_timeout", "60") })
	refuses := func() {
		t.Helper()
		fails(t, 5, []string{"only with its DH-HMAC-CHAP key", "--dhchap-secret"}, at...)
		wrong := strings.TrimSpace(guest.Run(t, "nvme", "gen-dhchap-key", "--nqn", host))
		fails(t, 5, []string{"authentication failed"}, append(at, "--dhchap-secret", wrong)...)
		nvme(t, append(at, "--dhchap-secret", key)...)
		nvme(t, "disconnect", "--nqn", nqn)
	}
	refuses()
	file := filepath.Join(t.TempDir(), "config.json")
	nvme(t, "target", "save", file)
	nvme(t, "target", "restore", "--clear", file)
	refuses()
	put(t, dir+"/dhchap_ctrl_key", key)
	nvme(t, append(at, "--dhchap-secret", key, "--dhchap-ctrl-secret", key)...)
	nvme(t, "disconnect", "--nqn", nqn)
	nvme(t, "target", "remove", "--all")
	clean(t)
}

// connect-all connects to each subsystem once.
func TestConnectAll(t *testing.T) {
	needs.Test(t, needs.Once)
	const two = "nqn.2024-01.org.example:two"
	serve(t, "--nqn", nqn, "--null", "16MiB", "--transport", "tcp")
	serve(t, "--nqn", two, "--null", "16MiB", "--transport", "tcp")
	all := []string{"connect-all", "-t", "tcp", "-a", guest.Addr(t), keepAlive, "--fast_io_fail_tmo", "7"}
	if out := nvme(t, all...); strings.Count(out, "/dev/nvme") != 2 {
		t.Errorf("connected: %s", out)
	}
	if tmo := strings.TrimSpace(guest.Run(t, "sh", "-c", "cat /sys/class/nvme/nvme*/fast_io_fail_tmo")); tmo != "7\n7" {
		t.Errorf("fast_io_fail_tmo is %q", tmo)
	}
	if out := nvme(t, append(all, "-o", "json")...); !strings.Contains(out, `"controllers":[]`) || len(controllers(t)) != 2 {
		t.Errorf("connected again: %s", out)
	}
	nvme(t, "disconnect", "--all")
	nvme(t, "target", "remove", "--all")
	clean(t)
}

// A saved file has what the kernel has beyond nvmetcli's groups.
func TestSavedAttributes(t *testing.T) {
	needs.Test(t, needs.Once)
	image := filepath.Join(t.TempDir(), "disk.img")
	if err := os.WriteFile(image, make([]byte, 1<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	serve(t, "--nqn", nqn, "--device", image, "--transport", "tcp")
	set := map[string]string{configfs + "/discovery_nqn": "nqn.2024-01.org.example:discovery"}
	namespace := configfs + "/subsystems/" + nqn + "/namespaces/1/"
	put(t, namespace+"enable", "0")
	for _, name := range []string{"buffered_io", "resv_enable"} {
		set[namespace+name] = "1"
	}
	for path, value := range set {
		if _, err := os.Stat(path); err != nil {
			delete(set, path) // not on this kernel
			continue
		}
		put(t, path, value)
	}
	put(t, namespace+"enable", "1")
	if len(set) == 0 {
		t.Error("this kernel has none of these attributes")
	}
	file := filepath.Join(t.TempDir(), "config.json")
	nvme(t, "target", "save", file)
	nvme(t, "target", "remove", "--all")
	if _, err := os.Stat(configfs + "/discovery_nqn"); err == nil {
		put(t, configfs+"/discovery_nqn", "nqn.2014-08.org.nvmexpress.discovery")
	}
	nvme(t, "target", "restore", file)
	for path, want := range set {
		if got, err := os.ReadFile(path); strings.TrimSpace(string(got)) != want {
			t.Errorf("%s: %q, %v, want %s", path, got, err, want)
		}
	}
	nvme(t, "target", "remove", "--all")
	if _, err := os.Stat(configfs + "/discovery_nqn"); err == nil {
		put(t, configfs+"/discovery_nqn", "nqn.2014-08.org.nvmexpress.discovery")
	}
	clean(t)
}

// A controller is passed through again, but not while its disk is in use.
func TestRestorePassthru(t *testing.T) {
	needs.Test(t, needs.Once)
	serve(t, "--nqn", nqn, "--null", "16MiB", "--transport", "tcp")
	c, dev := connect(t, "--nqn", nqn, "--transport", "tcp")
	const through = "nqn.2024-01.org.example:through"
	file := write(t, []byte(fmt.Sprintf(`{"subsystems":[{"nqn":%q,"allowed_hosts":[],"attr":{"allow_any_host":1},"namespaces":[],
		"passthru":[{"device":{"path":"/dev/%s"},"enable":1,"attributes":{"admin_timeout":7}}]}]}`, through, c.Name)))
	if _, err := os.Stat(configfs + "/subsystems/" + nqn + "/passthru"); err != nil { // 6.1
		fails(t, 2, []string{"passes no controllers through", "CONFIG_NVME_TARGET_PASSTHRU"}, "target", "restore", file)
		nvme(t, "disconnect", "--nqn", nqn)
		nvme(t, "target", "remove", nqn)
		clean(t)
		return
	}
	guest.Run(t, "mkfs.ext4", "-q", dev)
	dir := t.TempDir()
	guest.Run(t, "mount", dev, dir)
	fails(t, 1, []string{"cannot pass through /dev/" + c.Name, dev + " is mounted at " + dir}, "target", "restore", file).applyFix(t)
	nvme(t, "target", "restore", file)
	if got := strings.Join(strings.Fields(guest.Run(t, "sh", "-c", "cd "+configfs+"/subsystems/"+through+"/passthru && cat enable device_path admin_timeout")), " "); got != "1 /dev/"+c.Name+" 7" {
		t.Errorf("passed through: %s", got)
	}
	nvme(t, "target", "remove", through)
	nvme(t, "disconnect", "--nqn", nqn)
	nvme(t, "target", "remove", nqn)
	clean(t)
}
