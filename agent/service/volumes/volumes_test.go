// SPDX-License-Identifier: Apache-2.0

package volumes

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/rs/zerolog"

	"krping/test/output"
)

func newFile(t *testing.T) (File, *output.Buffer) {
	t.Helper()
	log := &output.Buffer{}
	return New(filepath.Join(t.TempDir(), "lib/volumes.json"), zerolog.New(log)), log
}

// get returns what is known of a session's volume, which can be read.
func (f File) get(t *testing.T, session string) Volume {
	t.Helper()
	v, err := f.Get(session)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

func TestRemembers(t *testing.T) {
	f, log := newFile(t)
	if v := f.get(t, "vol0"); v != (Volume{}) {
		t.Errorf("before anything was remembered: %+v", v)
	}
	first := Volume{UUID: "a", Size: 1, BlockSize: 512}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(f.Set("vol0", first))
	must(f.Set("vol1", Volume{UUID: "b", Volatile: true}))
	f = New(f.path, f.log) // as after a restart
	v := f.get(t, "vol0")
	if v.UUID != "a" || v.Size != 1 || v.Seen.IsZero() || !f.get(t, "vol1").Volatile {
		t.Errorf("%+v", v)
	}
	before, err := os.Stat(f.path)
	must(err)
	must(f.Set("vol0", first))
	if after, err := os.Stat(f.path); err != nil || !os.SameFile(before, after) {
		t.Error("the file was written for nothing new")
	}

	must(f.Refuse("vol0", "another volume"))
	if v := f.get(t, "vol0"); v.UUID != "a" || v.Refused != "another volume" || v.Since.IsZero() {
		t.Errorf("%+v", v)
	}
	must(f.Refuse("vol0", ""))
	if v := f.get(t, "vol0"); v.Refused != "" || !v.Since.IsZero() || v.UUID != "a" {
		t.Errorf("no longer refused: %+v", v)
	}
	must(f.Refuse("vol0", "another volume"))
	must(f.Set("vol0", first))
	if v := f.get(t, "vol0"); v.Refused != "" || !v.Since.IsZero() {
		t.Errorf("attached again: %+v", v)
	}
	if known, err := f.Forget("vol0"); err != nil || !known || f.get(t, "vol0") != (Volume{}) || f.get(t, "vol1").UUID != "b" {
		t.Errorf("forget: %v, %v", known, err)
	}
	if known, err := f.Forget("vol0"); err != nil || known {
		t.Errorf("forgotten twice: %v, %v", known, err)
	}
	if log.String() != "" {
		t.Errorf("logged: %s", log.String())
	}
	if left, err := filepath.Glob(f.path + ".*"); err != nil || len(left) > 0 {
		t.Errorf("left behind: %q", left)
	}
}

// A broken file is reported and left alone, until an operator has it begun anew.
func TestBrokenFile(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut off": `{"version":1,"volumes":{"vol0":{"uuid":"a"`, "zeros": "\x00\x00\x00", "newer": `{"version":2}`, "list": "[]",
	} {
		f, log := newFile(t)
		if err := f.Set("vol0", Volume{UUID: "a"}); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(f.path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if v, err := f.Get("vol0"); v != (Volume{}) || err == nil || !strings.Contains(err.Error(), f.path) {
			t.Errorf("%s: %+v, %v", name, v, err)
		}
		for what, err := range map[string]error{"set": f.Set("vol0", Volume{UUID: "b"}), "refuse": f.Refuse("vol0", "why")} {
			if now, _ := os.ReadFile(f.path); err == nil || string(now) != text {
				t.Errorf("%s: %s: %v; the file is now %q", name, what, err, now)
			}
		}
		if known, err := f.Forget("vol0"); !known || err != nil || f.get(t, "vol0") != (Volume{}) || !strings.Contains(log.String(), "starting anew") {
			t.Errorf("%s: %v, %v\n%s", name, known, err, log.String())
		}
		if kept, err := os.ReadFile(f.path + ".broken"); err != nil || string(kept) != text {
			t.Errorf("%s: kept %q, %v", name, kept, err)
		}
	}
}

func TestFileThatCannotBeWritten(t *testing.T) {
	f, _ := newFile(t)
	if err := os.WriteFile(filepath.Dir(f.path), nil, 0o600); err != nil { // no directory
		t.Fatal(err)
	}
	if err := f.Set("vol0", Volume{UUID: "a"}); err == nil || !strings.Contains(err.Error(), "remember the volume") {
		t.Errorf("error %v", err)
	}
}

// Several processes may change the file at a time.
func TestConcurrentChanges(t *testing.T) {
	f, _ := newFile(t)
	var running sync.WaitGroup
	for i := range 20 {
		running.Go(func() {
			if err := f.Set(fmt.Sprint("vol", i), Volume{UUID: fmt.Sprint(i)}); err != nil {
				t.Error(err)
			}
		})
	}
	running.Wait()
	if all, err := f.All(); err != nil || len(all) != 20 {
		t.Errorf("%d volumes, %v", len(all), err)
	}
}
