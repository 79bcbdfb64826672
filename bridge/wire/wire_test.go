// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"

	"krping/bridge/uuid"
)

var limits = Limits{BlockSize: 512, MaxData: 1 << 20, MaxInline: 4096, MaxMessage: 16384, Depth: 128}

// emitted returns the structures that testdata/emit.c prints, by name.
func emitted(t *testing.T) map[string][]byte {
	t.Helper()
	program := filepath.Join(t.TempDir(), "emit")
	if out, err := exec.Command("cc", "-Wall", "-Werror", "-I../../kmod/uapi", "-o", program, "testdata/emit.c").CombinedOutput(); err != nil {
		t.Fatalf("compile the C side: %v\n%s", err, out)
	}
	out, err := exec.Command(program).Output()
	if err != nil {
		t.Fatal(err)
	}
	structs := map[string][]byte{}
	for line := range strings.Lines(string(out)) {
		name, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		if structs[name], err = hex.DecodeString(text); err != nil {
			t.Fatal(err)
		}
	}
	return structs
}

// The messages of testdata/emit.c.
var (
	hello   = Hello{Version: 2, Flags: HelloFew, QueueIndex: 1, QueueCount: 2, Depth: FewMessages, Session: SessionID(bytes.Repeat([]byte{0x5a}, 16)), Volume: VolumeIDOf("vol0.a_b-c")}
	welcome = Welcome{Version: 2, Flags: VolumeReadOnly | VolumeWriteback | VolumeVolatile, Depth: 128, Capacity: 0x0102030405060800, Epoch: 0x1112131415161718, BlockSize: 512, MaxData: 1 << 20, MaxInline: 4096, MaxMessage: 16384,
		UUID: uuid.UUID(bytes.Repeat([]byte{0x3c}, 16)), Writer: 0x41424344, Caps: CapDiscard | CapShared | CapTornBlocks, Slots: Slots{Addr: 0x5152535455565758, Rkey: 0x61626364, Size: 4096, Count: 7}}
	rejectMsg = &Reject{Reason: RejectQueues, Value: 64}
	writeData = bytes.Repeat([]byte{1}, 512)
	write     = Request{Command{Op: OpWrite, Flags: FlagInline | FlagFUA, Tag: 0xabcd, Length: 512, Offset: 0x0102030405060800, CRC: 0xdeadbeef}, writeData}
	read      = Request{Command: Command{Op: OpRead, Tag: 7, Length: 65536, Offset: 4096, Addr: 0x2122232425262728, Rkey: 0x31323334}}
	digest    = Request{Command: Command{Op: OpDigest, Flags: FlagInline | FlagSHA256, Length: DigestMax}}
	zeroes    = Request{Command: Command{Op: OpWriteZeroes, Flags: FlagNoUnmap, Tag: 8, Length: 512}}
	bye       = Request{Command: Command{Op: OpKeepAlive, Flags: FlagInline | FlagBye, Tag: TagKeepAlive}}
	inUse     = &InUse{Version: 2, Holder: netip.MustParseAddr("192.168.77.2"), UUID: welcome.UUID}
	response  = Response{Tag: 0xabcd, Flags: ResponseInline, Length: 4, CRC: 0x01020304}
	testHello = TestHello{Test: TestBandwidth, ServerInv: true, Duplex: true, Size: 0x01020304, QPs: 0x0506, Group: 0x0708}
	ping      = PingMessage{Addr: 0x2122232425262728, Rkey: 0x31323334, Length: 65536}
	challenge = &Challenge{Version: 2, ID: 0x01020304, Nonce: TargetNonce(bytes.Repeat([]byte{0x7a}, 16))}
	proof     = Hello{
		Version: 2, Flags: HelloProof | HelloTakeOver | HelloFew, QueueIndex: 1, QueueCount: 2, Depth: FewMessages, Session: hello.Session,
		Answer: KeyAnswer{Challenge: 0x01020304, Nonce: ClientNonce(bytes.Repeat([]byte{0x6b}, 8)), Proof: Proof(bytes.Repeat([]byte{0x5c}, 16))},
	}
)

