// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"krping/agent/nvme/nvmehost"
	"krping/bridge/display"
)

// hostFlags are the flags of connect and discover, with nvme-cli's names and letters.
type hostFlags struct {
	o              nvmehost.Options
	addr, hostAddr string
	asJSON         bool
}

func (f *hostFlags) register(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVarP(&f.o.Transport, "transport", "t", "rdma", "`transport`: rdma or tcp")
	flags.StringVarP(&f.addr, "traddr", "a", "", "`address` of the target: IPv4, IPv6, a host name, or with a port, as in 10.0.0.1:4420")
	portVar(flags, &f.o.Port, "trsvcid", "s", 4420, "`port` of the target")
	flags.StringVarP(&f.hostAddr, "host-traddr", "w", "", "`address` of this host to connect from")
	flags.StringVarP(&f.o.HostIface, "host-iface", "f", "", "tcp: network `interface` to connect through")
	flags.StringVarP(&f.o.HostNQN, "hostnqn", "q", "", "`NQN` of this host (default: /etc/nvme/hostnqn)")
	flags.StringVarP(&f.o.HostID, "hostid", "I", "", "`UUID` of this host (default: /etc/nvme/hostid)")
	f.secondsVar(cmd, &f.o.KeepAlive, "keep-alive-tmo", "k", "keep-alive timeout in `seconds` (default: the kernel's, 5)")
	f.intVar(cmd, &f.o.TOS, "tos", "T", "type of service of the packets")
	flags.StringVarP(&f.o.Secret, "dhchap-secret", "S", "", "DH-HMAC-CHAP `key` of this host, like DHHC-1:00:...:")
	flags.StringVarP(&f.o.CtrlSecret, "dhchap-ctrl-secret", "C", "", "DH-HMAC-CHAP `key` with which the target must authenticate, too")
	flags.BoolVar(&f.o.TLS, "tls", false, "tcp: use TLS, with the key (PSK) that nvme-cli has put into the kernel's keyring")
	nvmeJSONFlag(cmd, &f.asJSON)
}

// registerConnect registers the flags of connect and connect-all.
func (f *hostFlags) registerConnect(cmd *cobra.Command) {
	f.register(cmd)
	flags := cmd.Flags()
	f.intVar(cmd, &f.o.IOQueues, "nr-io-queues", "i", "`number` of I/O queues (default: one per CPU)")
	f.intVar(cmd, &f.o.WriteQueues, "nr-write-queues", "W", "`number` of additional I/O queues for writes")
	f.intVar(cmd, &f.o.PollQueues, "nr-poll-queues", "P", "`number` of additional I/O queues that are polled")
	f.intVar(cmd, &f.o.QueueSize, "queue-size", "Q", "entries in each I/O queue, 16 to 1024 (default: the kernel's, 128)")
	f.secondsVar(cmd, &f.o.CtrlLossTMO, "ctrl-loss-tmo", "l", "`seconds` after which a lost target is given up and I/O fails; -1: never (default: the kernel's, 600)")
	f.secondsVar(cmd, &f.o.ReconnectDelay, "reconnect-delay", "c", "`seconds` between attempts to reconnect (default: the kernel's, 10)")
	f.secondsVar(cmd, &f.o.FastIOFail, "fast-io-fail-tmo", "F", "`seconds` after which I/O to a lost target fails, while reconnecting continues; -1: not before --ctrl-loss-tmo (default: the kernel's, -1)")
	flags.BoolVarP(&f.o.HeaderDigest, "hdr-digest", "g", false, "tcp: use CRC32C digests of headers")
	flags.BoolVarP(&f.o.DataDigest, "data-digest", "G", false, "tcp: use CRC32C digests of data")
	flags.BoolVar(&f.o.DisableSQFlow, "disable-sqflow", false, "do without flow control of the submission queues")
	flags.BoolVarP(&f.o.DuplicateConn, "duplicate-connect", "D", false, "connect even if this host is already connected to the subsystem at that address")
}

