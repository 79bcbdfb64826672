// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/nvme/nvmet"
	"krping/bridge/display"
)

func targetCommand(p *program) *cobra.Command {
	cmd := &cobra.Command{Use: "target", Short: "Serve disks and files with the kernel's NVMe target"}
	return group(cmd, targetAddCommand(p), targetListCommand(p), targetRemoveCommand(p), targetSaveCommand(p), targetRestoreCommand(p))
}

// addFlags are the flags of target add.
type addFlags struct {
	nqn, device, addr, transport string
	port                         uint16
	null, inline                 sizeFlag
	allow                        []string
	asJSON                       bool
}

func targetAddCommand(p *program) *cobra.Command {
	var f addFlags
	cmd := &cobra.Command{
		Use:   "add --nqn NQN {--device PATH | --null SIZE} --addr ADDR",
		Short: "Serve a disk or a file",
		Long: `Serve a disk, a file, or a new disk in memory as namespace 1 of a new subsystem. Without --device
and --null, serve an existing subsystem at another address, or allow more hosts to connect.

Any host may connect unless --allow-host is given. A disk that is in use on this host is refused.
The serial number is derived from the NQN, and the UUID of the namespace from the NQN and the WWID
of the disk (of a file: inode and time of birth), so that hosts can reconnect after a restart of the
target, but not to another disk under the same path. A disk without WWID gets a new UUID.`,
		Example: `  krpingctl nvme target add --nqn nqn.2024-01.org.example:disk0 --device /dev/vdb --addr 10.0.0.1
  krpingctl nvme target add --nqn nqn.2024-01.org.example:disk0 --addr 10.0.0.1 --transport tcp
  krpingctl nvme target add --nqn nqn.2024-01.org.example:scratch --null 1GiB --addr 10.0.0.1 --allow-host "$(cat /etc/nvme/hostnqn)"`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := f.serve(cmd)
			if err != nil {
				return err
			}
			if err := nvmeTarget().Add(cmd.Context(), s); err != nil {
				return err
			}
			return p.showTarget(f.nqn, f.asJSON)
		},
	}
	f.inline = -1
	flags := cmd.Flags()
	flags.StringVar(&f.nqn, "nqn", "", "`NQN` of the subsystem, such as nqn.2024-01.org.example:disk0")
	flags.StringVar(&f.device, "device", "", "`path` of the block device or file to serve")
	flags.Var(&nullFlag{&f.null}, "null", "serve a new disk of this size in memory; its data is lost when it is removed")
	flags.StringVar(&f.addr, "addr", "", "IP `address` of this host to serve at, perhaps with a port, as in 10.0.0.1:4420")
	portVar(flags, &f.port, "port", "", 4420, "port to serve at")
	flags.StringVar(&f.transport, "transport", nvmet.RDMA, "`transport`: rdma or tcp")
	flags.Var(&f.inline, "inline-size", "maximum in-capsule data, at most 16KiB with rdma (default: the kernel's)")
	flags.Lookup("inline-size").DefValue = ""
	flags.StringArrayVar(&f.allow, "allow-host", nil, "`NQN` of a host that may connect; may be repeated")
	nvmeJSONFlag(cmd, &f.asJSON)
	return cmd
}

// nullFlag is the size of a disk in memory, which is a null_blk device.
type nullFlag struct{ *sizeFlag }

func (n *nullFlag) Set(text string) error {
	var size sizeFlag
	if err := size.Set(text); err != nil {
		return err
	}
	if size == 0 || size%nvmet.MiB != 0 {
		return wantError("must be a multiple of 1MiB, greater than 0")
	}
	*n.sizeFlag = size
	return nil
}

// serve checks the flags and returns what they describe.
func (f *addFlags) serve(cmd *cobra.Command) (nvmet.Serve, error) {
	s := nvmet.Serve{NQN: f.nqn, Device: f.device, Null: int64(f.null), Transport: f.transport, AllowHosts: f.allow}
	if err := nvmet.CheckNQN(f.nqn); err != nil {
		return s, usagef("--nqn: %w", err)
	}
	for _, nqn := range f.allow {
		if err := nvmet.CheckNQN(nqn); err != nil {
			return s, usagef("--allow-host: %w", err)
		}
	}
	var err error
	if s.Device, err = devicePath(f.device); err != nil {
		return s, err
	}
	addr, port, err := parseEndpoint(cmd, "addr", f.addr, "port", f.port)
	fresh := f.device != "" || f.null != 0
	switch {
	case err != nil:
		return s, err
	case f.device != "" && f.null != 0:
		return s, usagef("--device and --null: give one of them")
	case f.transport != nvmet.RDMA && f.transport != nvmet.TCP:
		return s, usagef("--transport %s: must be rdma or tcp", f.transport)
	case fresh && !addr.IsValid():
		return s, usagef("--addr is needed: the address of this host to serve at")
	case !fresh && !addr.IsValid() && len(f.allow) == 0:
		return s, usagef("--device or --null is needed for a new subsystem; --addr or --allow-host for one that exists")
	case f.transport == nvmet.RDMA && f.inline > nvmet.MaxInline:
		return s, usagef("--inline-size %d: at most %d with rdma", f.inline, nvmet.MaxInline)
	case f.inline > 1<<20:
		return s, usagef("--inline-size %d: at most 1MiB", f.inline)
	}
	if addr.IsValid() {
		s.Addr = netip.AddrPortFrom(addr, port)
	}
	if f.inline >= 0 {
		size := int(f.inline)
		s.Inline = &size
	}
	return s, nil
}

