// SPDX-License-Identifier: Apache-2.0

//go:build lab

package options

import (
	"errors"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/proc"
	"krping/test/guest/internal/guest"
)

// A choice is a value of an option, as text and in a Command; without text it is the default.
type choice struct {
	text string
	set  func(*proc.Command)
}

func flag(name string, set func(*proc.Command)) []choice { return []choice{{}, {name, set}} }

var dimensions = [][]choice{
	{
		{},
		{"wlat", func(c *proc.Command) { c.Test = proc.WriteLatency }},
		{"rlat", func(c *proc.Command) { c.Test = proc.ReadLatency }},
		{"bw", func(c *proc.Command) { c.Test = proc.Bandwidth }},
		{"fr", func(c *proc.Command) { c.Test = proc.FastRegister }},
	},
	flag("tos=40", func(c *proc.Command) { c.TOS = new(uint8(40)) }),
	flag("validate", func(c *proc.Command) { c.Validate = true }),
	flag("mem_mode=reg", func(c *proc.Command) { c.MemMode = "reg" }),
	flag("server_inv", func(c *proc.Command) { c.ServerInv = true }),
	flag("local_dma_lkey", func(c *proc.Command) { c.LocalDMALkey = true }),
	flag("poll", func(c *proc.Command) { c.Poll = true }),
	flag("duplex", func(c *proc.Command) { c.Duplex = true }),
	{
		{},
		{"txdepth=1", func(c *proc.Command) { c.TxDepth = 1 }},
		{"txdepth=7", func(c *proc.Command) { c.TxDepth = 7 }},
	},
	flag("qps=3", func(c *proc.Command) { c.QPs = 3 }),
}

// combination is one choice of each dimension.
type combination struct {
	text    string
	command proc.Command
}

func (c combination) legalFor(role proc.Role) bool {
	c.command.Role = role
	c.command.Addr = netip.IPv6Loopback()
	return c.command.Check() == nil
}

// combinations returns all of them; with -short one in 37, which still has each choice.
func combinations() []combination {
	all := []combination{{text: "port=9989,count=3,size=1000"}}
	for _, choices := range dimensions {
		var longer []combination
		for _, c := range all {
			for _, choice := range choices {
				next := c
				if choice.text != "" {
					next.text += "," + choice.text
					choice.set(&next.command)
				}
				longer = append(longer, next)
			}
		}
		all = longer
	}
	if !testing.Short() {
		return all
	}
	var some []combination
	for i := 0; i < len(all); i += 37 {
		some = append(some, all[i])
	}
	return some
}

func TestMatrix(t *testing.T) {
	for family, addr := range addresses(t) {
		t.Run(family, func(t *testing.T) {
			ran := 0
			for _, c := range combinations() {
				if c.legalFor(proc.Client) && c.legalFor(proc.Server) {
					pair(t, addr+","+c.text)
					ran++
				}
			}
			t.Logf("%d combinations", ran)
		})
	}
}

func TestIllegalCombinations(t *testing.T) {
	refused := 0
	for _, c := range combinations() {
		for _, role := range []proc.Role{proc.Client, proc.Server} {
			if c.legalFor(role) {
				continue
			}
			command := string(role) + ",addr=" + guest.Addr(t) + "," + c.text
			// A short limit: a server that starts by mistake would wait.
			if err := guest.Command(command, 100*time.Millisecond); !errors.Is(err, unix.EINVAL) {
				t.Errorf("%s: %v, want EINVAL", command, err)
			}
			refused++
		}
	}
	t.Logf("%d combinations", refused)
}

// Logging of ping texts is rate-limited and would slow down the matrix: one test is enough.
func TestVerbose(t *testing.T) {
	log, err := procFS(t).OpenKmsg(true)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	pair(t, "addr="+guest.Addr(t)+",port=9989,count=3,size=64,verbose,validate")
	shown := map[string]int{}
	for {
		m, err := log.Next(t.Context())
		if err != nil {
			break
		}
		if len(m.Text) > 60 { // "ping 2: |rdma-ping-2: CDE...|"
			shown[m.Subject]++
		}
	}
	if shown["client"] != 3 || shown["server"] != 3 {
		t.Errorf("pings in the log: %v, want 3 of each side", shown)
	}
}

// Only iWARP has an RDMA READ that invalidates. A server learns which device it has when a client connects.
func TestReadInv(t *testing.T) {
	options := "addr=" + guest.Addr(t) + ",port=9989,count=3,mem_mode=reg"
	if guest.IWARP(t) {
		pair(t, options+",read_inv,validate")
		return
	}
	done := guest.StartServer(t, "server,"+options+",read_inv")
	if err := guest.Command("client,"+options, guest.Limit); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("client: %v, want ECONNREFUSED", err)
	}
	if err := <-done; !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("server: %v, want EOPNOTSUPP", err)
	}
	if err := guest.Command("client,"+options+",read_inv", guest.Limit); !errors.Is(err, unix.EOPNOTSUPP) {
		t.Errorf("client with read_inv: %v, want EOPNOTSUPP", err)
	}
}

// Numbers, empty and repeated options as scripts for upstream's krping may have them; server_inv alone registers memory.
func TestUpstreamsWays(t *testing.T) {
	pair(t, "addr="+guest.Addr(t)+",,port=1,port=0x2705,count=100,count=03,server_inv,validate,validate,size=5,size=0x100,")
	server := guest.StartServer(t, "server,addr="+guest.Addr(t)+",port=9989,size=0x20,size=010")
	if err := guest.Command("client,addr="+guest.Addr(t)+",port=9989,count=1,size=9", guest.Limit); !errors.Is(err, unix.ECONNREFUSED) {
		t.Errorf("9 bytes to a server of 010, which is 8: %v, want ECONNREFUSED", err)
	}
	if err := <-server; !errors.Is(err, unix.EPROTO) {
		t.Errorf("server: %v, want EPROTO", err)
	}
}