// nvmeCLIOnly names what nvme-cli can do and this program cannot, for the help.
const nvmeCLIOnly = "Not supported, use nvme-cli: transports fc and loop, --concat, --keyring, --tls-key, --config,\n--nbft, and /etc/nvme/discovery.conf."

// intVar registers a number that stays nil unless it is given.
func (f *hostFlags) intVar(cmd *cobra.Command, to **int, name, letter, usage string) {
	flag := cmd.Flags().VarPF(&optionalInt{to}, name, letter, usage)
	flag.DefValue = ""
}

// secondsVar is intVar for a duration in whole seconds: 10 or 10s.
func (f *hostFlags) secondsVar(cmd *cobra.Command, to **int, name, letter, usage string) {
	flag := cmd.Flags().VarPF(&optionalSeconds{optionalInt{to}}, name, letter, usage)
	flag.DefValue = ""
}

type optionalSeconds struct{ optionalInt }

func (o *optionalSeconds) Type() string { return "duration" }

func (o *optionalSeconds) Set(text string) error {
	d, err := parseTime(text)
	if err == nil && (d%time.Second != 0 || d.Abs() > math.MaxInt32*time.Second) {
		err = wantError("must be whole seconds")
	}
	if err == nil {
		n := int(d / time.Second)
		*o.to = &n
	}
	return err
}

type optionalInt struct{ to **int }

func (o *optionalInt) String() string {
	if o.to == nil || *o.to == nil {
		return ""
	}
	return fmt.Sprint(**o.to)
}

func (o *optionalInt) Type() string { return "number" }

func (o *optionalInt) Set(text string) error {
	var n int
	if _, err := fmt.Sscanf(text+"\n", "%d\n", &n); err != nil {
		return wantError("must be a whole number")
	}
	*o.to = &n
	return nil
}

// options checks the flags and returns them with this host's identity.
func (f *hostFlags) options(cmd *cobra.Command) (nvmehost.Options, error) {
	var err error
	if f.o.Addr, f.o.Port, err = parseEndpoint(cmd, "traddr", f.addr, "trsvcid", f.o.Port); err != nil {
		return f.o, err
	}
	if f.o.HostAddr, err = parseAddr(cmd, "host-traddr", f.hostAddr); err != nil {
		return f.o, err
	}
	if err := f.o.Check(); err != nil {
		return f.o, usageError{err}
	}
	return f.o.Identify(), nil
}

func discoverCommand(p *program) *cobra.Command {
	var f hostFlags
	var persistent bool
	cmd := &cobra.Command{
		Use:     "discover --traddr ADDR",
		Short:   "List the subsystems that a target serves to this host",
		Example: "  krpingctl nvme discover --transport rdma --traddr 10.0.0.1",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			d, err := discover(cmd.Context(), o, persistent)
			if err != nil {
				return err
			}
			if f.asJSON {
				return printJSON(p.out, d)
			}
			return writeDiscovery(p.out, d)
		},
	}
	f.register(cmd)
	cmd.Flags().BoolVarP(&persistent, "persistent", "p", false, "stay connected to the discovery service, so that the target tells of changes; disconnect with: nvme disconnect --device NAME")
	return cmd
}

func discover(ctx context.Context, o nvmehost.Options, persistent bool) (nvmehost.Discovery, error) {
	if !persistent {
		return nvmeHost().Discover(ctx, o)
	}
	name, d, err := nvmeHost().Persistent(ctx, o)
	if err == nil {
		log.Info().Msgf("%s stays connected to the discovery service", name)
	}
	return d, err
}

func writeDiscovery(out io.Writer, d nvmehost.Discovery) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "TRANSPORT\tADDRESS\tPORT\tNQN\tKIND")
	for _, r := range d.Records {
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", r.Transport, display.Text(r.Addr), display.Text(r.Service), display.Text(r.NQN), r.Kind)
	}
	return w.Flush()
}