func (p *program) showTarget(nqn string, asJSON bool) error {
	config, err := nvmeTarget().Read()
	if err != nil {
		return err
	}
	for _, t := range config.Targets() {
		if t.NQN != nqn {
			continue
		}
		if asJSON {
			return printJSON(p.out, t)
		}
		_, err := fmt.Fprintf(p.out, "serving %s at %s\n", display.Text(disks(t)), display.Text(addresses(t)))
		return err
	}
	return fmt.Errorf("%w: %s", nvmet.ErrUnknown, nqn)
}

func targetListCommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List what this host serves", Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			config, err := nvmeTarget().Read()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, targetList{config.Targets()})
			}
			return writeTargets(p.out, config.Targets())
		},
	}
	nvmeJSONFlag(cmd, &asJSON)
	return cmd
}

func writeTargets(out io.Writer, targets []nvmet.Target) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "NQN\tDISK\tAT\tHOSTS")
	for _, t := range targets {
		hosts := strings.Join(t.AllowedHosts, ", ")
		if t.AllowAnyHost {
			hosts = "all"
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", display.Text(t.NQN), display.Text(emptyAs(disks(t), "none")), display.Text(emptyAs(addresses(t), "nowhere")),
			display.Text(emptyAs(hosts, "none")))
	}
	return w.Flush()
}

