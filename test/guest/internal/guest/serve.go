// SPDX-License-Identifier: Apache-2.0

//go:build lab

package guest

import (
	"fmt"
	"testing"
	"time"

	"krping/test/internal/late"
)

// ServeCommand returns the command that serves a volume on the guest's address. The options are written as in the
// module's commands, with commas between them; one is backing=.
func ServeCommand(t testing.TB, name string, port int, options string) string {
	return fmt.Sprintf("server,addr=%s,port=%d,block=%s,%s", Addr(t), port, name, options)
}

// Serve serves a volume by the module until the end of the test or StopServing.
func Serve(t testing.TB, name string, port int, options string) {
	t.Helper()
	if err := Command(ServeCommand(t, name, port, options), Limit); err != nil {
		t.Fatalf("serve %s: %v", name, err)
	}
	t.Cleanup(func() {
		if Volume(t, name) != nil {
			StopServing(t, name)
		}
	})
}

// StopServing stops a volume, and checks that this takes at most 3 s.
func StopServing(t testing.TB, name string) {
	t.Helper()
	start := time.Now()
	if err := Command("stop,target,block="+name, Limit); err != nil {
		t.Errorf("stop %s: %v", name, err)
	}
	if took := time.Since(start); took > Slow(3*time.Second) {
		late.Errorf(t, "stop %s took %v, want at most 3 s", name, took)
	}
}
