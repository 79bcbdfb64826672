// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestAgentCheck(t *testing.T) {
	file := filepath.Join(t.TempDir(), "krping.yaml")
	for text, want := range map[string]int{
		"sessions:\n  - name: vol0\n    addr: 10.0.0.1\n": exitOK,
		"sesions:\n": exitUsage,
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		err := run(t.Context(), []string{"agent", "--check", "--config", file}, &out)
		if exitCode(err) != want || (want == exitOK) != strings.Contains(out.String(), "sessions: 1, metrics at /run/krping/agent.sock") {
			t.Errorf("%q: %v, printed %q", text, err, out.String())
		}
	}
	err := run(t.Context(), []string{"agent", "--check", "--config", file + "x"}, &bytes.Buffer{})
	if exitCode(err) != exitFailure || !strings.Contains(hint(err), "krping.yaml of the source is an example") {
		t.Errorf("no file: %v, hint %q", err, hint(err))
	}
}
