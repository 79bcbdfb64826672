// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// The first byte of an input of kmod/fuzz/corpus/wire, modulo 4, is its kind.
const (
	inputHello    = 0
	inputCommands = 2
)

// The module's decoder, kmod/wire/wire.c, refuses the same messages, and decodes the others to the same values.
func TestDecodingAgreesWithModule(t *testing.T) {
	hellos, messages := inputs(t)
	if len(hellos) < 20 || len(messages) < 60 {
		t.Fatalf("only %d hellos and %d messages to decode", len(hellos), len(messages))
	}
	var lines, want []string
	for _, b := range hellos {
		lines, want = append(lines, fmt.Sprintf("hello %x", b)), append(want, helloOutcome(b))
	}
	for _, b := range messages {
		lines, want = append(lines, fmt.Sprintf("commands %x", b)), append(want, commandsOutcome(b, Version))
		lines, want = append(lines, fmt.Sprintf("commands1 %x", b)), append(want, commandsOutcome(b, 1))
	}
	refused := 0
	for i, got := range module(t, lines) {
		if strings.HasPrefix(want[i], "refused") {
			refused++
		}
		if !strings.HasPrefix(got, want[i]) {
			t.Errorf("%s:\nthis package: %s\nthe module: %s", lines[i], want[i], got)
		}
	}
	if refused == 0 || refused == len(lines) {
		t.Errorf("%d of %d inputs are refused: want some of both", refused, len(lines))
	}
}

// inputs returns the inputs of the module's fuzzer, and variants with one of the first bytes changed.
func inputs(t *testing.T) (hellos, messages [][]byte) {
	t.Helper()
	files, err := filepath.Glob("../../kmod/fuzz/corpus/wire/*")
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if len(b) == 0 {
			continue
		}
		var list *[][]byte
		switch b[0] % 4 {
		case inputHello:
			list = &hellos
		case inputCommands:
			list = &messages
		default:
			continue
		}
		*list = append(*list, b[1:])
		for i := range min(len(b)-1, 4*CommandSize) {
			for _, value := range []byte{0, 1, 0x02, 0x10, 0x20, 0x80, 0xff} {
				changed := bytes.Clone(b[1:])
				changed[i] ^= value
				*list = append(*list, changed)
			}
		}
	}
	return hellos, messages
}

// module returns the output of kmod/wire/wire.c for each line.
func module(t *testing.T, lines []string) []string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "wire_dump")
	compile := exec.Command("cc", "-Wall", "-Werror", "-I.", "-o", program, "fuzz/wire_dump.c", "wire/wire.c", "wire/name.c")
	compile.Dir = "../../kmod"
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile the module's side: %v\n%s", err, out)
	}
	dump := exec.Command(program)
	dump.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := dump.Output()
	if err != nil {
		t.Fatal(err)
	}
	outcomes := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(outcomes) != len(lines) {
		t.Fatalf("%d lines for %d inputs", len(outcomes), len(lines))
	}
	return outcomes
}

func helloOutcome(b []byte) string {
	h, err := DecodeHello(b)
	var reject *Reject
	if errors.As(err, &reject) {
		return fmt.Sprintf("refused %d %d", reject.Reason, reject.Value)
	}
	return fmt.Sprintf("ok %d %d %d %d %d", h.Version, h.Flags, h.QueueIndex, h.QueueCount, h.Depth)
}

func commandsOutcome(b []byte, version uint8) string {
	requests, err := DecodeRequests(b, Limits{Version: version, BlockSize: limits.BlockSize, MaxData: limits.MaxData, MaxInline: limits.MaxInline, Depth: 1 << 15})
	if err != nil {
		return "refused"
	}
	var out strings.Builder
	out.WriteString("ok")
	for _, r := range requests {
		fmt.Fprintf(&out, " %d/%d/%d/%d/%d/%d/%d/%d/%d", r.Op, r.Flags, r.Tag, r.Length, r.Offset, r.Addr, r.Rkey, r.CRC, len(r.Data))
	}
	return out.String()
}