func TestEncodingMatchesC(t *testing.T) {
	c := emitted(t)
	transcript := Transcript{Hello: proof, Volume: hello.Volume, Nonce: challenge.Nonce}
	transcript1, hello1, welcome1 := transcript, hello, welcome
	transcript1.Hello.Version, transcript1.Hello.Flags, hello1.Version, hello1.Flags, welcome1.Version = 1, HelloProof, 1, 0, 1
	for name, got := range map[string][]byte{
		"challenge": challenge.Append(nil), "proof": proof.Append(nil),
		"client": transcript.append(nil, transcript.label("client"), make([]byte, WelcomeSize)),
		"target": transcript.append(nil, transcript.label("target"), welcome.Append(nil)),
		"in_use": inUse.Append(nil), "zeroes": zeroes.Append(nil), "bye": bye.Append(nil),
		"client1": transcript1.append(nil, transcript1.label("client"), make([]byte, WelcomeSize1)),
		"target1": transcript1.append(nil, transcript1.label("target"), welcome1.Append(nil)),
		"hello1":  hello1.Append(nil), "welcome1": welcome1.Append(nil), "reject1": (&Reject{Version: 1, Reason: RejectQueues, Value: 64}).Append(nil),
		"hello": hello.Append(nil), "welcome": welcome.Append(nil), "reject": rejectMsg.Append(nil),
		"write": write.Append(nil)[:CommandSize], "read": read.Append(nil), "digest": digest.Append(nil), "rsp": response.Append(nil, nil),
		"test": testHello.Append(nil), "ping": ping.Append(nil), "tos": (&Reject{Version: 1, Reason: RejectTOS, Value: 40}).Append(nil),
	} {
		if !bytes.Equal(got, c[name]) {
			t.Errorf("%s:\n%x, C has\n%x", name, got, c[name])
		}
	}
}

func TestDecodeHandshakeOfC(t *testing.T) {
	c := emitted(t)
	padded := func(name string) []byte { return append(c[name], make([]byte, 40)...) }
	if got, err := DecodeHello(padded("hello")); err != nil || got != hello {
		t.Errorf("hello: %+v, %v", got, err)
	}
	if got, err := DecodeHello(padded("proof")); err != nil || got != proof {
		t.Errorf("hello with a proof: %+v, %v", got, err)
	}
	if got, err := DecodeChallenge(padded("challenge")); err != nil || *got != *challenge {
		t.Errorf("challenge: %+v, %v", got, err)
	}
	if got, p, err := DecodeProvenWelcome(append(bytes.Clone(c["welcome"]), proof.Answer.Proof[:]...)); err != nil || got != welcome || p != proof.Answer.Proof {
		t.Errorf("proven welcome: %+v, %x, %v", got, p, err)
	}
	if got, err := DecodeWelcome(c["welcome"]); err != nil || got != welcome {
		t.Errorf("welcome: %+v, %v", got, err)
	}
	want1 := Welcome{Version: 1, Flags: welcome.Flags, Depth: 128, Capacity: welcome.Capacity, Epoch: welcome.Epoch, BlockSize: 512, MaxData: 1 << 20, MaxInline: 4096, MaxMessage: 16384}
	if got, err := DecodeWelcome(padded("welcome1")); err != nil || got != want1 {
		t.Errorf("welcome of version 1: %+v, %v", got, err)
	}
	if got, err := DecodeHello(padded("hello1")); err != nil || got.Version != 1 || got.Volume != hello.Volume {
		t.Errorf("hello of version 1: %+v, %v", got, err)
	}
	if got, err := DecodeInUse(c["in_use"]); err != nil || *got != *inUse {
		t.Errorf("reject of a second writer: %+v, %v", got, err)
	}
	if got, err := DecodeReject(c["reject"]); err != nil || got.Reason != rejectMsg.Reason || got.Value != 64 {
		t.Errorf("reject: %+v, %v", got, err)
	}
	if got, found, err := DecodeTestHello(padded("test")); err != nil || !found || got != testHello {
		t.Errorf("test hello: %+v, %v, %v", got, found, err)
	}
}

func TestDecodeMessagesOfC(t *testing.T) {
	c := emitted(t)
	if got, err := DecodePingMessage(c["ping"]); err != nil || got != ping {
		t.Errorf("ping: %+v, %v", got, err)
	}
	message := slices.Concat(c["write"], writeData, c["read"], c["digest"], c["zeroes"], c["bye"])
	if got, err := DecodeRequests(message, limits); err != nil || !reflect.DeepEqual(got, []Request{write, read, digest, zeroes, bye}) {
		t.Errorf("commands: %+v, %v", got, err)
	}
	if got, err := DecodeAnswers(response.Append(nil, []byte("abcd"))); err != nil || len(got) != 1 || got[0].Response != response || string(got[0].Data) != "abcd" {
		t.Errorf("responses: %+v, %v", got, err)
	}
}

