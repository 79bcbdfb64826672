// SPDX-License-Identifier: Apache-2.0

package target

import (
	"testing"

	"krping/bridge/wire"
)

// BenchmarkCommands executes messages of four commands of 4 KiB, of a volume in memory, from their receipt to their
// responses.
func BenchmarkCommands(b *testing.B) {
	const size, commands = 4096, 4
	for name, of := range map[string]func(tag uint16) wire.Request{
		"read":  func(tag uint16) wire.Request { return inlineRead(tag, uint64(tag)*size, size) },
		"write": func(tag uint16) wire.Request { return inlineWrite(tag, uint64(tag)*size, make([]byte, size)) },
	} {
		b.Run(name, func(b *testing.B) {
			f := newFixture(b)
			p := f.connect(hello(1, 0))
			var message []byte
			for tag := range uint16(commands) {
				message = of(tag).Append(message)
			}
			b.ReportAllocs()
			b.SetBytes(commands * size)
			for b.Loop() {
				p.toTarget <- append([]byte(nil), message...) // it is cleared
				for left := commands; left > 0; {
					answers, _ := f.answers(p)
					left -= len(answers)
				}
			}
		})
	}
}
