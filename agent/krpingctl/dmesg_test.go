// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"strings"
	"testing"

	"krping/proc"
)

// --lines begins with the last messages, and goes on with those that come.
func TestLastMessages(t *testing.T) {
	for n, want := range map[int]string{0: "new", 1: "m4 new", 3: "m2 m3 m4 new", 5: "m0 m1 m2 m3 m4 new", 100: "m0 m1 m2 m3 m4 new"} {
		i := 0
		read := func(context.Context) (proc.Message, error) {
			if i == 5 {
				return proc.Message{}, io.EOF
			}
			i++
			return proc.Message{Text: fmt.Sprint("m", i-1)}, nil
		}
		came := false
		after := func(context.Context) (proc.Message, error) {
			if came {
				return proc.Message{}, io.EOF
			}
			came = true
			return proc.Message{Text: "new"}, nil
		}
		var texts []string
		for next := lastMessages(n, read, after); ; {
			m, err := next(t.Context())
			if err != nil {
				break
			}
			texts = append(texts, m.Text)
		}
		if got := strings.Join(texts, " "); got != want {
			t.Errorf("%d: %s, want %s", n, got, want)
		}
	}
}