func TestInUse(t *testing.T) {
	want := InUse{Version: 2, Holder: netip.MustParseAddr("192.168.77.2"), UUID: uuid.New()}
	b := want.Append(nil)
	if got, err := DecodeInUse(b); err != nil || *got != want || len(b) != InUseSize || !bytes.Equal(b[RejectSize+10:][:6], []byte{0xff, 0xff, 192, 168, 77, 2}) {
		t.Errorf("%+v, %v, from %x", got, err, b)
	}
	old := want
	old.Version = 1
	if r, err := DecodeReject(old.Append(nil)); err != nil || r.Reason != RejectInUse || r.Version != 1 || len(old.Append(nil)) != RejectSize {
		t.Errorf("version 1: %+v, %v", r, err)
	}
	for name, data := range map[string][]byte{"short": b[:InUseSize-1], "version 1": append(old.Append(nil), make([]byte, 40)...), "another reason": (&Challenge{}).Append(make([]byte, 0, 80))[:ChallengeSize]} {
		if u, err := DecodeInUse(data); err == nil {
			t.Errorf("%s: %+v", name, u)
		}
	}
}

func TestCRC32C(t *testing.T) {
	if crc := CRC32C([]byte("123456789")); crc != 0xe3069283 { // RFC 3720, appendix B.4
		t.Errorf("%#x", crc)
	}
}

func TestDecodeHelloErrors(t *testing.T) {
	good := Hello{QueueCount: 1, Depth: 1, Session: SessionID{1}, Volume: VolumeIDOf("v")}.Append(nil)
	change := func(at int, b ...byte) []byte {
		bad := bytes.Clone(good)
		copy(bad[at:], b)
		return bad
	}
	for name, tc := range map[string]struct {
		data []byte
		want Reason
	}{
		"empty":            {nil, RejectMagic},
		"short":            {good[:HelloSize-1], RejectMagic},
		"magic":            {change(0, 0), RejectMagic},
		"version 0":        {change(4, 0), RejectVersion},
		"version 3":        {change(4, 3), RejectVersion},
		"read-only, old":   {change(4, 1, HelloReadOnly), RejectInvalid},
		"take-over, old":   {change(4, 1, HelloTakeOver), RejectInvalid},
		"reads, takes":     {change(5, HelloReadOnly|HelloTakeOver), RejectInvalid},
		"two flags":        {change(5, HelloKey|HelloProof), RejectInvalid},
		"unknown flag":     {change(5, 0x40), RejectInvalid},
		"digest, old":      {change(4, 1, HelloDigest), RejectInvalid},
		"few, old":         {change(4, 1, HelloFew), RejectInvalid},
		"digest and proof": {change(5, HelloDigest|HelloProof), RejectInvalid},
		"slash, old":       {bytes.Replace(change(4, 1), []byte("v"), []byte("a/b"), 1)[:HelloSize], RejectInvalid},
		"key and no name":  {append(change(5, HelloKey)[:28], make([]byte, 28)...), RejectInvalid},
		"proof, no depth":  {append(change(5, HelloProof)[:10], make([]byte, 46)...), RejectInvalid},
		"index":            {change(6, 0, 1), RejectInvalid},
		"no queues":        {change(8, 0, 0), RejectInvalid},
		"depth":            {change(10, 0, 0), RejectInvalid},
		"no session":       {change(12, 0), RejectInvalid},
		"no name":          {change(28, 0), RejectInvalid},
		"bad name":         {change(28, '/'), RejectInvalid},
		"name, then more":  {change(28+20, 'a'), RejectInvalid},
		"name without end": {change(28, bytes.Repeat([]byte{'a'}, 28)...), RejectInvalid},
	} {
		_, err := DecodeHello(tc.data)
		var reject *Reject
		if !errors.As(err, &reject) || reject.Reason != tc.want || reject.Detail == "" {
			t.Errorf("%s: %v, want reason %d", name, err, tc.want)
		}
	}
}

