// SPDX-License-Identifier: Apache-2.0

package config

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/rs/zerolog"

	"krping/proc"
)

func parse(t *testing.T, text string) Config {
	t.Helper()
	c, err := Parse("f", []byte(text))
	if err != nil {
		t.Fatalf("%s\n%v", text, err)
	}
	return c
}

func TestWholeFile(t *testing.T) {
	c := parse(t, `
# everything
listen: 127.0.0.1:9450
log: warn
sessions:
  - name: vol0
    addr: 10.0.0.1
  - {name: "vol-1.a", addr: 'fd77::1', port: 9998, queues: 2, depth: 64, timeout: 10m, fast_fail: 30, heartbeat: 0, mode: remote}
  - name: 007
    addr: fe80::1%eth0
    mode: tap
    backing: /dev/vdb     # a disk
    comm: write_data
    pid: 12
    op: read+write
    sectors: 0-100
    reattach: always
  - name: vol2
    addr: 10.0.0.1
    raid: /dev/md/replica
`)
	if c.Listen != (Address{"tcp", "127.0.0.1:9450", ""}) || c.LogLevel != zerolog.WarnLevel {
		t.Errorf("listen %v, log %v", c.Listen, c.LogLevel)
	}
	var commands []string
	for _, s := range c.Sessions {
		commands = append(commands, s.Command.String()+" "+string(s.Reattach)+" "+s.Raid)
	}
	want := []string{
		"client,addr=10.0.0.1,block=vol0 safe ",
		"client,addr6=fd77::1,port=9998,timeout=600,block=vol-1.a,queues=2,depth=64,fast_fail=30,heartbeat=0,mode=remote safe ",
		"client,addr6=fe80::1%eth0,block=007,mode=tap,backing=/dev/vdb,comm=write_data,pid=12,op=read+write,sectors=0-100 always ",
		"client,addr=10.0.0.1,block=vol2 safe /dev/md/replica",
	}
	if !slices.Equal(commands, want) {
		t.Errorf("sessions\n%s\nwant\n%s", strings.Join(commands, "\n"), strings.Join(want, "\n"))
	}
}

// What editors and other programs' users write: a byte order mark, anchors, a port in an address, and units.
func TestWaysToWriteIt(t *testing.T) {
	c := parse(t, "\xef\xbb\xbf"+`listen: :9450
x-common: &common
  addr: &target 10.0.0.1:9998
  timeout: 30
  heartbeat: 5s
sessions:
  - <<: *common
    name: vol0
  - {<<: [*common], name: vol1, timeout: 1m}
  - name: &name !!str vol2
    addr: *target
    mode: tap
    backing: ram:64MiB
  - name: vol3
    addr: '[fd77::1]:1'
    port: 1
    comm: *name
    mode: tap
    backing: vdb
`)
	if c.Listen != (Address{"tcp", ":9450", ""}) {
		t.Errorf("listen %v", c.Listen)
	}
	if c := parse(t, "listen: localhost:9450"); c.Listen != (Address{"tcp", "127.0.0.1:9450", ""}) {
		t.Errorf("listen %v", c.Listen)
	}
	want := []string{
		"client,addr=10.0.0.1,port=9998,timeout=30,block=vol0,heartbeat=5",
		"client,addr=10.0.0.1,port=9998,timeout=60,block=vol1,heartbeat=5",
		"client,addr=10.0.0.1,port=9998,block=vol2,mode=tap,backing=ram:64M",
		"client,addr6=fd77::1,port=1,block=vol3,mode=tap,backing=/dev/vdb,comm=vol2",
	}
	for i, s := range c.Sessions {
		if s.Command.String() != want[i] {
			t.Errorf("%s, want %s", s.Command, want[i])
		}
	}
	if len(c.Sessions) != len(want) {
		t.Errorf("%d sessions", len(c.Sessions))
	}
}

func TestEmptyFile(t *testing.T) {
	for _, text := range []string{"", "\n", "# nothing\n", "sessions:\n", "sessions: []\n", "---\n"} {
		if c := parse(t, text); c.Listen != (Address{"unix", DefaultListen, ""}) || c.LogLevel != zerolog.InfoLevel || len(c.Sessions) != 0 {
			t.Errorf("%q: %+v", text, c)
		}
	}
}

func TestKeyFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "key")
	session := func(keys string) string { return "sessions:\n  - name: vol0\n    addr: 10.0.0.1\n    " + keys + "\n" }
	for _, tc := range []struct {
		name, keys, text, want string
		mode                   os.FileMode
	}{
		{"valid", "key_file: " + file, "0123456789abcdef", "", 0o600},
		{"readable by others", "key_file: " + file, "0123456789abcdef", "f:4:15: key file " + file + ": mode 0644 lets other users read", 0o644},
		{"short", "key_file: " + file, "0123456789abcde", "f:4:15: key file " + file + ": must be 16 to 64 printable characters", 0o600},
		{"relative", "key_file: key", "", `f:4:15: key_file "key": must be an absolute path`, 0o600},
		{"two keys", "key_file: " + file + "\n    key: krping:vol0", "0123456789abcdef", "f:2:5: session vol0: key and key_file: give one of them", 0o600},
		{"not a krping key", "key: other:vol0", "", `f:4:10: key "other:vol0": must be krping:NAME`, 0o600},
	} {
		if err := errors.Join(os.WriteFile(file, []byte(tc.text), 0o600), os.Chmod(file, tc.mode)); err != nil {
			t.Fatal(err)
		}
		c, err := Parse("f", []byte(session(tc.keys)))
		switch {
		case tc.want == "" && (err != nil || c.Sessions[0].Command.KeyFile != file || !strings.HasSuffix(c.Sessions[0].Command.String(), ",key=krping:vol0")):
			t.Errorf("%s: %v, %v", tc.name, c.Sessions, err)
		case tc.want != "" && (err == nil || !strings.HasPrefix(err.Error(), tc.want)):
			t.Errorf("%s: %v, want %s", tc.name, err, tc.want)
		}
	}
}

func TestWebConfig(t *testing.T) {
	file := filepath.Join(t.TempDir(), "web.yml")
	for text, want := range map[string]string{
		"basic_auth_users: {}\n":      "",
		"basic_auth_users: {a: b}\n":  "f:2:13: web_config " + file + ": ",
		"tls_server_config: {x: y}\n": "f:2:13: web_config " + file + ": ",
	} {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := Parse("f", []byte("listen: :9450\nweb_config: "+file+"\n"))
		switch {
		case want == "" && (err != nil || c.Listen.Web != file):
			t.Errorf("%q: %+v, %v", text, c.Listen, err)
		case want != "" && (err == nil || !strings.HasPrefix(err.Error(), want)):
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
	for text, want := range map[string]string{
		"listen: :9450\nweb_config: web.yml\n":           `f:2:13: web_config "web.yml": must be an absolute path`,
		"listen: :9450\nweb_config: " + file + ".none\n": "f:2:13: web_config " + file + ".none: ",
		"listen: :9450\nweb_config: /dev/zero\n":         "f:2:13: web_config /dev/zero: must be a regular file",
		"web_config: " + file + "\n":                     "f:1:1: web_config: only with listen: ADDRESS:PORT",
	} {
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Parse("f", []byte(text)); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", text, err, want)
		}
	}
}

// Which volume, and how.
func TestIdentityAndAccess(t *testing.T) {
	session := func(keys string) string { return "sessions:\n  - name: vol0\n    addr: 10.0.0.1\n" + keys }
	for keys, want := range map[string]string{
		"    uuid: 123E4567-E89B-12D3-A456-426614174000\n": "client,addr=10.0.0.1,block=vol0,uuid=123e4567-e89b-12d3-a456-426614174000",
		"    read_only: true\n":                            "client,addr=10.0.0.1,block=vol0,read_only",
		"    take_over: true\n    read_only: false\n":      "client,addr=10.0.0.1,block=vol0,take_over",
	} {
		if got := parse(t, session(keys)).Sessions[0].Command.String(); got != want {
			t.Errorf("%q: %s, want %s", keys, got, want)
		}
	}
	for keys, want := range map[string]string{
		"    uuid: vol0\n":                               `f:4:11: uuid "vol0": must be like 123e4567-e89b-12d3-a456-426614174000`,
		"    read_only: maybe\n":                         `f:4:16: read_only "maybe": must be true or false`,
		"    take_over: 1\n":                             `f:4:16: take_over "1": must be true or false`,
		"    read_only: true\n    take_over: true\n":     "f:2:5: session vol0: read_only cannot be used with",
		"    read_only: true\n    raid: /dev/md0\n":      "f:2:5: session vol0: raid needs mode remote, and a disk that is not read_only",
		"    shared: true\n":                             `f:4:5: unknown key "shared"`,
		"    uuid: 00000000-0000-0000-0000-000000000000": `f:4:11: uuid "00000000-0000-0000-0000-000000000000": must be like`,
	} {
		if _, err := Parse("f", []byte(session(keys))); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%q: %v, want %s", keys, err, want)
		}
	}
}

