// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"

	"krping/agent/stats/status"
	"krping/proc"
)

func statCommand(p *program) *cobra.Command {
	var (
		watch  time.Duration
		asJSON bool
	)
	cmd := &cobra.Command{
		Use:   "stat",
		Short: "Show threads, sessions, RDMA devices and disks with their counters",
		Example: `  krpingctl stat
  krpingctl stat --watch 5s --json`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 && cmd.Flags().Changed("watch") && watch == time.Second { // the parser leaves the value of --watch 2s
				if err := cmd.Flags().Set("watch", args[0]); err == nil {
					return nil
				}
			}
			return arguments()(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("watch") && watch < 100*time.Millisecond {
				return usagef("--watch %v: must be 100ms or more", watch)
			}
			for {
				if err := writeStatus(p.out, status.Collect(p.proc), asJSON); err != nil {
					return err
				}
				if watch == 0 {
					if _, err := p.proc.Threads(); errors.Is(err, proc.ErrNotLoaded) { // what needs no module was printed
						return err
					}
					return nil
				}
				select {
				case <-cmd.Context().Done():
					return nil
				case <-time.After(watch):
				}
				if !asJSON {
					fmt.Fprintln(p.out)
				}
			}
		},
	}
	timeVar(cmd.Flags(), &watch, "watch", "w", "repeat at this `interval` until interrupted; --watch 2s, or --watch alone for every second")
	cmd.Flags().Lookup("watch").NoOptDefVal = "1s"
	jsonFlagSays(cmd, &asJSON, "print one JSON object per line")
	return cmd
}

func writeStatus(out io.Writer, s status.Status, asJSON bool) error {
	if asJSON {
		return printJSON(out, s)
	}
	s = s.Printable()
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	if len(s.Threads) > 0 {
		fmt.Fprintln(w, "THREAD\tDEVICE\tSENT\tRECEIVED\tWRITTEN\tREAD")
		for _, t := range s.Threads {
			device := t.Device
			if device == "" {
				device = "listening"
			}
			fmt.Fprintf(w, "%d\t%s\t%s in %d\t%s in %d\t%s in %d\t%s in %d\n", t.Number, device,
				humanize.IBytes(t.SendBytes), t.SendMsgs, humanize.IBytes(t.RecvBytes), t.RecvMsgs,
				humanize.IBytes(t.WriteBytes), t.WriteMsgs, humanize.IBytes(t.ReadBytes), t.ReadMsgs)
		}
		fmt.Fprintln(w)
	}
	if len(s.Sessions) > 0 {
		fmt.Fprintln(w, "VOLUME\tROLE\tDEVICE\tSTATE\tPEER\tSIZE\tIN FLIGHT\tREADS\tWRITES\tERRORS\tCRC ERRORS\tRETRIES\tRECONNECTS")
		for _, v := range s.Sessions {
			peer := v.Peer
			if v.Source != "" {
				peer += " from " + v.Source
			}
			if v.TOS != nil {
				peer += fmt.Sprintf(" tos %d", *v.TOS)
			}
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s in %d\t%s in %d\t%d\t%d\t%d\t%d\n", v.Name, v.Role, emptyAs(v.Device(), "-"), v.State, peer,
				humanize.IBytes(v.Size), v.Inflight, humanize.IBytes(v.ReadBytes), v.Reads,
				humanize.IBytes(v.WriteBytes), v.Writes, v.Errors, v.CRCErrors, v.Retries, v.Reconnects)
		}
		fmt.Fprintln(w)
	}
	writeIdentities(w, s.Sessions)
	writeModes(w, s.Sessions)
	if len(s.Devices) > 0 {
		fmt.Fprintln(w, "RDMA DEVICE\tNETDEV\tSTATE\tNONZERO COUNTERS")
		for _, d := range s.Devices {
			for _, p := range d.Ports {
				writePort(w, p)
			}
		}
		fmt.Fprintln(w)
	}
	if len(s.Disks) > 0 {
		fmt.Fprintln(w, "DISK\tREADS\tREAD\tWRITES\tWRITTEN\tIN FLIGHT")
		for _, d := range s.Disks {
			fmt.Fprintf(w, "%s\t%d\t%s\t%d\t%s\t%d\n", d.Name, d.Reads, humanize.IBytes(d.ReadSectors*512),
				d.Writes, humanize.IBytes(d.WriteSectors*512), d.Inflight)
		}
	}
	for _, problem := range s.Problems {
		fmt.Fprintf(w, "problem: %s\n", problem)
	}
	return w.Flush()
}

func writePort(w io.Writer, p status.Port) {
	fmt.Fprintf(w, "%s\t%s\t%s", p.Name, emptyAs(p.Netdev, "-"), emptyAs(p.State, "unknown"))
	sep := "\t"
	for _, name := range slices.Sorted(maps.Keys(p.Counters)) {
		if n := p.Counters[name]; n != 0 {
			fmt.Fprintf(w, "%s%s=%d", sep, name, n)
			sep = " "
		}
	}
	fmt.Fprintln(w)
}

// writeIdentities writes which volumes the sessions have, and who may write to them.
func writeIdentities(w io.Writer, sessions []proc.Session) {
	if len(sessions) == 0 {
		return
	}
	fmt.Fprintln(w, "VOLUME\tROLE\tUUID\tACCESS")
	for _, s := range sessions {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Name, s.Role, emptyAs(s.UUID, "unknown"), access(s))
	}
	fmt.Fprintln(w)
}

// access says who may write to a volume.
func access(s proc.Session) string {
	text := ""
	switch target := s.Role == "target"; {
	case s.ReadOnly:
		text = "read-only"
	case s.Shared:
		text = "shared by any number of clients"
	case target && s.Writer != "":
		text = "written by " + s.Writer
	case target:
		text = "no client writes"
	case s.Version >= 2:
		text = "the only writer"
	default:
		text = "writes, perhaps beside others: the target does not say"
	}
	if s.Volatile {
		text += "; in the target's memory only"
	}
	return text
}

// writeModes writes what sessions with a local backing have beside the others' columns.
func writeModes(w io.Writer, sessions []proc.Session) {
	header := "VOLUME\tMODE\tBACKING\tTARGET LACKS\tFORWARDED\tSKIPPED\tDROPPED\tMISMATCHES\n"
	for _, s := range sessions {
		if s.Tap == nil {
			continue
		}
		fmt.Fprintf(w, "%s%s\t%s\t%s\t%s", header, s.Name, s.Mode, s.Backing, humanize.IBytes(s.DirtyBytes))
		header = ""
		fmt.Fprintf(w, "\t%s in %d\t%d\t%s in %d\t%d\n", humanize.IBytes(s.Tap.ForwardedBytes), s.Tap.Forwarded,
			s.Tap.Skipped, humanize.IBytes(s.Tap.DroppedBytes), s.Tap.Dropped, s.Tap.Mismatches)
	}
	if header == "" {
		fmt.Fprintln(w)
	}
}
