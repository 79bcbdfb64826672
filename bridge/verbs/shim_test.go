// SPDX-License-Identifier: Apache-2.0

package verbs

import (
	"os/exec"
	"path/filepath"
	"testing"
)

// When a post fails, the number of posted work requests is right: see testdata/post.c.
func TestPostThatFails(t *testing.T) {
	program := filepath.Join(t.TempDir(), "post")
	compile := exec.Command("cc", "-Wall", "-o", program, "testdata/post.c", "shim.c", "-lrdmacm", "-libverbs")
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("%s: %v\n%s", compile, err, out)
	}
	if out, err := exec.Command(program).CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
