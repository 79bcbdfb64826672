// SPDX-License-Identifier: Apache-2.0

package proc

import (
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
)

// base is a command to which options are added.
const base = "client,addr=192.168.77.1,"

// What upstream's krping takes, the module takes in the same way, or it says what is wrong
// (kmod/INTERFACE.md section 1.2).
func TestModuleTakesUpstreamsCommands(t *testing.T) {
	cases := []struct{ command, want string }{
		// numbers: simple_strtoul() with base 0
		{base + "size=0x10", "size=16"},
		{base + "size=0X1f", "size=31"},
		{base + "size=010", "size=8"},
		{base + "size=0", "size=0: must be a number from 1 to 1073741824"},
		{base + "count=00", "count=0"},
		{base + "count=0xffffffff", "count=4294967295"},
		{base + "count=037777777777", "count=4294967295"},
		{base + "size=08", "size=08: must be a number from 1 to 1073741824; a leading 0 makes it octal"},
		{base + "size=0x", "size=0x: must be a number"},
		{base + "size=0xg", "size=0xg: must be a number"},
		{base + "size=1a", "size=1a: must be a number"},
		{base + "size=-1", "size=-1: must be a number"},
		{base + "size=+1", "size=+1: must be a number"},
		{base + "size= 1", "size= 1: must be a number"},
		{base + "size=1 ", "size=1 : must be a number"},
		{base + "port=", "port=: must be a number"},
		{base + "port=65537", "port=65537: must be a number from 1 to 65535"},
		{base + "count=0x100000000", "count=0x100000000: must be a number"},
		{base + "count=18446744073709551617", "count=18446744073709551617: must be a number"},
		{base + "tos=0x100", "tos=0x100: must be a number from 0 to 255"},
		// empty options are skipped, the last of repeated ones wins
		{",,client,,addr=192.168.77.1,,count=3,", "count=3"},
		{"", "exactly one of client, server and stop is needed"},
		{",", "exactly one of client, server and stop is needed"},
		{base + "=3", "unknown option ''"},
		{base + "size=100,size=0x20", "size=32"},
		{base + "count=5,verbose,verbose,count=6", "count=6"},
		{base + "client,addr=192.168.77.2", "addr=192.168.77.2"},
		{"server,addr6=fe80::1%eth0,addr6=fd77::1", "ifname= "},
		{base + "mem_mode=reg,mem_mode=dma", "mem_reg=0"},
		{base + "size=0,size=64", "size=0: must be"},
		{base + "bw,txdepth=3,txdepth=0x11", "txdepth=17"},
		{base + "server", "exactly one of client, server and stop is needed"},
		{base + "addr6=fd77::1", "exactly one of addr and addr6 is needed"},
		{base + "wlat,rlat", "at most one of wlat, rlat, bw and fr"},
		{base + "timeout=3,timeout=4", "timeout is given twice"},
		{base + "block=v,block=v", "block is given twice"},
		{"server,addr=0.0.0.0,allow=1.2.3.4,allow=1.2.3.5", "allow is given twice"},
		// memory
		{base, "mem_reg=0 server_inv=0 read_inv=0"},
		{base + "server_inv", "mem_reg=1 server_inv=1 read_inv=0"},
		{base + "read_inv", "mem_reg=1 server_inv=0 read_inv=1"},
		{base + "server_inv,mem_mode=reg", "mem_reg=1 server_inv=1"},
		{base + "server_inv,mem_mode=dma", "server_inv does not go with mem_mode=dma"},
		{"server,addr=0.0.0.0,read_inv,mem_mode=dma", "read_inv does not go with mem_mode=dma"},
		// queues of a block session
		{base + "block=v,queues=32,poll_queues=32", "ok "},
		{base + "block=v,poll_queues=33", "poll_queues=33: must be a number from 1 to 32"},
		{base + "block=v,queues=64,poll_queues=1", "queues=64 and poll_queues=1: must be 64 together at most"},
		{base + "block=v,mode=tap,backing=ram:16M,poll_queues=1", "poll_queues does not go with mode=tap"},
		// flags take no value
		{base + "verbose=1", "verbose takes no value"},
		{base + "size", "size needs a value"},
	}
	commands := make([]string, len(cases))
	for i, tc := range cases {
		commands[i] = tc.command
	}
	for i, answer := range lineAnswers(t, commands) {
		if !strings.Contains(answer+" ", cases[i].want) {
			t.Errorf("%s: %s, want %s", cases[i].command, answer, cases[i].want)
		}
	}
}

// ParseNumber and the module's parser take the same numbers, with the same values.
func TestNumbersMatchModule(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	texts := []string{"0", "00", "0x", "0xx1", "0X0", "x1", "1_0", "0b1", "0o7", "4294967295", "4294967296", "99999999999999999999", "0xffffffffffffffffff"}
	for range 2000 {
		text := make([]byte, random.IntN(12))
		for i := range text {
			text[i] = "0000123456789abfFxX_-+ ."[random.IntN(24)]
		}
		texts = append(texts, string(text))
	}
	commands := make([]string, len(texts))
	for i, text := range texts {
		commands[i] = base + "count=" + text
	}
	valid := 0
	for i, answer := range lineAnswers(t, commands) {
		n, err := ParseNumber(texts[i])
		if accepted(answer) != (err == nil) {
			t.Errorf("%q: %d, %v; the module: %s", texts[i], n, err, answer)
		}
		if err == nil && !strings.Contains(answer, fmt.Sprintf(" count=%d ", n)) {
			t.Errorf("%q: %s; the module: %s", texts[i], strconv.FormatUint(uint64(n), 10), answer)
		}
		if err == nil {
			valid++
		}
	}
	if valid < 50 {
		t.Errorf("only %d of %d numbers are valid", valid, len(texts))
	}
}