// All mistakes in a file are reported, each with its position.
func TestMistakes(t *testing.T) {
	for text, want := range map[string][]string{
		"lisen: x\n":                 {`f:1:1: unknown key "lisen": did you mean listen?`},
		"colour: x\n":                {`f:1:1: unknown key "colour": it must be one of listen, web_config, log, sessions`},
		"log: info\nlog: warn\n":     {`f:2:1: log is given twice, first on line 1`},
		"log: loud\n":                {`f:1:6: log "loud": must be debug, info, warn or error`},
		"log: [info]\n":              {`f:1:6: log must have a single plain value`},
		"listen: :0\n":               {`f:1:9: listen ":0": must be the absolute path of a socket, or ADDRESS:PORT`},
		"listen: host1:9450\n":       {`f:1:9: listen "host1:9450": must be`},
		"sessions: *s\n":             {`f:1:11: alias *s: no anchor &s in the file`},
		"x-a: &a 1\nx-b: &a 2\n":     {`f:2:6: anchor &a is given twice`},
		"sessions: &s [*s]\n":        {`f:1:14: a session must be a mapping`},
		"x-a: &a {<<: *a}\n<<: *a\n": {`f:1:14: << merges too much, or itself`},
		"x-a: &a [b]\n<<: *a\n":      {`f:1:10: << must have a mapping`},
		"\xff\xfel\x00":              {`f: the file is UTF-16: it must be UTF-8`},
		"sessions: [{name: v, addr: '10.0.0.1:9998', port: 9999}]\n": {`f:1:51: port 9999: addr has port 9998`},
		"listen: 127.0.0.1:0\n":         {`f:1:9: listen "127.0.0.1:0": must be`},
		"listen: agent.sock\n":          {`f:1:9: listen "agent.sock": must be`},
		"- a\n":                         {`f:1:1: the file must be a mapping`},
		"sessions: vol0\n":              {`f:1:11: sessions must be a list`},
		"sessions:\n  - vol0\n":         {`f:2:5: a session must be a mapping with keys of: name, addr, `},
		"sessions:\n  - name: vol0\n":   {`f:2:5: a session needs addr`},
		"sessions:\n  - port: 1\n":      {`f:2:5: a session needs name`, `f:2:5: a session needs addr`},
		"log: info\n  bad: indent\n":    {`f:1:6: mapping value is not allowed`},
		"log: \"info\n":                 {`f:1:6: `},
		"a: 1\n---\nb: 2\n":             {`f:1:1: unknown key`, `f:`},
		"sessions:\n  - {name: v, addr": {`f:2:`},
		`
sessions:
  - name: a//b
    addr: host1
    port: 70000
    queues: many
    que: 5
  - name: vol0
    addr: 10.0.0.1
    heartbeat: 1500ms
    mode: tpa
    backing: /etc/passwd
    sectors: 5-1
    reattach: perhaps
    raid: md0
    depth:
  - name: vol1
    addr: 10.0.0.1
    comm: x
  - name: vol2
    addr: 10.0.0.1
    mode: tap
    backing: /dev/vdb
    raid: /dev/md0
  - addr: 10.0.0.1
    name: vol0
`: {
			`f:3:11: name "a//b": must be 1 to 63 letters, digits, '.', '_', '-', or such parts joined by '/'; no part is '.' or '..'`,
			`f:4:11: addr "host1": must be the IP address of the target's RDMA device`,
			`f:5:11: port "70000": must be 1 to 65535`,
			`f:6:13: queues "many": must be 1 to 64`,
			`f:7:5: unknown key "que": it must be one of name, addr, `,
			`f:10:16: heartbeat "1500ms": must be whole seconds`,
			`f:11:11: mode "tpa": must be remote or tap`,
			`f:12:14: backing "/etc/passwd": must be /dev/NAME, or ram:SIZE`,
			`f:13:14: sectors "5-1": must be FIRST-LAST, in sectors of 512 bytes`,
			`f:14:15: reattach "perhaps": must be safe or always`,
			`f:15:11: raid "md0": must be the path of an md array, like /dev/md0`,
			`f:16:`,
			`f:17:5: session vol1: comm, pid, op and sectors need mode tap`,
			`f:20:5: session vol2: raid needs mode remote, and a disk that is not read_only`,
			`f:26:5: session vol0 is declared twice, first on line 8`,
		},
	} {
		_, err := Parse("f", []byte(text))
		var found Errors
		if !errors.As(err, &found) {
			t.Errorf("%q: %v, want mistakes", text, err)
			continue
		}
		ok := len(found) == len(want)
		for i := 0; ok && i < len(want); i++ {
			ok = strings.HasPrefix(found[i].Error(), want[i])
		}
		if !ok {
			t.Errorf("%q:\n%v\nwant\n%s", text, found, strings.Join(want, "\n"))
		}
	}
}

