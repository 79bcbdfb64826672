// SPDX-License-Identifier: Apache-2.0

package main

import (
	"github.com/spf13/cobra"

	"krping/bridge/cli"
	"krping/proc"
)

const groupVerbs = "Measurements of one verb"

// verbFlags adds the flags of a measurement of one verb, except --bw and --lat.
func verbFlags(cmd *cobra.Command, c *proc.Command) {
	flags := cmd.Flags()
	flags.StringVar(&c.Verb, "verb", "", "`operation` to measure: send, write, write_imm, read, fetch_add or cmp_swap; with --bw or --lat")
	flags.StringVar(&c.QPType, "qp", "", "`type` of queue pairs: rc, uc (send, write and write_imm) or ud (send) (default rc)")
	moduleNumber(flags, &c.RxDepth, "rxdepth", "send, write_imm: receives posted on each queue pair, or with --srq for all together (default 128)")
	flags.BoolVar(&c.SRQ, "srq", false, "send, write_imm: all queue pairs take their receives from one shared receive queue")
	moduleNumber(flags, &c.Signal, "signal", "one message in so many has a completion (default: --txdepth divided by 4, 1 to 64)")
	moduleNumber(flags, &c.Inline, "inline", "post messages of up to so many bytes inline, with their data in the work request")
	moduleNumber(flags, &c.MTU, "mtu", "bytes of data in a packet, at most: 256, 512, 1024, 2048 or 4096 (default: that of the path)")
	moduleNumber(flags, &c.Reads, "reads", "read, fetch_add, cmp_swap: operations that a queue pair has outstanding (default 16, or the device's limit)")
	moduleNumber(flags, &c.Rate, "rate", "messages a second that each side sends at most, on all queue pairs together")
	cli.GroupFlags(cmd, groupVerbs, "verb", "qp", "rxdepth", "srq", "signal", "inline", "mtu", "reads", "rate")
}
