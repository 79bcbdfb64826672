// SPDX-License-Identifier: Apache-2.0

package main

import "testing"

// A target's address is reached through the device that has it, or the route to it.
func TestReaches(t *testing.T) {
	for address, want := range map[string]bool{
		"traddr=127.0.0.1,trsvcid=4420": true, "traddr=::1,trsvcid=4420": true, "trsvcid=4420,traddr=fe80::1%lo": true,
		"traddr=fe80::1%eth7": false, "host_traddr=127.0.0.1": false, "traddr=pci": false, "": false,
	} {
		if got := reaches("lo", address); got != want {
			t.Errorf("%s: %v, want %v", address, got, want)
		}
	}
	if reaches("no-such-device", "traddr=127.0.0.1") {
		t.Error("through a device that is not there")
	}
}
