// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"krping/agent/disk/verify"
	"krping/agent/doctor"
	"krping/agent/host/rdmalink"
	"krping/agent/measure"
	"krping/agent/nvme/nvmehost"
	"krping/agent/nvme/nvmet"
	"krping/agent/packets/packetview"
	"krping/agent/stats/sampler"
	"krping/agent/stats/status"
	"krping/agent/trace/biotrace"
	"krping/proc"
)

// schemaVersion is "version" of each JSON object that a command prints. Adding a field does not change it;
// removing a field, or changing its name, type or meaning, does. testdata/schemas.txt has all fields.
const schemaVersion = 1

// schemas has the type of what each command prints with --json. Lists have an object around them.
var schemas = map[string]any{
	"attach":          attached{},
	"capture":         packetview.Record{},
	"capture --count": countReport{},
	"dmesg":           proc.Message{},
	"doctor":          doctor.Report{},
	"link list":       linkList{},
	"measure":         measure.Report{},
	"nvme connect":    nvmehost.Controller{},
	"nvme discover":   nvmehost.Discovery{},
	"nvme list":       controllerList{},
	"nvme saved":      savedReport{},
	"nvme target":     nvmet.Target{},
	"nvme targets":    targetList{},
	"stat":            status.Status{},
	"top":             sampler.Sample{},
	"trace":           biotrace.Bio{},
	"verify":          verify.Result{},
	"write":           writeResult{},
}

// Lists that commands print.
type (
	linkList struct {
		Links []rdmalink.Link `json:"links"`
	}
	controllerList struct {
		Controllers []nvmehost.Controller `json:"controllers"`
	}
	targetList struct {
		Targets []nvmet.Target `json:"targets"`
	}
)

// printJSON prints a result as an object on one line, whose first member is the version of the schemas. The
// type of v, or what it points to, is one of schemas. An empty list is [], not null.
func printJSON(out io.Writer, v any) error {
	value := reflect.Indirect(reflect.ValueOf(v))
	if !schemaTypes[value.Type()] {
		return fmt.Errorf("no schema for %s", value.Type())
	}
	copied := reflect.New(value.Type())
	copied.Elem().Set(value)
	noNulls(copied.Elem())
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	encoder.SetEscapeHTML(false) // commands contain &&
	if err := encoder.Encode(copied.Interface()); err != nil {
		return err
	}
	line := text.Bytes()
	if _, has := value.Type().FieldByName("Version"); !has || !bytes.HasPrefix(line, []byte(`{"version":`)) {
		first := fmt.Sprintf(`{"version":%d,`, schemaVersion)
		if bytes.HasPrefix(line, []byte("{}")) {
			first = first[:len(first)-1]
		}
		line = append([]byte(first), line[1:]...)
	}
	_, err := out.Write(line)
	return err
}

// schemaTypes are the types of schemas.
var schemaTypes = func() map[reflect.Type]bool {
	types := map[reflect.Type]bool{}
	for _, known := range schemas {
		types[reflect.TypeOf(known)] = true
	}
	return types
}()

// noNulls makes nil slices and maps empty, in v and in what it contains. v can be set.
func noNulls(v reflect.Value) {
	switch v.Kind() {
	case reflect.Pointer:
		if !v.IsNil() {
			noNulls(v.Elem())
		}
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Field(i).CanSet() {
				noNulls(v.Field(i))
			}
		}
	case reflect.Slice:
		if v.IsNil() {
			v.Set(reflect.MakeSlice(v.Type(), 0, 0))
		}
		for i := range v.Len() {
			noNulls(v.Index(i))
		}
	case reflect.Map:
		if v.IsNil() {
			v.Set(reflect.MakeMap(v.Type()))
		}
	}
}

// jsonFlag adds --json, and -o json, which means the same.
func jsonFlag(cmd *cobra.Command, asJSON *bool) { jsonFlagSays(cmd, asJSON, "print JSON") }

func jsonFlagSays(cmd *cobra.Command, asJSON *bool, usage string) {
	flags := cmd.Flags()
	flags.BoolVarP(asJSON, "json", "j", false, usage)
	letter := "o"
	if flags.ShorthandLookup(letter) != nil {
		letter = ""
	}
	flags.VarP(&outputFlag{asJSON}, "output", letter, "`format`: text or json (as --json)")
	_ = cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions([]string{"text", "json"}, cobra.ShellCompDirectiveNoFileComp)) // the flag exists
}

// outputFlag is the format of kubectl and nvme-cli.
type outputFlag struct{ asJSON *bool }

var _ pflag.Value = &outputFlag{}

func (o *outputFlag) String() string { return "" }

func (o *outputFlag) Type() string { return "format" }

func (o *outputFlag) Set(text string) error {
	if text != "json" && text != "text" && text != "normal" { // normal is nvme-cli's
		return wantError("must be text or json")
	}
	*o.asJSON = text == "json"
	return nil
}
