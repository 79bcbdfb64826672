// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"encoding/hex"
	"errors"
	"fmt"
	"math/bits"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// verbsTests are all verbs on all types of queue pairs that have them.
var verbsTests = []string{
	"send", "write", "write_imm", "read", "fetch_add", "cmp_swap",
	"send,qp=uc", "write,qp=uc", "write_imm,qp=uc", "send,qp=ud",
}

func isAtomic(verb string) bool { return verb == "fetch_add" || verb == "cmp_swap" }

// damageLine is the line of the log about the first damaged message that a side has found.
var damageLine = regexp.MustCompile(`queue pair (\d+), message (\d+), byte (\d+): (stale|torn|shifted|foreign|damaged): [^:]*: expected ((?:[0-9a-f]{2} ?){8}), found ((?:[0-9a-f]{2} ?){8})`)

// A bit that is flipped in a message is found by each test with validate, and the log says where it is.
func TestVerbsFindDamage(t *testing.T) {
	load(t)
	const size, rate, byteOf = 203, 31, 37 // message n has its bit flipped in byte 37 n
	for _, verb := range verbsTests {
		for _, measure := range []string{"bw", "lat"} {
			t.Run(verb+"/"+measure, func(t *testing.T) {
				at := fmt.Sprintf("addr=%s,port=%d,", guest.Addr(t), guest.NextPort())
				options, bytes := "client,"+at+"verb="+verb+","+measure+",validate,count=200", 8
				if !isAtomic(verb) {
					options += fmt.Sprintf(",size=%d", size)
					bytes = size
				}
				guest.Run(t, "dmesg", "-C")
				before := faults.fired(t, "verbs_corrupt")
				faults.set(t, setting{name: "verbs_corrupt", rate: rate})
				defer faults.clear(t, "verbs_corrupt")
				done := guest.StartServer(t, "server,verbs,"+at)
				client := guest.Command(options, guest.Limit)
				server := <-done
				if !errors.Is(client, unix.EBADMSG) {
					t.Errorf("client: %v, want EBADMSG", client)
				}
				// The server of a READ or of an atomic operation sees no data; that of lat learns only what it finds itself.
				passive := verb == "read" || isAtomic(verb)
				if fine, found := server == nil, errors.Is(server, unix.EBADMSG); !fine && !found || passive && found || !passive && measure == "bw" && fine {
					t.Errorf("server: %v", server)
				}
				if faults.fired(t, "verbs_corrupt") == before {
					t.Error("no bit was flipped")
				}
				log := guest.Run(t, "dmesg")
				lines := damageLine.FindAllStringSubmatch(log, -1)
				if len(lines) == 0 {
					t.Errorf("the log does not say which message is damaged:\n%s", log)
				}
				for _, l := range lines {
					number, _ := strconv.Atoi(l[2]) // digits
					wantFlip(t, l, byteOf*number%bytes, isAtomic(verb))
				}
			})
		}
	}
}

// wantFlip checks that a line of the log is about a bit of a byte of queue pair 0. Of a counter the offset is always 0.
func wantFlip(t *testing.T, line []string, byteAt int, counter bool) {
	t.Helper()
	want, err := hex.DecodeString(strings.ReplaceAll(line[5], " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	got, err := hex.DecodeString(strings.ReplaceAll(line[6], " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	flipped := 0
	for i := range want {
		flipped += bits.OnesCount8(want[i] ^ got[i])
	}
	if counter {
		byteAt = 0
	}
	if line[1] != "0" || line[3] != strconv.Itoa(byteAt) || flipped != 1 {
		t.Errorf("%s: want one bit of byte %d of queue pair 0", line[0], byteAt)
	}
}