func TestDecodeChallengeErrors(t *testing.T) {
	good := (&Challenge{ID: 1}).Append(nil)
	for name, data := range map[string][]byte{
		"empty": nil, "short": good[:ChallengeSize-1], "a reject": good[:RejectSize], "another magic": append([]byte{0}, good[1:]...),
		"another reason": append((&Reject{Reason: RejectKey}).Append(nil), good[RejectSize:]...),
	} {
		if c, err := DecodeChallenge(data); err == nil {
			t.Errorf("%s: %+v", name, c)
		}
	}
	for version, sizes := range map[uint8][]int{1: {0, WelcomeSize1 - 1, WelcomeSize1, WelcomeSize1 + 15}, 2: {0, WelcomeSize1, WelcomeSize, ProvenWelcomeSize - 1}} {
		for _, n := range sizes {
			if _, _, err := DecodeProvenWelcome(append(Welcome{Version: version}.Append(nil), make([]byte, 16)...)[:n]); err == nil {
				t.Errorf("a welcome of %d bytes was accepted as a proven one of version %d", n, version)
			}
		}
	}
}

// Each part of the handshake changes both proofs, and the two proofs differ.
func TestProofsCoverTheHandshake(t *testing.T) {
	key, welcome := []byte("a key of sixteen"), Welcome{Depth: 4}
	transcript := Transcript{Hello: Hello{Flags: HelloProof, QueueCount: 2, Depth: 1}, Volume: VolumeIDOf("v")}
	client, target := transcript.ClientProof(key), transcript.TargetProof(key, welcome)
	if client.Equal(target) || !client.Equal(transcript.ClientProof(key)) {
		t.Error("both sides have the same proof, or a proof differs when it is made again")
	}
	for name, change := range map[string]func(*Transcript){
		"target's nonce": func(t *Transcript) { t.Nonce[15] = 1 },
		"client's nonce": func(t *Transcript) { t.Hello.Answer.Nonce[7] = 1 },
		"session":        func(t *Transcript) { t.Hello.Session[15] = 1 },
		"queue":          func(t *Transcript) { t.Hello.QueueIndex = 1 },
		"queues":         func(t *Transcript) { t.Hello.QueueCount = 3 },
		"depth":          func(t *Transcript) { t.Hello.Depth = 2 },
		"version":        func(t *Transcript) { t.Hello.Version = 1 },
		"read-only":      func(t *Transcript) { t.Hello.Flags |= HelloReadOnly },
		"few":            func(t *Transcript) { t.Hello.Flags |= HelloFew },
		"volume":         func(t *Transcript) { t.Volume = VolumeIDOf("w") },
	} {
		changed := transcript
		change(&changed)
		if client.Equal(changed.ClientProof(key)) || target.Equal(changed.TargetProof(key, welcome)) {
			t.Errorf("%s is not covered", name)
		}
	}
	if client.Equal(transcript.ClientProof([]byte("a key of seventee"))) || target.Equal(transcript.TargetProof(key, Welcome{Depth: 5})) {
		t.Error("the key or the welcome is not covered")
	}
	for name, changed := range map[string]Welcome{"UUID": {Depth: 4, UUID: uuid.UUID{15: 1}}, "writer": {Depth: 4, Writer: 1}, "caps": {Depth: 4, Caps: CapShared}} {
		if target.Equal(transcript.TargetProof(key, changed)) {
			t.Errorf("the welcome's %s is not covered", name)
		}
	}
}

