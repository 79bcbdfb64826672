// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
)

// An option of a measurement of one verb is refused where it has no effect.
func TestRefusedVerbs(t *testing.T) {
	for args, want := range map[string]string{
		"client -a 10.0.0.1 --verb send":                                "give --bw or --lat",
		"client -a 10.0.0.1 --verb send --bw --lat":                     "give --bw or --lat",
		"client -a 10.0.0.1 --verb send --bw --rlat":                    "cannot be used with --wlat, --rlat and --fr",
		"client -a 10.0.0.1 --lat":                                      "--lat needs --verb",
		"client -a 10.0.0.1 --verb sned --bw":                           "verb",
		"client -a 10.0.0.1 --verb read --bw --qp uc":                   "verb read cannot be used with qp uc",
		"client -a 10.0.0.1 --verb send --bw -d 1500ms":                 "must be whole seconds",
		"client -a 10.0.0.1 --verb send --bw -d 2 -C 9":                 "--duration and --count",
		"client -a 10.0.0.1 --verb write --bw --srq":                    "srq cannot be used with verb write",
		"client -a 10.0.0.1 --verb send --bw --srq --rxdepth 2 --qps 3": "rxdepth 2: with srq it must be at least qps",
		"client -a 10.0.0.1 --verb send --lat --txdepth 9":              "txdepth cannot be used with lat",
		"client -a 10.0.0.1 --bw --signal 2":                            "signal cannot be used with bw",
		"client -a 10.0.0.1 --qp uc":                                    "qp cannot be used with ping",
		"server -a 10.0.0.1 --verbs --bw":                               "cannot be used with --wlat, --rlat, --bw and --fr",
		"server -a 10.0.0.1 --verbs --validate":                         "validate cannot be used with verbs",
		"sweep -a 10.0.0.1 --lat":                                       "--lat and --validate need --verb",
		"sweep -a 10.0.0.1 --verb send --test ping":                     "--test and --verb",
		"sweep -a 10.0.0.1 --verb send -A --sizes 4k":                   "--all-sizes and --sizes",
		"sweep -a 10.0.0.1 --verb send --lat --connections 2":           "only bw can have several connections",
		"sweep -a 10.0.0.1 --verb send --srq=maybe":                     "--srq maybe: must be on or off",
		"sweep -a 10.0.0.1 --verb send --mtu 256,300":                   "mtu 300: must be 256, 512",
		"sweep -a 10.0.0.1 --verb send --signal 1,128":                  "signal 128: must be at most txdepth, which is 64",
		"sweep -a 10.0.0.1 --mtu 256":                                   "mtu cannot be used with bw",
		"sweep -a 10.0.0.1 --threads 16 --connections 1024,1025":        "must be 1 to 1024",
		"sweep -a 10.0.0.1 --threads 17 --connections 1000":             "at most 16384 connections in all",
		"experiment nosuch -a 10.0.0.1":                                 "must be threads, types, srq, mtu, polling, moderation",
		"experiment srq":                                                "--addr is needed",
		"experiment srq -a 10.0.0.1 --rxdepth 8":                        "with srq it must be at least qps",
		"experiment threads -a 10.0.0.1 --signal 4":                     "signal cannot be used with bw",
		"experiment types -a 10.0.0.1 -d 1500ms":                        "must be whole seconds",
		"experiment types srq":                                          "unexpected argument",
	} {
		err := run(t.Context(), strings.Fields(args), io.Discard)
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want a usage error with %q", args, err, want)
		}
	}
}

// Without a name, the experiments are listed.
func TestExperimentsAreListed(t *testing.T) {
	var out strings.Builder
	if err := run(t.Context(), []string{"experiment"}, &out); err != nil {
		t.Fatal(err)
	}
	for _, name := range experimentNames() {
		if !strings.Contains("\n"+out.String(), "\n"+name+" ") {
			t.Errorf("there is no %s in\n%s", name, out.String())
		}
	}
}

// The help shows the flags of a measurement of one verb.
func TestHelpOfVerbs(t *testing.T) {
	for _, command := range []string{"client", "sweep", "experiment"} {
		var out strings.Builder
		if err := run(t.Context(), []string{command, "--help"}, &out); err != nil || !strings.Contains(out.String(), "--rxdepth") {
			t.Errorf("%s --help: %v, without --rxdepth:\n%s", command, err, out.String())
		}
	}
}
