// SPDX-License-Identifier: Apache-2.0

//go:build lab

package ping

import (
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"krping/test/guest/internal/guest"
	"krping/test/internal/needs"
)

// Every errno that kmod/INTERFACE.md section 1 documents.
var documented = []error{
	nil, unix.EINVAL, unix.EADDRNOTAVAIL, unix.EADDRINUSE, unix.ECONNREFUSED, unix.EHOSTUNREACH,
	unix.ENETUNREACH, unix.ETIMEDOUT, unix.ECONNRESET, unix.EPROTO, unix.EBADMSG, unix.ENOENT,
	unix.EEXIST, unix.EBUSY, unix.ENODEV, unix.EINTR, unix.ENOMEM, unix.EAGAIN, unix.ESTALE,
	unix.EPROTONOSUPPORT, unix.EOPNOTSUPP, unix.ENOKEY, unix.EKEYREJECTED,
}

var pieces = []string{
	"client", "server", "stop", "addr=", "addr6=", "port=", "count=", "size=", "verbose", "validate",
	"timeout=", "block=", "queues=", "depth=", "force", ",", ",,", "=", "-", "0", "1", "9999", "65536",
	"4294967295", "4294967296", "18446744073709551616", "127.0.0.1", "192.168.77.1", "::1", "fd77::1",
	"fe80::1%eth0", "%", "key=", "krping:k", "allow=", "/", "vol0", "..", "\n", " ", "\x00", "\xff", "A", "tx-depth=", "%s%n%x",
}

func randomCommand(rnd *rand.Rand) string {
	var b strings.Builder
	switch rnd.IntN(4) {
	case 0: // noise
		for range rnd.IntN(600) {
			b.WriteByte(byte(rnd.Uint32()))
		}
	case 1: // options in any order
		for range rnd.IntN(12) {
			b.WriteString(pieces[rnd.IntN(len(pieces))])
		}
	default: // a valid command with changes
		text := []byte([]string{
			"client,addr=192.168.77.1,port=9,count=3,size=64,validate",
			"server,addr=192.168.77.1,port=9989,validate,verbose,timeout=1",
			"client,addr=192.168.77.1,port=9,block=vol0,queues=2,depth=8",
			"stop,block=vol0,force",
		}[rnd.IntN(4)])
		for range rnd.IntN(4) {
			at := rnd.IntN(len(text))
			switch rnd.IntN(3) {
			case 0:
				text[at] = byte(rnd.Uint32())
			case 1:
				text = slices.Delete(text, at, at+1)
			default:
				text = slices.Insert(text, at, byte(rnd.Uint32()))
			}
		}
		b.Write(text)
	}
	return b.String()
}

// Each of 5000 random strings is accepted, or refused with a documented errno. If the kernel logs a problem, the lab fails
// the suite.
func TestRandomCommands(t *testing.T) {
	needs.Test(t, needs.Once)
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rnd := rand.New(rand.NewPCG(seed, 0))
	results := map[error]int{}
	for range 5000 {
		command := randomCommand(rnd)
		err := guest.Command(command, 50*time.Millisecond)
		if !slices.Contains(documented, err) {
			t.Errorf("%q: %v is not documented", command, err)
		}
		results[err]++
	}
	t.Logf("results: %v", results)
	if results[unix.EINVAL] < 2500 || results[unix.ECONNREFUSED] == 0 || results[unix.EINTR] == 0 {
		t.Error("the strings do not reach all stages: parser, connection, wait")
	}
	guest.NoThreads(t)
}