func TestDecodeRequestsViolations(t *testing.T) {
	data := make([]byte, 512)
	read := Command{Op: OpRead, Flags: FlagInline, Length: 512}
	change := func(c Command, f func(*Command)) []byte {
		f(&c)
		return Request{c, nil}.Append(nil)
	}
	for name, msg := range map[string][]byte{
		"empty":                   {},
		"short":                   Request{Command: read}.Append(nil)[:CommandSize-1],
		"tail":                    append(Request{Command: read}.Append(nil), 0),
		"unknown op":              change(read, func(c *Command) { c.Op = 8 }),
		"op 0":                    change(read, func(c *Command) { c.Op = 0 }),
		"unknown flag":            change(read, func(c *Command) { c.Flags |= 0x80 }),
		"FUA read":                change(read, func(c *Command) { c.Flags |= FlagFUA }),
		"SHA256 read":             change(read, func(c *Command) { c.Flags |= FlagSHA256 }),
		"NO_UNMAP read":           change(read, func(c *Command) { c.Flags |= FlagNoUnmap }),
		"BYE read":                change(read, func(c *Command) { c.Flags |= FlagBye }),
		"NO_UNMAP keep-alive":     change(Command{Op: OpKeepAlive, Flags: FlagInline | FlagNoUnmap, Tag: TagKeepAlive}, func(*Command) {}),
		"neither inline nor rkey": change(read, func(c *Command) { c.Flags = 0 }),
		"inline and rkey":         change(read, func(c *Command) { c.Rkey = 1 }),
		"address without key":     change(read, func(c *Command) { c.Addr = 1 }),
		"no length":               change(read, func(c *Command) { c.Length = 0 }),
		"odd length":              change(read, func(c *Command) { c.Length = 513 }),
		"odd offset":              change(read, func(c *Command) { c.Offset = 1 }),
		"long inline":             change(read, func(c *Command) { c.Length = 4608 }),
		"long read":               change(read, func(c *Command) { c.Flags, c.Rkey, c.Length = 0, 1, 1<<20+512 }),
		"CRC of a read":           change(read, func(c *Command) { c.CRC = 1 }),
		"flush with length":       change(Command{Op: OpFlush}, func(c *Command) { c.Length = 512 }),
		"flush with offset":       change(Command{Op: OpFlush}, func(c *Command) { c.Offset = 512 }),
		"flush with CRC":          change(Command{Op: OpFlush}, func(c *Command) { c.CRC = 1 }),
		"flush with key":          change(Command{Op: OpFlush}, func(c *Command) { c.Rkey = 1 }),
		"digest too long":         change(Command{Op: OpDigest, Flags: FlagInline}, func(c *Command) { c.Length = DigestMax + 512 }),
		"digest with key":         change(Command{Op: OpDigest, Flags: FlagInline, Length: 512}, func(c *Command) { c.Rkey = 1 }),
		"discard with data":       change(Command{Op: OpDiscard, Flags: FlagInline, Length: 512}, func(*Command) {}),
		"discard too long":        change(Command{Op: OpDiscard}, func(c *Command) { c.Length = RangeMax + 512 }),
		"FUA discard":             change(Command{Op: OpDiscard, Length: 512}, func(c *Command) { c.Flags = FlagFUA }),
		"tag of a read":           change(read, func(c *Command) { c.Tag = TagKeepAlive }),
		"tag of a keep-alive":     change(Command{Op: OpKeepAlive, Flags: FlagInline}, func(c *Command) { c.Tag = 1 }),
		"keep-alive with length":  change(Command{Op: OpKeepAlive, Flags: FlagInline, Tag: TagKeepAlive}, func(c *Command) { c.Length = 512 }),
		"keep-alive not inline":   change(Command{Op: OpKeepAlive, Tag: TagKeepAlive}, func(*Command) {}),
		"write data cut":          Request{Command{Op: OpWrite, Flags: FlagInline, Length: 512}, data}.Append(nil)[:CommandSize+511],
		"write without data":      Request{Command{Op: OpWrite, Flags: FlagInline, Length: 512}, nil}.Append(nil),
		"129 commands":            bytes.Repeat(Request{Command: Command{Op: OpFlush}}.Append(nil), 129),
	} {
		_, err := DecodeRequests(msg, limits)
		var violation *Violation
		if !errors.As(err, &violation) {
			t.Errorf("%s: %v, want a violation", name, err)
		}
	}
	for what, c := range map[string]Command{
		"NO_UNMAP": {Op: OpWriteZeroes, Flags: FlagNoUnmap, Length: 512},
		"BYE":      {Op: OpKeepAlive, Flags: FlagInline | FlagBye, Tag: TagKeepAlive},
	} {
		msg, old := Request{Command: c}.Append(nil), limits
		old.Version = 1
		if _, err := DecodeRequests(msg, old); !errors.As(err, new(*Violation)) {
			t.Errorf("%s in version 1: %v, want a violation", what, err)
		}
		if _, err := DecodeRequests(msg, limits); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, err := DecodeRequests(change(read, func(c *Command) { c.Offset = 1 << 63 }), limits); err != nil {
		t.Errorf("a range outside the volume: %v, want no violation, as the target answers it", err)
	}
}

func FuzzDecodeRequests(f *testing.F) {
	f.Add(Request{Command{Op: OpWrite, Flags: FlagInline, Length: 512}, make([]byte, 512)}.Append(nil))
	f.Add(append(Request{Command: Command{Op: OpFlush}}.Append(nil), Request{Command: Command{Op: OpRead, Length: 8192, Rkey: 1}}.Append(nil)...))
	f.Add([]byte{})
	f.Fuzz(func(t *testing.T, msg []byte) {
		requests, err := DecodeRequests(msg, limits)
		if err != nil {
			return
		}
		var again []byte
		for _, r := range requests {
			again = r.Append(again)
		}
		if len(again) != len(msg) || len(requests) == 0 {
			t.Errorf("%d bytes became %d requests, encoded again in %d bytes", len(msg), len(requests), len(again))
		}
	})
}

func FuzzDecodeHello(f *testing.F) {
	f.Add(Hello{QueueCount: 1, Depth: 1, Session: SessionID{1}, Volume: VolumeIDOf("v")}.Append(nil))
	f.Add(Hello{QueueCount: 1, Depth: 1, Session: SessionID{1}, Volume: VolumeIDOf(longName)}.Append(nil))
	f.Add(Hello{Flags: HelloFew, QueueCount: 1, Depth: 1, Session: SessionID{1}, Volume: VolumeIDOf("v")}.Append(nil))
	f.Add(Hello{Flags: HelloKey, QueueCount: 1, Depth: 1, Session: SessionID{1}, Volume: VolumeIDOf("v")}.Append(nil))
	f.Add(Hello{Flags: HelloProof, QueueCount: 64, QueueIndex: 63, Depth: 128, Session: SessionID{1}, Answer: KeyAnswer{Challenge: 1, Nonce: ClientNonce{1}, Proof: Proof{1}}}.Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		hello, err := DecodeHello(data)
		if err != nil {
			return
		}
		proves, digest := hello.Flags&HelloProof != 0, hello.Flags&HelloDigest != 0
		if hello.QueueIndex >= hello.QueueCount || hello.Depth == 0 || !speaks(hello.Version) || hello.Flags > 0x3f ||
			hello.Version == 1 && hello.Flags > HelloProof || (hello.Volume == VolumeID{}) != proves && !digest ||
			!proves && !digest && !ValidVolumeName(hello.Volume.String()) {
			t.Errorf("accepted %+v", hello)
		}
		if again, err := DecodeHello(hello.Append(nil)); err != nil || again != hello {
			t.Errorf("%+v, encoded and decoded again: %+v, %v", hello, again, err)
		}
	})
}

