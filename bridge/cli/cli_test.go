// SPDX-License-Identifier: Apache-2.0

package cli

import (
	"errors"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

func tree() *cobra.Command {
	root := &cobra.Command{Use: "p", Run: func(*cobra.Command, []string) {}}
	root.Flags().StringP("ping", "p", "", "")
	root.Flags().String("store", "", "")
	root.Flags().BoolP("wait", "w", false, "")
	sub := &cobra.Command{Use: "create", Run: func(*cobra.Command, []string) {}}
	sub.Flags().Int("loss", 0, "")
	sub.Flags().String("store", "", "")
	root.AddCommand(sub)
	return root
}

// A flag without its value does not swallow the next flag.
func TestMissingValues(t *testing.T) {
	for args, want := range map[string]string{
		"--ping --store file:x":        "--ping needs a value: --store is the next flag",
		"-p --store=file:x":            "--ping needs a value: --store=file:x is the next flag",
		"--store -w":                   "--store needs a value: -w is the next flag",
		"create --store --loss 1":      "--store needs a value: --loss is the next flag",
		"--store -":                    "",
		"--ping a --store file:x -w":   "",
		"create --loss -1 --store=--x": "",
		"--store --no-flag":            "",
		"--wait --store x":             "",
		"-- --ping --store":            "",
		"--ping":                       "",
		"__complete --ping --store":    "",
	} {
		err := MissingValues(tree(), strings.Fields(args))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || err.Error() != want || !errors.As(err, new(UsageError))):
			t.Errorf("%s: %v, want %q", args, err, want)
		}
	}
}

// A hint names what was meant, or there is none.
func TestSuggest(t *testing.T) {
	names := []string{"addr", "bw", "fr", "json", "svg", "help", "timeout", "interface", "size", "sizes", "all-hosts"}
	for word, want := range map[string]string{
		"adr": "addr", "addres": "addr", "timout": "timeout", "interf": "interface", "jsn": "json", "all": "all-hosts",
		"a": "", "n": "", "i": "", "b": "", "fw": "", "frr": "", "lisen": "", "sizs": "",
	} {
		if got := Suggest(word, names); got != want {
			t.Errorf("%s: %q, want %q", word, got, want)
		}
	}
}

func TestUnknownCommand(t *testing.T) {
	for name, want := range map[string]string{
		"creat": `unknown command "creat" for "p": did you mean create?`, "xyz": `unknown command "xyz" for "p"`,
	} {
		if err := UnknownCommand(tree(), name); err.Error() != want {
			t.Errorf("%s: %v, want %s", name, err, want)
		}
	}
}

// The help has each flag once, below the title of its group, in lines that fit.
func TestFlagGroups(t *testing.T) {
	root := tree()
	root.Flags().String("many", "", strings.Repeat("word ", 60))
	GroupFlags(root, "Storage", "store")
	GroupFlags(root, "Pings", "ping")
	UseFlagGroups(root, "Pings", "Storage")
	var out strings.Builder
	root.SetOut(&out)
	if err := root.Help(); err != nil {
		t.Fatal(err)
	}
	help := out.String()
	at := -1
	for _, want := range []string{"\nFlags:\n", "--many", "-w, --wait", "\nPings:\n", "-p, --ping", "\nStorage:\n", "--store"} {
		i := strings.Index(help, want)
		if i <= at || strings.Count(help, want) != 1 {
			t.Errorf("%q is not once after the one before it in\n%s", want, help)
		}
		at = i
	}
	for line := range strings.Lines(help) {
		if len(line) > helpWidth+1 {
			t.Errorf("too long: %s", line)
		}
	}
}
