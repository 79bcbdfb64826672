// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"fmt"

	"github.com/spf13/cobra"

	"krping/agent/host/kernel"
)

// version is what scripts/version prints. The Makefile sets it.
var version = "devel"

func versionCommand(p *program) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the versions of krpingctl and of the loaded module",
		Args:  arguments(),
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintf(p.out, "krpingctl %s\nrdma_krping %s\n", version, cmp.Or(kernel.Version("rdma_krping"), "is not loaded"))
			return err
		},
	}
}
