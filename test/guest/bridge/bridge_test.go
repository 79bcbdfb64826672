// SPDX-License-Identifier: Apache-2.0

//go:build lab

// Package bridge tests inside one VM what only krping-bridge has: a command line, an orderly end, stores in files
// and on disks. What both targets do is tested by packages block, target and access.
package bridge

import (
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/fakeclient"
	"krping/test/guest/internal/guest"
	"krping/test/guest/internal/targets"
)

const mib = 1 << 20

// SIGTERM ends the bridge with status 0, and its connections.
func TestTermination(t *testing.T) {
	served := targets.Bridge.ServeNew(t, 16*mib, targets.Config{})
	c := fakeclient.Connect(t, served.Port, fakeclient.Hello(1))
	guest.Signal(t, served.Bridge.Cmd, unix.SIGTERM)
	if err := served.Bridge.Cmd.Wait(); err != nil {
		t.Errorf("exit: %v", err)
	}
	c.WantClosed("after SIGTERM")
}

func TestBadCommandLines(t *testing.T) {
	addr := targets.Bridge.ServeNew(t, 16*mib, targets.Config{}).Bridge.Addr
	program := guest.Binary(t, "krping-bridge")
	for _, tc := range []struct {
		args []string
		want string
	}{
		{[]string{"--store", "mem:", "--size", "1MiB"}, "--listen ADDR:PORT is needed"},
		{nil, "--ping ADDR:PORT"},
		{[]string{"--ping", "1.2.3"}, "10.0.0.1:9999"},
		{[]string{"--ping", "192.168.77.1:9990", "--listen", "192.168.77.1:9990", "--store", "mem:", "--size", "1MiB"}, "given twice"},
		{[]string{"--ping", addr}, "port is in use"},
		{[]string{"--ping", "192.168.77.1:9990", "--ping-max-size", "0"}, "2MiB"},
		{[]string{"--listen", addr, "--store", "mem:", "--size", "1MiB"}, "port is in use"},
		{[]string{"--listen", "1.2.3.4:9", "--store", "mem:", "--size", "1MiB"}, "krpingctl link add"},
		{[]string{"--listen", "1.2.3", "--store", "mem:", "--size", "1MiB"}, "10.0.0.1:9999"},
		{[]string{"--listen", addr}, "--store file:PATH"},
		{[]string{"--listen", addr, "--store", "mem:", "--size", "lots"}, "64k"},
		{[]string{"--listen", addr, "--store", "mem:", "--size", "1000"}, "multiple of the block size"},
		{[]string{"--listen", addr, "--volume", "a=mem:,colour=red"}, "block-size"},
		{[]string{"--listen", addr, "--volume", "a b=mem:,size=1MiB"}, "letters"},
		{[]string{"--listen", addr, "--store", "file:/nosuch/vol", "--size", "1MiB"}, "no such file"},
	} {
		out, err := guest.TryRun(append([]string{program}, tc.args...)...)
		if err == nil || !strings.Contains(out, tc.want) {
			t.Errorf("%q: %v, want %q in %s", tc.args, err, tc.want, out)
		}
	}
}
