// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import (
	"errors"
	"io"
	"os"
	"runtime"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
	"krping/test/internal/needs"
)

var lists = []string{"/proc/krping_sessions", "/proc/krping_results"}

// What names peers, disks and processes is read by nobody but those who may write commands: not by a user, not by root
// without CAP_SYS_ADMIN, not by root of a user namespace. A network namespace makes no difference.
func TestListsNeedAdmin(t *testing.T) {
	needs.Test(t, needs.StockKernel) // user namespaces
	guest.CheckResources(t)
	attach(t, serve(t, targets.Module, "").Port)
	if err := guest.Command("client,addr="+guest.Addr(t)+",port=1,count=1,timeout=2", guest.Limit); err == nil {
		t.Error("a ping to nobody succeeded")
	}
	peer := "peer=" + guest.Addr(t) + ":"
	for _, list := range lists {
		for _, as := range []string{"", "unshare -n"} {
			if out, err := guest.TryRun("sh", "-c", as+" cat "+list); err != nil || !strings.Contains(out, peer) {
				t.Errorf("%s cat %s: %v\n%s", as, list, err, out)
			}
		}
		for as, want := range map[string]string{
			"setpriv --reuid=65534 --regid=65534 --clear-groups": "Permission denied",
			"setpriv --bounding-set=-sys_admin":                  "Operation not permitted",
			"unshare -U -r":                                      "Operation not permitted",
			"unshare -U -r -n":                                   "Operation not permitted",
			"setpriv --reuid=65534 --regid=65534 --clear-groups unshare -U -r -n": "Permission denied",
		} {
			if out, err := guest.TryRun("sh", "-c", as+" cat "+list); err == nil || strings.Contains(out, peer) || !strings.Contains(out, want) {
				t.Errorf("%s cat %s: %v, want %q\n%s", as, list, err, want, out)
			}
		}
	}
	out, err := guest.TryRun("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", guest.Binary(t, "krpingctl"), "stat")
	const missing = "problem: the module's threads and sessions are not shown: open /proc/krping: permission denied: only root with CAP_SYS_ADMIN may read it"
	if err != nil || !strings.Contains(out, missing) || strings.Contains(out, "vol0") {
		t.Errorf("stat of a user without privileges: %v, want %q\n%s", err, missing, out)
	}
}

// A list that was opened with the capability stays readable, as with other files.
func TestListsAreCheckedWhenOpened(t *testing.T) {
	for _, list := range lists {
		done := make(chan error)
		go func() {
			runtime.LockOSThread() // for good: the thread has lost capabilities
			done <- readLater(list)
		}()
		if err := <-done; err != nil {
			t.Errorf("%s: %v", list, err)
		}
	}
}

func readLater(list string) error {
	f, err := os.Open(list)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := setAdmin(false); err != nil {
		return err
	}
	if _, err := io.ReadAll(f); err != nil {
		return err
	}
	if again, err := os.Open(list); !errors.Is(err, unix.EPERM) {
		_ = again.Close()
		return errors.New("it opens again without CAP_SYS_ADMIN")
	}
	return nil
}
