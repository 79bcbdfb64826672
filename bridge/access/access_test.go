// SPDX-License-Identifier: Apache-2.0

package access

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func keyFile(t *testing.T, text string, mode os.FileMode) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "key")
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(path, mode); err != nil {
		t.Fatal(err)
	}
	return path
}

func TestReadKey(t *testing.T) {
	const secret = "0123456789abcdef"
	for _, text := range []string{secret, " \n" + secret + "\r\n\n"} {
		key, err := ReadKey(keyFile(t, text, 0o400))
		if err != nil || string(key) != secret {
			t.Errorf("%q: %q, %v", text, string(key), err)
		}
	}
	if key, err := ReadKey(keyFile(t, strings.Repeat("x", 64), 0o600)); err != nil || strings.Contains(fmt.Sprintf("%v %+v %#v %s", key, struct{ K Key }{key}, key, key), "x") {
		t.Errorf("%v, or printing the key reveals it", err)
	}
}

func TestReadKeyRefusesFiles(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	if err := unix.Mkfifo(fifo, 0o600); err != nil {
		t.Fatal(err)
	}
	good := strings.Repeat("k", 32)
	for name, tc := range map[string]struct{ path, want string }{
		"group reads":    {keyFile(t, good, 0o640), "chmod 600"},
		"others read":    {keyFile(t, good, 0o604), "chmod 600"},
		"others write":   {keyFile(t, good, 0o602), "chmod 600"},
		"short":          {keyFile(t, good[:15], 0o600), "16 to 64"},
		"long":           {keyFile(t, good+good+"k", 0o600), "16 to 64"},
		"empty":          {keyFile(t, "\n", 0o600), "16 to 64"},
		"two words":      {keyFile(t, good+" "+good[:8], 0o600), "16 to 64"},
		"binary":         {keyFile(t, good+"\xff", 0o600), "16 to 64"},
		"no file":        {filepath.Join(t.TempDir(), "none"), "no such file"},
		"a directory":    {t.TempDir(), "regular"},
		"a FIFO":         {fifo, "regular"},
		"another user's": {otherUsersKey(t, good), "belongs to"},
	} {
		key, err := ReadKey(tc.path)
		if err == nil || key != nil || !strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), tc.path) || strings.Contains(err.Error(), "kkk") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func otherUsersKey(t *testing.T, text string) string {
	t.Helper()
	path := keyFile(t, text, 0o600)
	if err := os.Chown(path, 12345, 12345); err != nil {
		t.Skip("only root can give files away")
	}
	return path
}

func TestList(t *testing.T) {
	list, err := ParseList([]string{"192.168.77.2", "10.1.2.3/8", "fd77::/64", "fe80::1", "::ffff:172.16.0.0/108"})
	if err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]bool{
		"192.168.77.2": true, "192.168.77.3": false, "::ffff:192.168.77.2": true, "10.255.0.1": true, "11.0.0.1": false,
		"172.31.0.1": true, "172.32.0.1": false,
		"fd77::1:2": true, "fd77:0:0:1::1": false, "fe80::1%eth0": true, "::1": false,
	} {
		if list.Allows(netip.MustParseAddr(addr)) != want {
			t.Errorf("%s allowed: %v, want %v", addr, !want, want)
		}
	}
	if everyone, err := ParseList([]string{"::/0"}); err != nil || everyone.Allows(netip.MustParseAddr("1.2.3.4")) || !everyone.Allows(netip.IPv6Loopback()) {
		t.Errorf("::/0: %v; want all of IPv6 and nothing of IPv4", err)
	}
	if !(List{}).Allows(netip.MustParseAddr("1.2.3.4")) {
		t.Error("an empty list does not allow an address")
	}
	for _, bad := range []string{"", "host", "1.2.3", "1.2.3.4/33", "1.2.3.4/", "1.2.3.4/-1", "fd77::/129", "::ffff:1.2.3.4/95", "fe80::1%eth0", "1.2.3.4 "} {
		if list, err := ParseList([]string{bad}); err == nil {
			t.Errorf("%q is accepted: %v", bad, list)
		}
	}
}
