// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"krping/bridge/wire"
)

// What this package and the module make of the same messages and numbers is the same.
func TestAgreesWithModule(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	var lines, want []string
	add := func(answer, format string, args ...any) {
		lines, want = append(lines, fmt.Sprintf(format, args...)), append(want, answer)
	}
	kinds := map[wire.Damage]int{}
	for i := range 20000 {
		size := 1 + r.IntN(80)
		if i%10 == 0 {
			size += 200 + r.IntN(400) // several packets
		}
		tag, number := uint16(r.Uint32()), r.Uint32()
		if i%2 == 0 {
			number = uint32(r.IntN(70))
		}
		data := message(size, tag, number)
		if i%50 == 0 {
			add(fmt.Sprintf("%x", data), "fill %x %d %d", tag, number, size)
		}
		spoil(r, data, tag, number)
		answer := "0"
		if !isIntact(data, tag, number) {
			f := examine(data, tag, number)
			kinds[f.kind]++
			answer = fmt.Sprintf("%d %d %d %v %v %v %v %016x %016x", f.kind, f.offset, f.number, f.mayBeWritten(), f.lone, f.blank, f.isMissing(int(number%5)), f.want, f.got)
		}
		add(answer, "check %x %d %x", tag, number, data)
	}
	for kind := wire.Foreign; kind <= wire.Damaged; kind++ {
		if kinds[kind] < 100 {
			t.Errorf("only %d cases of %v", kinds[kind], kind)
		}
	}
	for range 5000 {
		a := account{next: r.Uint64() >> (1 + r.IntN(63))}
		low, bytes := r.Uint32(), 1+r.IntN(4)
		low &= 1<<(8*bytes) - 1
		add(fmt.Sprint(a.extend(low, 8*bytes)), "near %d %d %d", low, bytes, a.next)
	}
	for range 300 {
		var a account
		var line strings.Builder
		base, spread := 0, []int{3, 20, 1500, 5000}[r.IntN(4)]
		for range 300 {
			n := base + r.IntN(spread)
			base += r.IntN(spread)
			if r.IntN(10) == 0 {
				a.skip(uint64(n) + 1)
				fmt.Fprintf(&line, " %d", -n-1)
				continue
			}
			a.add(uint64(n))
			fmt.Fprintf(&line, " %d", n)
		}
		add(fmt.Sprint(a.next, a.received, a.repeated, a.reordered), "account%s", line.String())
	}
	for i, got := range module(t, lines) {
		if got != want[i] {
			t.Errorf("%s:\nthis package: %s\nthe module: %s", lines[i], want[i], got)
		}
	}
}

// spoil changes a message as faults do.
func spoil(r *rand.Rand, data []byte, tag uint16, number uint32) {
	at := r.IntN(len(data))
	switch r.IntN(8) {
	case 0:
		data[at] ^= byte(1 << r.IntN(8))
	case 1:
		wipe(data[at:])
	case 2:
		copy(data[at:], message(len(data), tag, number-uint32(r.IntN(200)))[at:])
	case 3:
		copy(data[:at], message(len(data), tag, number+64))
	case 4:
		fill(data, tag^uint16(r.IntN(2048)), number+uint32(r.IntN(3)))
	case 5:
		fill(data, ^tag, number)
	case 6:
		if len(data) > 16 {
			copy(data, data[8:])
		}
	case 7:
		for i := range data {
			data[i] = byte(r.Uint32())
		}
	}
}

// module returns what the module's functions answer to each line.
func module(t *testing.T, lines []string) []string {
	t.Helper()
	program := filepath.Join(t.TempDir(), "words")
	compile := exec.Command("cc", "-O1", "-Wall", "-Werror", "-I.", "-o", program, "../bridge/verbstest/testdata/words.c", "verbs/message.c", "verbs/account.c")
	compile.Dir = "../../kmod"
	if out, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("compile the module's side: %v\n%s", err, out)
	}
	cmd := exec.Command(program)
	cmd.Stdin = strings.NewReader(strings.Join(lines, "\n") + "\n")
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	answers := strings.Split(strings.TrimSuffix(string(out), "\n"), "\n")
	if len(answers) != len(lines) {
		t.Fatalf("%d answers to %d lines", len(answers), len(lines))
	}
	return answers
}