// Every option of a block client is a key of a session.
func TestEveryOptionIsAKey(t *testing.T) {
	values := map[string]string{
		"name": "vol0", "addr": "10.0.0.1", "mode": "tap", "backing": "ram:64M", "comm": "a", "op": "write", "sectors": "0-7", "key": "krping:k",
		"uuid": "123e4567-e89b-12d3-a456-426614174000", "read_only": "false", "take_over": "true", "source": "10.0.0.2",
	}
	text := "sessions:\n  - reattach: safe\n"
	for _, key := range sessionKeys() {
		if slices.Contains([]string{"reattach", "key_file", "raid", "poll_queues"}, key) { // set above, excluded by key, the others by mode tap
			continue
		}
		if values[key] == "" {
			values[key] = "7"
		}
		text += "    " + key + ": " + values[key] + "\n"
	}
	command := parse(t, text).Sessions[0].Command.String()
	polled := parse(t, "sessions:\n  - {name: vol0, addr: 10.0.0.1, poll_queues: 7}\n").Sessions[0].Command.String()
	if !strings.HasSuffix(polled, ",poll_queues=7") {
		t.Errorf("%s has no poll_queues=7", polled)
	}
	for _, o := range proc.Options {
		if o.Contexts&proc.BlockClient == 0 || o.Name == "server" || o.Name == "addr6" || o.Name == "poll_queues" {
			continue
		}
		key := strings.Replace(o.Name, "block", "name", 1)
		want := o.Name + "=" + values[key]
		switch {
		case values[key] == "true":
			want = o.Name
		case values[key] == "false": // read_only excludes mode tap and take_over
			continue
		}
		if o.Name != "client" && !strings.Contains(command, want) {
			t.Errorf("%s has no %s", command, want)
		}
	}
}

func TestLoad(t *testing.T) {
	c, err := Load("../krping.yaml")
	if err != nil {
		t.Fatalf("the example: %v", err)
	}
	if len(c.Sessions) != 2 || c.Listen != (Address{"unix", DefaultListen, ""}) {
		t.Errorf("the example: %+v", c)
	}
	if _, err := Load(filepath.Join(t.TempDir(), "none")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a file that does not exist: %v", err)
	}
}

// FuzzParse checks that any text yields either a configuration with valid commands, or mistakes
// with valid positions.
func FuzzParse(f *testing.F) {
	example, err := os.ReadFile("../krping.yaml")
	if err != nil {
		f.Fatal(err)
	}
	for _, text := range []string{
		string(example), "a: &x 1\nb: *x\n", "<<: {listen: a}\n", "? [a]\n: b\n", "!!binary x", "listen: |\n  a\n", "sessions: [[], {}, {name: }]\n", "{", "\t", "---\n---\n",
		"sessions:\n  -\n  - name\n", "log: !!str info\n", "null: null\n", "sessions: {<<: *a}\n", "a: &a {<<: [*a, *b]}\nb: &b {<<: [*a, *a]}\n<<: *b\n", "x-a: &a [*a]\nsessions: *a\n", "%YAML 1.2\n---\nlog: info\n", "\x00", "log: info\n...\nx",
	} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := Parse("f", []byte(text))
		var mistakes Errors
		if err != nil && (!errors.As(err, &mistakes) || len(mistakes) == 0) {
			t.Fatalf("%v", err)
		}
		for _, m := range mistakes {
			if m.Line < 0 || (m.Line > 0) != (m.Column > 0) || m.Text == "" {
				t.Errorf("%+v", m)
			}
		}
		for _, s := range c.Sessions {
			if err := s.Command.Check(); err != nil {
				t.Error(err)
			}
		}
	})
}
