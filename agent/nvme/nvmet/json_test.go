// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"bytes"
	"os"
	"slices"
	"strings"
	"testing"
)

func TestParseErrors(t *testing.T) {
	for text, want := range map[string]string{
		`[]`:             "not a save file",
		`{"hosts":[{}]}`: "line 1, column 11: hosts[0].nqn: an NQN is needed",
		`{"subsystems":[{"nqn":"nqn.a","namespaces":[{"nsid":0}]}]}`:             "line 1, column 53: subsystems[0].namespaces[0].nsid: 0: must be 1 or more",
		`{"subsystems":[{"nqn":"nqn.a","namespaces":[{"nsid":1,"enable":1}]}]}`:  "subsystems[0].namespaces[0].device.path: an enabled namespace needs one",
		`{"subsystems":[{"nqn":"nqn.a","namespaces":[{"nsid":1,"enable":2}]}]}`:  "must be 0 or 1",
		`{"subsystems":[{"nqn":"nqn.a"},{"nqn":"nqn.a"}]}`:                       "duplicate NQN",
		`{"subsystems":[{"nqn":"nqn.a","allowed_hosts":["nqn.h"]}]}`:             "not among the hosts",
		`{"subsystems":[{"nqn":"nqn.a","passthru":[{"enable":1,"device":{}}]}]}`: "passthru[0].device.path: an enabled passthru needs one",
		`{"subsystems":[{"nqn":"../a"}]}`:                                        "slash",
		`{"ports":[{"portid":1,"subsystems":["nqn.a"]}]}`:                        "not among the subsystems",
		`{"ports":[{"portid":1},{"portid":1}]}`:                                  "must be unique",
		"{\"ports\":[{\"portid\":1,\n \"addr\":{\"traddr\": [\"x\"]}}]}":         "line 2, column 20: ports[0].addr.traddr: must be a string",
		`{"ports":[{"portid":1,"addr":"10.0.0.1"}]}`:                             "line 1, column 30: ports[0].addr: must be an object",
		"{\n  \"hosts\": [],\n  \"ports\": [}\n}":                                "line 3, column 13: invalid character '}'",
		"{\n\t\"ports\": [{\"portid\": \"one\"}]}":                               "line 2, column 27: ports.portid: must not be a JSON string",
		``:                                 "line 1, column 1: unexpected end",
		`{"äö":1,"hosts":[{"nqn":"a b"}]}`: "line 1, column 25: hosts[0].nqn: NQN",
	} {
		if _, _, err := Parse([]byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
}

// What a file has and nobody reads is reported.
func TestUnknownValues(t *testing.T) {
	_, unknown, err := Parse([]byte("\xef\xbb\xbf" + `{"subsytems":[],"hosts":[{"nqn":"nqn.h","dhchap":{"any":1}}],"ports":[{"portid":1,"addr":{},"tls":{"x":[1]}}]}`))
	if want := []string{"subsytems", "ports[0].tls"}; err != nil || !slices.Equal(unknown, want) {
		t.Errorf("%q, %v, want %q", unknown, err, want)
	}
}

func FuzzParse(f *testing.F) {
	saved, err := os.ReadFile("testdata/nvmetcli.json")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(saved)
	f.Add([]byte(`{"hosts":[{"nqn":"nqn.h","dhchap":{"key":"x"}}],"ports":[{"portid":1,"addr":[]}],"attributes":{"discovery_nqn":null}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		c, _, err := Parse(data)
		if err != nil {
			return
		}
		var out bytes.Buffer
		if err := c.Write(&out); err != nil {
			t.Fatal(err)
		}
		if _, _, err := Parse(out.Bytes()); err != nil {
			t.Errorf("what was parsed is refused when it is written: %v\n%s", err, out.Bytes())
		}
	})
}
