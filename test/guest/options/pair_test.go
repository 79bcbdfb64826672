// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package options tests the options of ping/pong commands inside one VM: each combination works or is refused as
// documented, up to the limits of the values.
package options

import (
	"errors"
	"strings"
	"testing"

	"krping/proc"
	"krping/test/guest/internal/guest"
)

// addresses returns the options with the VM's addresses, by family.
func addresses(t *testing.T) map[string]string {
	return map[string]string{"IPv4": "addr=" + guest.Addr(t), "IPv6": "addr6=fd77::1"}
}

// pair runs a server and a client with the same options; both must succeed.
func pair(t *testing.T, options string) {
	t.Helper()
	done := guest.StartServer(t, "server,"+options)
	client := guest.Command("client,"+options, guest.Limit)
	if server := <-done; client != nil || server != nil {
		t.Errorf("%s: client: %v, server: %v", options, client, server)
	}
}

func procFS(t *testing.T) proc.FS {
	t.Helper()
	fs, err := proc.NewFS(proc.DefaultMount)
	if err != nil {
		t.Fatal(err)
	}
	return fs
}

// reasons returns what the kernel log says about a failed command.
func reasons(err error) string {
	var failure *proc.CommandError
	if !errors.As(err, &failure) {
		return ""
	}
	return strings.Join(failure.Reasons, "; ")
}
