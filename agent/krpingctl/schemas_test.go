// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"krping/agent/host/rdmalink"
	"krping/agent/host/schema"
	"krping/agent/service/web"
	"krping/agent/stats/sampler"
	"krping/agent/stats/status"
)

var update = flag.Bool("update", false, "write testdata/schemas.txt anew")

const schemaFile = "testdata/schemas.txt"

// What --json prints is an interface: no field disappears or changes its type without another schema.Version.
// After adding a field: go test ./agent/krpingctl -run TestSchemas -update
func TestSchemas(t *testing.T) {
	var got []string
	for _, name := range slices.Sorted(maps.Keys(schemas)) {
		got = append(got, fields(name+":", reflect.TypeOf(schemas[name]), 0)...)
	}
	header := fmt.Sprintf("# What krpingctl prints as JSON, version %d: command, field, type. Written by TestSchemas -update.", schema.Version)
	data, err := os.ReadFile(schemaFile)
	if err != nil && !*update {
		t.Fatal(err)
	}
	before, lines, _ := strings.Cut(string(data), "\n")
	want := strings.Split(strings.TrimSpace(lines), "\n")
	gone := slices.DeleteFunc(slices.Clone(want), func(line string) bool { return line == "" || slices.Contains(got, line) })
	fresh := slices.DeleteFunc(slices.Clone(got), func(line string) bool { return slices.Contains(want, line) })
	switch {
	case before == header && len(gone) > 0:
		t.Fatalf("removed or changed: raise schema.Version, or restore:\n%s", strings.Join(gone, "\n"))
	case *update:
		if err := os.WriteFile(schemaFile, []byte(header+"\n"+strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	case before != header || len(fresh) > 0:
		t.Fatalf("run with -update; new:\n%s", strings.Join(fresh, "\n"))
	}
}

// fields returns a line for each field of a type, and of the types in it.
func fields(path string, t reflect.Type, depth int) []string {
	if depth > 8 {
		return []string{path + " ..."}
	}
	marshals := t.Implements(reflect.TypeFor[json.Marshaler]()) || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Marshaler]())
	writes := t.Implements(reflect.TypeFor[interface{ MarshalText() ([]byte, error) }]())
	switch {
	case t == reflect.TypeFor[time.Duration]():
		return []string{path + " number (ns)"}
	case marshals || writes:
		return []string{path + " " + t.String()}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return fields(path, t.Elem(), depth+1)
	case reflect.Slice, reflect.Array:
		return fields(path+"[]", t.Elem(), depth+1)
	case reflect.Map:
		return fields(path+"{}", t.Elem(), depth+1)
	case reflect.Struct:
		var all []string
		for _, f := range reflect.VisibleFields(t) {
			name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Anonymous && name == "" || !f.IsExported() || name == "-" {
				continue // VisibleFields has the fields of an embedded struct, too
			}
			if name == "" {
				name = f.Name
			}
			if strings.Contains(options, "omit") {
				name += "?"
			}
			all = append(all, fields(path+" ."+name, f.Type, depth+1)...)
		}
		return all
	case reflect.String, reflect.Bool, reflect.Interface:
		return []string{path + " " + t.Kind().String()}
	}
	return []string{path + " number"}
}

// An empty list is [], and each object has the version first.
func TestPrintJSON(t *testing.T) {
	for want, v := range map[string]any{
		`{"version":1,"links":[]}`:                                              linkList{},
		`{"version":1,"targets":[]}`:                                            &targetList{},
		`{"version":1,"controllers":[]}`:                                        controllerList{},
		`{"version":1,"threads":[],"sessions":[],"rdma_devices":[],"disks":[]}`: status.Status{},
		`{"version":1,"threads":[],"sessions":[],"rdma_devices":[{"name":"rxe0","node_guid":"","ports":[]}],"disks":[],"problems":["a && b"]}`: status.Status{Devices: []status.Device{{Name: "rxe0"}}, Problems: []string{"a && b"}},
	} {
		var out bytes.Buffer
		if err := printJSON(&out, v); err != nil || strings.TrimSpace(out.String()) != want || !json.Valid(out.Bytes()) {
			t.Errorf("%T: %s, %v, want %s", v, out.String(), err, want)
		}
	}
	for name, v := range schemas {
		var out bytes.Buffer
		if err := printJSON(&out, v); err != nil || !strings.HasPrefix(out.String(), `{"version":`) || strings.Count(out.String(), `"version"`) > 1 && name != "attach" {
			t.Errorf("%s: %s, %v", name, out.String(), err)
		}
		if strings.Contains(out.String(), ":null") {
			t.Errorf("%s: null in %s", name, out.String())
		}
	}
	if err := printJSON(&bytes.Buffer{}, struct{}{}); err == nil {
		t.Error("a type without a schema was printed")
	}
}

// The agent's web page gets what top prints, so that its schema is held, too.
func TestFeedHasSchemaOfTop(t *testing.T) {
	page := web.New()
	server := httptest.NewServer(page)
	defer server.Close()
	defer page.Close()
	sample := sampler.Sample{Time: time.Unix(1, 0), Sessions: []sampler.Session{{Name: "a<b", Latencies: []sampler.Latency{{Op: "READ"}}}}, Links: []rdmalink.Link{{Name: "rxe0"}}}
	var want bytes.Buffer
	if err := errors.Join(page.Publish(sample), printJSON(&want, sample)); err != nil {
		t.Fatal(err)
	}
	response, err := http.Get(server.URL + "/api/live")
	if err != nil {
		t.Fatal(err)
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if got, found := strings.CutPrefix(lines.Text(), "data: "); found {
			if got+"\n" != want.String() || !strings.HasPrefix(got, `{"version":1,"time":`) || strings.Contains(got, "null") {
				t.Errorf("got  %s\nwant %s", got, want.String())
			}
			return
		}
	}
	t.Error("no event")
}

// No command prints JSON past printJSON.
func TestOnlyPrintJSONEncodes(t *testing.T) {
	files, err := filepath.Glob("*.go")
	if err != nil || len(files) < 30 {
		t.Fatalf("%d files, %v", len(files), err)
	}
	for _, file := range files {
		if text := read(t, file); !strings.HasSuffix(file, "_test.go") && strings.Contains(text, `"encoding/json"`) {
			t.Errorf("%s encodes JSON itself", file)
		}
	}
}