func disks(t nvmet.Target) string {
	var all []string
	for _, d := range t.Disks {
		text := cmp.Or(d.Device, "no device")
		if !d.Enabled {
			text += " (off)"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func addresses(t nvmet.Target) string {
	var all []string
	for _, a := range t.Addresses {
		all = append(all, fmt.Sprintf("%s %s port %s", a.Transport, a.Addr, a.Service))
	}
	return strings.Join(all, ", ")
}

func targetRemoveCommand(p *program) *cobra.Command {
	var nqn string
	var all, asJSON bool
	cmd := &cobra.Command{
		Use:   "remove {NQN | --nqn NQN | --all}",
		Short: "Stop serving a subsystem, or all",
		Long: `Close the connections of a subsystem and remove it, with the ports, hosts and disks in memory that
no other subsystem uses. Hosts that were connected try to reconnect, until --ctrl-loss-tmo expires.
A host with a DH-HMAC-CHAP key stays in the configuration, with its key, unless --all is given.`,
		Args: arguments("[NQN]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			twice := len(args) == 1 && nqn != ""
			if len(args) == 1 {
				nqn = args[0]
			}
			if twice || all == (nqn != "") {
				return usagef("give the NQN of one subsystem, or --all")
			}
			before, err := nvmeTarget().Read()
			if err != nil {
				return err
			}
			removed := before.Targets()
			if all {
				err = nvmeTarget().Clear(cmd.Context())
			} else {
				err = nvmeTarget().Remove(cmd.Context(), nqn)
				removed = only(removed, nqn)
			}
			if err != nil {
				return err
			}
			if lost := before.KeyedHosts(); all && len(lost) > 0 {
				log.Warn().Msgf("removed with their DH-HMAC-CHAP keys: %s; added again without keys, they need not authenticate", display.Text(strings.Join(lost, ", ")))
			}
			if !asJSON {
				return nil
			}
			return printJSON(p.out, targetList{removed})
		},
	}
	cmd.Flags().StringVar(&nqn, "nqn", "", "`NQN` of the subsystem")
	cmd.Flags().BoolVar(&all, "all", false, "remove all subsystems, ports and hosts, including those that other programs added")
	nvmeJSONFlag(cmd, &asJSON)
	return cmd
}

func only(targets []nvmet.Target, nqn string) []nvmet.Target {
	for _, t := range targets {
		if t.NQN == nqn {
			return []nvmet.Target{t}
		}
	}
	return []nvmet.Target{}
}

// savedTargets is where nvmetcli keeps its configuration.
const savedTargets = "/etc/nvmet/config.json"

func targetSaveCommand(p *program) *cobra.Command {
	var force, asJSON bool
	cmd := &cobra.Command{
		Use:   "save [FILE]",
		Short: "Save the target's configuration in nvmetcli's format",
		Long: "Save the target's configuration in a file (default " + savedTargets + "; - is standard output),\n" +
			"as JSON that \"restore\" and nvmetcli read.",
		Args: arguments("[FILE]"),
		RunE: func(_ *cobra.Command, args []string) error {
			config, err := nvmeTarget().Read()
			if err != nil {
				return err
			}
			config = config.Identified()
			file := fileArgument(args)
			if file == "-" {
				return config.Write(p.out)
			}
			if !force {
				if err := keepSaved(file, config); err != nil {
					return err
				}
			}
			if err := config.Save(file); err != nil {
				return err
			}
			return p.showSaved("saved", file, config, nil, asJSON)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "replace saved targets even if nothing is served now")
	nvmeJSONFlag(cmd, &asJSON)
	return cmd
}

// keepSaved returns an error if saving would replace saved targets with an empty configuration, as it
// would after a boot, before they are restored.
func keepSaved(file string, config nvmet.Config) error {
	if len(config.Subsystems) > 0 {
		return nil
	}
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if len(bytes.TrimSpace(data)) == 0 {
		return nil
	}
	saved, _, err := nvmet.Parse(data) // a file in another format is kept, too
	if err == nil && len(saved.Subsystems)+len(saved.Ports)+len(saved.Hosts) == 0 {
		return nil
	}
	return fmt.Errorf("nothing is served, but %s is not empty: not saved; use `krpingctl nvme target restore` to serve what is in it, or --force to replace it", file)
}

func fileArgument(args []string) string {
	if len(args) == 0 {
		return savedTargets
	}
	return args[0]
}

// savedReport is what save and restore print.
type savedReport struct {
	File    string         `json:"file"`
	Targets []nvmet.Target `json:"targets"`
	Skipped []string       `json:"skipped,omitempty"` // attributes that this kernel does not have
}

// showSaved prints what was saved or restored.
func (p *program) showSaved(what, file string, config nvmet.Config, skipped []string, asJSON bool) error {
	if asJSON {
		return printJSON(p.out, savedReport{file, config.Targets(), skipped})
	}
	_, err := fmt.Fprintf(p.out, "%s %s, %s, %s: %s\n", what,
		count(len(config.Subsystems), "subsystem"), count(len(config.Ports), "port"), count(len(config.Hosts), "host"), file)
	return err
}

func targetRestoreCommand(p *program) *cobra.Command {
	var clear, asJSON bool
	cmd := &cobra.Command{
		Use:   "restore [FILE]",
		Short: "Restore a configuration that save or nvmetcli has saved",
		Long: `Serve what is in a file (default ` + savedTargets + `; - is standard input) that "save" or nvmetcli
has written. If any part fails, nothing is changed. It is added to what is served now, unless
--clear is given, which is nvmetcli's way. A disk or file that is not the saved one, but has its
path, is refused. Attributes that this kernel does not have are skipped, with a warning.`,
		Args: arguments("[FILE]"),
		RunE: func(cmd *cobra.Command, args []string) error {
			file := fileArgument(args)
			config, err := readSaved(file)
			if err != nil {
				return err
			}
			return p.restore(cmd.Context(), file, config, clear, asJSON)
		},
	}
	cmd.Flags().BoolVar(&clear, "clear", false, "first remove everything that is served now")
	nvmeJSONFlag(cmd, &asJSON)
	return cmd
}

func (p *program) restore(ctx context.Context, file string, config nvmet.Config, clear, asJSON bool) error {
	skipped, err := nvmeTarget().Restore(ctx, config, clear)
	if err != nil {
		return err
	}
	for _, path := range skipped {
		log.Warn().Msgf("this kernel has no %s: skipped", path)
	}
	return p.showSaved("restored", file, config, skipped, asJSON)
}

func readSaved(file string) (nvmet.Config, error) {
	data, err := os.ReadFile(file)
	if file == "-" {
		data, err = io.ReadAll(os.Stdin)
	}
	if errors.Is(err, os.ErrNotExist) {
		return nvmet.Config{}, fmt.Errorf("no saved configuration: %w", err)
	}
	if err != nil {
		return nvmet.Config{}, err
	}
	config, unknown, err := nvmet.Parse(data)
	if err != nil {
		return config, usagef("%s: %w", file, err)
	}
	for _, path := range unknown {
		log.Warn().Msgf("%s: %s is not known: ignored", file, display.Text(path))
	}
	return config, nil
}
