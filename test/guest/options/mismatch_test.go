// SPDX-License-Identifier: Apache-2.0

//go:build lab

package options

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
	"krping/test/internal/late"
)

type mismatch struct {
	name           string
	client, server proc.Command
	reason         string // a word in the client's log
}

func mismatches(t *testing.T) []mismatch {
	t.Helper()
	ping, bw := proc.Command{Test: proc.Ping}, proc.Command{Test: proc.Bandwidth}
	reg := proc.Command{MemMode: "reg"}
	with := func(c proc.Command, set func(*proc.Command)) proc.Command {
		set(&c)
		return c
	}
	size := func(n uint32) func(*proc.Command) { return func(c *proc.Command) { c.Size = n } }
	qps := func(n uint32) func(*proc.Command) { return func(c *proc.Command) { c.QPs = n } }
	tos := func(n uint8) func(*proc.Command) { return func(c *proc.Command) { c.TOS = &n } }
	inv := func(c *proc.Command) { c.ServerInv = true }
	duplex := func(c *proc.Command) { c.Duplex = true }
	all := []mismatch{
		{"size of a ping", with(ping, size(1001)), with(ping, size(1000)), "size"},
		{"size of bw", with(bw, size(65537)), bw, "size"},
		{"more qps than the server", with(bw, qps(3)), bw, "qps"},
		{"fewer qps than the server", with(bw, qps(2)), with(bw, qps(3)), "qps"},
		{"server_inv of the client", with(reg, inv), reg, "server_inv"},
		{"server_inv of the server", reg, with(reg, inv), "server_inv"},
		{"duplex of the client", with(bw, duplex), bw, "duplex"},
		{"duplex of the server", bw, with(bw, duplex), "duplex"},
	}
	if !guest.IWARP(t) { // iWARP does not report it to the server
		all = append(all, mismatch{"tos that differs", with(ping, tos(32)), with(ping, tos(40)), "tos 40"},
			mismatch{"tos of the server", ping, with(ping, tos(40)), "tos 40"})
	}
	tests := []proc.Test{proc.Ping, proc.WriteLatency, proc.ReadLatency, proc.Bandwidth, proc.FastRegister}
	for _, client := range tests {
		for _, server := range tests {
			if client != server {
				all = append(all, mismatch{
					string(client) + " to a server of " + string(server),
					proc.Command{Test: client}, proc.Command{Test: server}, "another test",
				})
			}
		}
	}
	return all
}

// A client whose options do not match is rejected at once, with the reason.
func TestMismatch(t *testing.T) {
	fs := procFS(t)
	for _, m := range mismatches(t) {
		t.Run(m.name, func(t *testing.T) {
			for _, c := range []*proc.Command{&m.client, &m.server} {
				c.Addr, c.Port, c.Count = netip.MustParseAddr(guest.Addr(t)), 9983, new(uint32(3))
			}
			m.client.Role, m.server.Role = proc.Client, proc.Server
			// Try until the reason is logged: the log takes ten lines in five seconds.
			guest.Eventually(t, 20*time.Second, "the log has "+m.reason, func() bool {
				return strings.Contains(refused(t, fs, m), m.reason)
			})
		})
	}
}

// refused runs both sides, and returns the client's log lines about the failure.
func refused(t *testing.T, fs proc.FS, m mismatch) string {
	t.Helper()
	done := guest.StartServer(t, m.server.String())
	start := time.Now()
	_, err := fs.Run(t.Context(), m.client)
	if !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("client: %v, want ECONNREFUSED", err)
	}
	if err := <-done; !errors.Is(err, unix.EPROTO) {
		t.Errorf("server: %v, want EPROTO", err)
	}
	if took := time.Since(start); took > guest.Slow(3*time.Second) {
		late.Errorf(t, "the commands ended after %v", took)
	}
	return reasons(err)
}

// Options that need not match: those of one side only, and sizes below the server's.
func TestNoMismatch(t *testing.T) {
	addr := "addr=" + guest.Addr(t) + ",port=9983,count=3,"
	for _, tc := range []struct{ name, client, server string }{
		{"smaller ping", "size=999", "size=1000"},
		{"smaller bw", "bw,size=999", "bw,size=1000"},
		{"tos that the server does not demand", "tos=40", "validate"},
		{"mem_mode of the client", "mem_mode=reg", "validate"},
		{"mem_mode of the server", "validate", "mem_mode=reg"},
		{"txdepth", "bw,txdepth=1", "bw,txdepth=7"},
		{"poll of the client", "wlat,poll", "wlat"},
		{"poll of the server", "wlat", "wlat,poll"},
		{"local_dma_lkey of the server", "validate", "local_dma_lkey"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			done := guest.StartServer(t, "server,"+addr+tc.server)
			if err := guest.Command("client,"+addr+tc.client, guest.Limit); err != nil {
				t.Errorf("client: %v", err)
			}
			if err := <-done; err != nil {
				t.Errorf("server: %v", err)
			}
		})
	}
}
