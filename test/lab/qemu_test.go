// SPDX-License-Identifier: Apache-2.0

package lab

import "testing"

func TestQEMUVersion(t *testing.T) {
	for out, want := range map[string]struct {
		version string
		patched bool
	}{
		"QEMU emulator version 7.2.22 (Debian 1:7.2+dfsg-7+deb12u18+b3)\nCopyright (c) 2003-2022\n": {"7.2.22", false},
		"QEMU emulator version 10.0.2 (Debian 1:10.0.2+ds-2+deb13u1~bpo12+1)\n":                     {"10.0.2", true},
		"QEMU emulator version 9.2.0\n": {"9.2.0", false},
	} {
		version, err := qemuVersion(out)
		if err != nil || version != want.version || (QEMU{Version: version}).patchedCode() != want.patched {
			t.Errorf("%q: %q, %v, want %+v", out, version, err, want)
		}
	}
	if version, err := qemuVersion("usage\n"); err == nil {
		t.Errorf("no version, but %q", version)
	}
}
