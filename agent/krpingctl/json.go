// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"reflect"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"krping/agent/disk/verify"
	"krping/agent/doctor"
	"krping/agent/host/rdmalink"
	"krping/agent/host/schema"
	"krping/agent/measure"
	"krping/agent/nvme/nvmehost"
	"krping/agent/nvme/nvmet"
	"krping/agent/packets/packetview"
	"krping/agent/stats/sampler"
	"krping/agent/stats/status"
	"krping/agent/trace/biotrace"
	"krping/proc"
)

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

// printJSON prints a result as package schema encodes it, on a line. The type of v, or what it points to, is
// one of schemas.
func printJSON(out io.Writer, v any) error {
	if t := reflect.Indirect(reflect.ValueOf(v)).Type(); !schemaTypes[t] {
		return fmt.Errorf("no schema for %s", t)
	}
	line, err := schema.Marshal(v)
	if err != nil {
		return err
	}
	_, err = out.Write(append(line, '\n'))
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
