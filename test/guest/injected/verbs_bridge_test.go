// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

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
	for _, verb := range verbsTests {
		for _, measure := range []string{"bw", "lat"} {
			t.Run(verb+"/"+measure, func(t *testing.T) {
				before, logged := points.fired(t, "verbs_corrupt"), strings.Count(b.Log.String(), "data arrived damaged")
				length := "count=300"
				if measure == "lat" {
					length = "count=100"
				}
				// What is read from the bridge it does not see. It looks at its queue pairs ten times a second.
				passive := verb == "read" || isAtomic(verb)
				if passive {
					length = "duration=5"
				}
				points.set(t, setting{name: "verbs_corrupt", rate: 1})
				defer points.set(t, setting{name: "verbs_corrupt"})
				command := fmt.Sprintf("client,addr=%s,port=%d,verb=%s,%s,validate,%s", guest.Addr(t), port, verb, measure, length)
				if !isAtomic(verb) {
					command += ",size=200"
				}
				if err := guest.Command(command, guest.Limit); !errors.Is(err, unix.EBADMSG) {
					t.Errorf("%s: %v, want EBADMSG", command, err)
				}
				if points.fired(t, "verbs_corrupt") == before {
					t.Error("no bit was flipped")
				}
				if !passive {
					guest.Eventually(t, 10*time.Second, "the bridge has found damage", func() bool {
						return strings.Count(b.Log.String(), "data arrived damaged") > logged
					})
				} else if strings.Count(b.Log.String(), "data arrived damaged") > logged {
					t.Error("the bridge has found damage to what it does not see")
				}
			})
		}
	}
}
