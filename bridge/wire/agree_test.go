// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	v1 "krping/bridge/wire/v1"
)

// The fuzzers below compare this package with the module's decoder, kmod/wire/wire.c, on the same inputs.

// decoder is a process that decodes by the module's decoder, with sanitizers.
type decoder struct {
	mu  sync.Mutex
	in  io.Writer
	out *bufio.Reader
}

// startDecoder starts the process, until the end of the test.
func startDecoder(t testing.TB) *decoder {
	t.Helper()
	program := filepath.Join(t.TempDir(), "wire_dump")
	compile := exec.Command("cc", "-g", "-O1", "-Wall", "-Werror", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-I.", "-o", program,
		"fuzz/wire_dump.c", "wire/wire.c", "wire/name.c")
	compile.Dir = "../../kmod"
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile the module's side: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = in.Close()
		if err := cmd.Wait(); err != nil {
			t.Errorf("the module's decoder: %v", err)
		}
	})
	return &decoder{in: in, out: bufio.NewReader(out)}
}

// decode returns what fuzz/wire_dump.c prints for an input.
func (d *decoder) decode(t *testing.T, kind string, input []byte) string {
	t.Helper()
	d.mu.Lock()
	defer d.mu.Unlock()
	if _, err := fmt.Fprintf(d.in, "%s %x\n", kind, input); err != nil {
		t.Fatalf("the module's decoder has ended: %v, at %s %x", err, kind, input)
	}
	line, err := d.out.ReadString('\n')
	if err != nil {
		t.Fatalf("the module's decoder has ended: %v, at %s %x", err, kind, input)
	}
	return strings.TrimSuffix(line, "\n")
}

// seed adds the inputs of a kind of the module's fuzzer, and the recorded messages of version 1 that match.
func seed(f *testing.F, kind byte, matches func(m v1.Message) bool) {
	f.Helper()
	files, err := filepath.Glob(corpus + "*")
	if err != nil || len(files) == 0 {
		f.Fatal(err, files)
	}
	for _, file := range files {
		if b, err := os.ReadFile(file); err != nil {
			f.Fatal(err)
		} else if len(b) > 0 && b[0]%4 == kind {
			f.Add(b[1:])
		}
	}
	for _, name := range []string{"plain", "key", "rejects"} {
		for _, m := range v1.Recorded(f, name) {
			if matches(m) {
				f.Add(m.Bytes(nil))
			}
		}
	}
}

const corpus = "../../kmod/fuzz/corpus/wire/"

func isHello(m v1.Message) bool { return m.FromClient && len(m.Bytes(nil)) == HelloSize }

func FuzzHelloAgrees(f *testing.F) {
	seed(f, 0, isHello)
	d := startDecoder(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		want := helloOutcome(input)
		if got := d.decode(t, "hello", input); got != want {
			t.Errorf("%x:\nthe module: %s\nthis package: %s", input, got, want)
		}
	})
}

// The module is a client and checks the sizes in a welcome, which this package does not. What the module accepts,
// this package decodes to the same values.
func FuzzWelcomeAgrees(f *testing.F) {
	seed(f, 1, func(m v1.Message) bool { return strings.Contains(m.Name, "welcome") })
	d := startDecoder(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		want := welcomeOutcome(input)
		if got := d.decode(t, "welcome", input); got != want && strings.HasPrefix(got, "ok") {
			t.Errorf("%x:\nthe module: %s\nthis package: %s", input, got, want)
		}
	})
}

func FuzzCommandsAgree(f *testing.F) {
	seed(f, 2, func(m v1.Message) bool { return m.FromClient && !isHello(m) })
	d := startDecoder(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		for version, kind := range map[uint8]string{1: "commands1", 2: "commands"} {
			got, want := d.decode(t, kind, input), commandsOutcome(input, version)
			if got != want && !(want == "refused" && strings.HasPrefix(got, "refused ")) {
				t.Errorf("version %d, %x:\nthe module: %s\nthis package: %s", version, input, got, want)
			}
		}
	})
}

// Of responses the same holds as of welcomes.
func FuzzResponsesAgree(f *testing.F) {
	seed(f, 3, func(m v1.Message) bool { return strings.HasPrefix(m.Name, "answer to ") })
	d := startDecoder(f)
	f.Fuzz(func(t *testing.T, input []byte) {
		want := responsesOutcome(input)
		if got := d.decode(t, "responses", input); got != want && strings.HasPrefix(got, "ok") {
			t.Errorf("%x:\nthe module: %s\nthis package: %s", input, got, want)
		}
	})
}

// Seeds of version 2 are accepted, so that the fuzzers do not only compare refusals; as version 1, its commands are not.
func TestSeedsOfVersion2(t *testing.T) {
	d := startDecoder(t)
	for name, kind := range map[string]string{
		"hello-2-take-over": "hello", "hello-2-read-only": "hello", "hello-2-proof": "hello",
		"hello-2-digest": "hello", "hello-2-slash": "hello", "welcome-2": "welcome", "welcome-2-proven": "welcome", "zeroes-no-unmap": "commands", "keep-alive-bye": "commands",
	} {
		b, err := os.ReadFile(corpus + name)
		if err != nil {
			t.Fatal(err)
		}
		if got := d.decode(t, kind, b[1:]); !strings.HasPrefix(got, "ok ") {
			t.Errorf("%s: %s", name, got)
		}
		if kind == "commands" {
			if got := d.decode(t, "commands1", b[1:]); !strings.HasPrefix(got, "refused ") {
				t.Errorf("%s in version 1: %s", name, got)
			}
		}
	}
}
