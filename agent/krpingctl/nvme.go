// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"krping/agent/nvme/nvmehost"
	"krping/agent/nvme/nvmet"
)

func nvmeCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nvme",
		Short: "Use NVMe over Fabrics with the kernel's target and host drivers, over RDMA or TCP",
		Long: `Serve disks and files as NVMe over Fabrics targets, and connect to such targets, with the
kernel's own drivers. Kernel modules are loaded as needed. A command that fails undoes what it
has done, and prints the cause and a fix. nvmetcli and nvme-cli can be used alongside.`,
		Example: `  krpingctl nvme target add --nqn nqn.2024-01.org.example:disk0 --device /dev/vdb --addr 10.0.0.1
  krpingctl nvme connect --nqn nqn.2024-01.org.example:disk0 --transport rdma --traddr 10.0.0.1`,
	}
	return group(cmd, targetCommand(p), discoverCommand(p), connectCommand(p), connectAllCommand(p), disconnectCommand(p), nvmeListCommand(p))
}

func nvmeTarget() *nvmet.Tree { return nvmet.NewTree(nvmet.DefaultMount) }

func nvmeHost() nvmehost.Sysfs { return nvmehost.NewSysfs(nvmehost.DefaultMount) }

// nvmeJSONFlag registers --json, and nvme-cli's --output-format for it.
func nvmeJSONFlag(cmd *cobra.Command, asJSON *bool) {
	jsonFlag(cmd, asJSON)
	cmd.Flags().VarP(outputFormat{asJSON}, "output-format", "o", "`format`: normal or json")
}

// outputFormat is a format of nvme-cli.
type outputFormat struct{ asJSON *bool }

func (o outputFormat) String() string { return "" }

func (o outputFormat) Type() string { return "format" }

func (o outputFormat) Set(text string) error {
	if text != "normal" && text != "json" {
		return wantError("must be normal or json")
	}
	*o.asJSON = text == "json"
	return nil
}

// emptyAs returns text, or what a table shows instead of an empty one.
func emptyAs(text, empty string) string {
	if text == "" {
		return empty
	}
	return text
}

func seconds(n int) string {
	if n == 0 {
		return "off"
	}
	return fmt.Sprintf("%d s", n)
}
