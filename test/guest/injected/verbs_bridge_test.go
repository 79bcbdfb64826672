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

// A bit that is flipped in the memory of the bridge is found in each validated test, by the side that sees the data, and
// both sides say so.
func TestVerbsFindDamageInTheBridge(t *testing.T) {
	load(t)
	dir := t.TempDir()
	port := guest.NextPort()
	b := guest.StartFaultyPingBridge(t, port, dir)
	points := knobs(dir)
	for _, verb := range []string{"send", "write", "write_imm", "read", "send,qp=uc", "write,qp=uc", "write_imm,qp=uc", "send,qp=ud"} {
		t.Run(verb, func(t *testing.T) {
			before, logged := points.fired(t, "verbs_corrupt"), strings.Count(b.Log.String(), "data arrived damaged")
			points.set(t, setting{name: "verbs_corrupt", rate: 3})
			defer points.set(t, setting{name: "verbs_corrupt"})
			command := fmt.Sprintf("client,addr=%s,port=%d,verb=%s,bw,validate,count=300,size=200", guest.Addr(t), port, verb)
			if err := guest.Command(command, guest.Limit); !errors.Is(err, unix.EBADMSG) {
				t.Errorf("%s: %v, want EBADMSG", command, err)
			}
			if points.fired(t, "verbs_corrupt") == before {
				t.Error("no bit was flipped")
			}
			if found := strings.Count(b.Log.String(), "data arrived damaged") - logged; (found > 0) != (verb != "read") {
				t.Errorf("the bridge has found damage %d times", found)
			}
		})
	}
}