// diskWait is how long connect waits for a controller's disks, which the kernel scans for after it has
// connected.
const diskWait = 10 * time.Second

func connectCommand(p *program) *cobra.Command {
	var f hostFlags
	cmd := &cobra.Command{
		Use:   "connect --nqn NQN --traddr ADDR",
		Short: "Connect to a subsystem of a target, and print its disks",
		Long: `Connect to a subsystem of a target, and print its disks. The options are those of nvme-cli. Keys given
with --dhchap-secret can be read by other users of this host (ps) while the command runs.

` + nvmeCLIOnly,
		Example: `  krpingctl nvme connect --nqn nqn.2024-01.org.example:disk0 --transport rdma --traddr 10.0.0.1
  krpingctl nvme connect -n nqn.2024-01.org.example:disk0 -t tcp -a 10.0.0.1 -i 4 -Q 128 -l -1`,
		Args: arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			if o.NQN == "" {
				return usagef("--nqn is needed: `krpingctl nvme discover` lists the target's subsystems")
			}
			name, err := nvmeHost().Connect(cmd.Context(), o)
			if err != nil {
				return err
			}
			c, err := nvmeHost().Disks(cmd.Context(), name, diskWait)
			if err != nil {
				return err
			}
			if len(c.Namespaces) == 0 {
				log.Warn().Msgf("%s is connected, but %s has no disk: the target has no enabled namespace in it", name, o.NQN)
			}
			if f.asJSON {
				return printJSON(p.out, c)
			}
			for _, d := range c.Namespaces {
				if _, err := fmt.Fprintln(p.out, d.Device()); err != nil {
					return err
				}
			}
			return nil
		},
	}
	f.registerConnect(cmd)
	cmd.Flags().StringVarP(&f.o.NQN, "nqn", "n", "", "`NQN` of the subsystem")
	return cmd
}

func connectAllCommand(p *program) *cobra.Command {
	var f hostFlags
	cmd := &cobra.Command{
		Use:   "connect-all --traddr ADDR",
		Short: "Connect to all subsystems that a discovery service offers, and print their disks",
		Long: `Connect to each subsystem at each address that the discovery service of a target offers, and
those that it refers to. What is connected already stays. If some cannot be connected, the others
are, and the exit code is not 0.

` + nvmeCLIOnly,
		Example: "  krpingctl nvme connect-all --transport tcp --traddr 10.0.0.1:8009",
		Args:    arguments(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			o, err := f.options(cmd)
			if err != nil {
				return err
			}
			connected, err := connectAll(cmd.Context(), o)
			if f.asJSON {
				return errors.Join(err, printJSON(p.out, controllerList{connected}))
			}
			for _, c := range connected {
				for _, d := range c.Namespaces {
					if _, err := fmt.Fprintln(p.out, d.Device()); err != nil {
						return err
					}
				}
			}
			return err
		},
	}
	f.registerConnect(cmd)
	return cmd
}

// connectAll connects to what is offered and is not connected, and returns the new controllers.
func connectAll(ctx context.Context, o nvmehost.Options) ([]nvmehost.Controller, error) {
	connected := []nvmehost.Controller{}
	records, err := nvmeHost().DiscoverAll(ctx, o)
	for _, r := range records {
		to, unusable := o.At(r)
		if unusable != nil {
			err = errors.Join(err, fmt.Errorf("cannot connect to %s at %s %s: %w", r.NQN, r.Transport, r.Addr, unusable))
			continue
		}
		name, failed := nvmeHost().Connect(ctx, to)
		if errors.Is(failed, unix.EALREADY) {
			log.Info().Msgf("%s is already connected at %s %s", display.Text(r.NQN), r.Transport, display.Text(r.Addr))
			continue
		}
		if failed == nil {
			var c nvmehost.Controller
			c, failed = nvmeHost().Disks(ctx, name, diskWait)
			connected = append(connected, c)
		}
		err = errors.Join(err, failed)
		if ctx.Err() != nil {
			break
		}
	}
	return connected, err
}