func FuzzDecodeChallenge(f *testing.F) {
	f.Add((&Challenge{ID: 1, Nonce: TargetNonce{2}}).Append(nil))
	f.Add((&Reject{Reason: RejectKey}).Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := DecodeChallenge(data); err == nil && !bytes.Equal(c.Append(nil)[RejectSize:], data[RejectSize:ChallengeSize]) {
			t.Errorf("%x became %+v", data, c)
		}
	})
}

func FuzzDecodeWelcome(f *testing.F) {
	f.Add(append(welcome.Append(nil), make([]byte, 16)...))
	f.Add(append(Welcome{Version: 1, Depth: 4}.Append(nil), make([]byte, 16)...))
	f.Fuzz(func(t *testing.T, data []byte) {
		w, proof, err := DecodeProvenWelcome(data)
		if err != nil {
			return
		}
		if again := append(w.Append(nil), proof[:]...); !bytes.Equal(again, data[:len(again)]) || w.Version == 2 && w.UUID.IsZero() {
			t.Errorf("%x became %+v", data, w)
		}
	})
}

func FuzzDecodeInUse(f *testing.F) {
	f.Add(inUse.Append(nil))
	f.Fuzz(func(t *testing.T, data []byte) {
		if u, err := DecodeInUse(data); err == nil && !bytes.Equal(u.Append(nil)[RejectSize:], data[RejectSize:InUseSize]) {
			t.Errorf("%x became %+v", data, u)
		}
	})
}

func FuzzDecodeAnswers(f *testing.F) {
	f.Add(Response{Tag: 1, Flags: ResponseInline, Length: 4}.Append(nil, []byte("abcd")))
	f.Fuzz(func(t *testing.T, msg []byte) {
		answers, _ := DecodeAnswers(msg)
		for _, a := range answers {
			if a.Data != nil && len(a.Data) != int(a.Length) {
				t.Errorf("%d bytes of %d", len(a.Data), a.Length)
			}
		}
	})
}
