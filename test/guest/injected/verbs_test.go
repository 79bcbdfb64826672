// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
)

// A bit that is flipped in a message is found by each test with validate, and its place is in the log.
func TestVerbsFindDamage(t *testing.T) {
	load(t)
	for _, verb := range []string{"send", "write", "write_imm", "read", "fetch_add", "cmp_swap", "send,qp=uc", "write,qp=uc", "write_imm,qp=uc", "send,qp=ud"} {
		for _, measure := range []string{"bw", "lat"} {
			t.Run(verb+"/"+measure, func(t *testing.T) {
				at := fmt.Sprintf("addr=%s,port=%d,", guest.Addr(t), guest.NextPort())
				options := "client," + at + "verb=" + verb + "," + measure + ",validate,count=100"
				if !strings.Contains(verb, "_add") && !strings.Contains(verb, "_swap") {
					options += ",size=200"
				}
				guest.Run(t, "dmesg", "-C")
				before := faults.fired(t, "verbs_corrupt")
				faults.set(t, setting{name: "verbs_corrupt", rate: 31})
				defer faults.clear(t, "verbs_corrupt")
				done := guest.StartServer(t, "server,verbs,"+at)
				client := guest.Command(options, guest.Limit)
				server := <-done
				if !errors.Is(client, unix.EBADMSG) {
					t.Errorf("client: %v, want EBADMSG", client)
				}
				// The server of a READ or of an atomic operation sees no data; that of lat learns only what it finds itself.
				passive := strings.Contains(verb, "read") || strings.Contains(verb, "_add") || strings.Contains(verb, "_swap")
				if fine, found := server == nil, errors.Is(server, unix.EBADMSG); !fine && !found || passive && found || !passive && measure == "bw" && fine {
					t.Errorf("server: %v", server)
				}
				if faults.fired(t, "verbs_corrupt") == before {
					t.Error("no bit was flipped")
				}
				if log := guest.Run(t, "dmesg"); !strings.Contains(log, "queue pair 0, message ") || !strings.Contains(log, "damaged") {
					t.Errorf("the log does not say which message is damaged:\n%s", log)
				}
			})
		}
	}
}