func disconnectCommand(p *program) *cobra.Command {
	var nqn, device string
	var all, force, asJSON bool
	cmd := &cobra.Command{
		Use:   "disconnect {--nqn NQN | --device NAME | --all}",
		Short: "Disconnect from targets",
		Example: `  krpingctl nvme disconnect --nqn nqn.2024-01.org.example:disk0
  krpingctl nvme disconnect --device nvme0`,
		Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			gone, err := selectControllers(nqn, device, all)
			if err != nil {
				return err
			}
			if err := nvmeHost().Disconnect(gone, force); err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, controllerList{gone})
			}
			_, err = fmt.Fprintf(p.out, "disconnected %s\n", count(len(gone), "controller"))
			return err
		},
	}
	flags := cmd.Flags()
	flags.StringVarP(&nqn, "nqn", "n", "", "disconnect from the subsystem with this `NQN`")
	flags.StringVarP(&device, "device", "d", "", "disconnect the controller with this `name`, such as nvme0, or the controllers of this disk")
	flags.BoolVar(&all, "all", false, "disconnect from all targets")
	flags.BoolVar(&force, "force", false, "disconnect even if a disk is in use: its I/O then fails")
	nvmeJSONFlag(cmd, &asJSON)
	return cmd
}

// selectControllers returns the controllers that disconnect is to remove.
func selectControllers(nqn, device string, all bool) ([]nvmehost.Controller, error) {
	given := 0
	for _, one := range []bool{nqn != "", device != "", all} {
		if one {
			given++
		}
	}
	if given != 1 {
		return nil, usagef("give one of --nqn, --device and --all")
	}
	controllers, err := nvmeHost().Controllers()
	if err != nil {
		return nil, err
	}
	selected := []nvmehost.Controller{}
	for _, c := range controllers {
		name := strings.TrimPrefix(device, "/dev/")
		wanted := all || nqn != "" && c.NQN == nqn || name != "" && (c.Name == name || c.Has(name))
		switch {
		case wanted && c.IsFabric():
			selected = append(selected, c)
		case wanted && !all:
			return nil, usagef("%s is a local controller (%s), not one of NVMe over Fabrics", c.Name, c.Transport)
		}
	}
	if len(selected) == 0 && !all {
		return nil, fmt.Errorf("this host is not connected to %s%s: `krpingctl nvme list` lists its controllers", nqn, device)
	}
	return selected, nil
}

func nvmeListCommand(p *program) *cobra.Command {
	var asJSON bool
	cmd := &cobra.Command{
		Use: "list", Short: "List this host's NVMe controllers and disks", Args: arguments(),
		RunE: func(*cobra.Command, []string) error {
			controllers, err := nvmeHost().Explained()
			if err != nil {
				return err
			}
			if asJSON {
				return printJSON(p.out, controllerList{controllers})
			}
			for _, c := range controllers {
				if c.Problem != "" {
					log.Warn().Str("hint", c.Fix).Msg(c.Problem)
				}
			}
			return writeControllers(p.out, controllers)
		},
	}
	nvmeJSONFlag(cmd, &asJSON)
	return cmd
}

func writeControllers(out io.Writer, controllers []nvmehost.Controller) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "CONTROLLER\tSTATE\tTRANSPORT\tADDRESS\tQUEUES\tKEEP ALIVE\tDISKS\tNQN")
	for _, c := range controllers {
		var all []string
		for _, d := range c.Namespaces {
			all = append(all, fmt.Sprintf("%s %s", d.Device(), humanize.IBytes(uint64(d.Size))))
		}
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d x %d\t%s\t%s\t%s\n", c.Name, c.State, c.Transport, display.Text(c.Address), c.IOQueues, c.QueueSize,
			seconds(c.KeepAlive), emptyAs(strings.Join(all, ", "), "none"), display.Text(c.NQN))
	}
	return w.Flush()
}
