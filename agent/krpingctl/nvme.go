// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

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

// nvmeJSONFlag is jsonFlag with nvme-cli's names: --output-format, and '_' for '-'.
func nvmeJSONFlag(cmd *cobra.Command, asJSON *bool) {
	jsonFlag(cmd, asJSON)
	cmd.Flags().SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		if name = strings.ReplaceAll(name, "_", "-"); name == "output-format" {
			name = "output"
		}
		return pflag.NormalizedName(name)
	})
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
