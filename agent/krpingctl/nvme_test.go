// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"strings"
	"testing"
)

func TestNVMeUsage(t *testing.T) {
	for args, want := range map[string]string{
		"target add":                                                        "--nqn: an NQN is needed",
		"target add --nqn x":                                                "--device or --null is needed",
		"target add --nqn x --null 1GiB":                                    "--addr is needed",
		"target add --nqn x --addr host --null 1GiB":                        "--addr host: not an IP address",
		"target add --nqn x --addr 1.2.3.4 --null 1000":                     "multiple of 1MiB",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --device /dev/x":     "--device and --null: give one",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --transport fc":      "must be rdma or tcp",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --port 0":            "--port 0",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --inline-size 32KiB": "at most 16384",
		"target add --nqn a,b --addr 1.2.3.4 --null 1MiB":                   "no blank, comma or slash",
		"target add --nqn x --addr 1.2.3.4 --null 1MiB --allow-host a/b":    "--allow-host",
		"target remove":                                        "give the NQN",
		"target remove x --all":                                "give the NQN",
		"target restore nvme_test.go":                          "not a save file",
		"connect --nqn x":                                      "--traddr is needed",
		"connect --traddr 1.2.3.4":                             "--nqn is needed",
		"connect --nqn x --traddr 1.2.3.4 --queue-size 8":      "--queue-size 8",
		"connect --nqn x --traddr 1.2.3.4 --nr-io-queues many": "not a number",
		"connect --nqn x --traddr 1.2.3.4 --hdr-digest":        "for --transport tcp",
		"disconnect":                                           "give one of",
		"disconnect --all --nqn x":                             "give one of",
		"discover --traddr 1.2.3.4 -t loop":                    "must be rdma or tcp",
	} {
		err := run(t.Context(), append([]string{"nvme"}, strings.Fields(args)...), io.Discard)
		if exitCode(err) != exitUsage || !strings.Contains(err.Error(), want) {
			t.Errorf("nvme %s: %v, want %q", args, err, want)
		}
	}
}
