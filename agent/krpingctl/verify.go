// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"

	"github.com/dustin/go-humanize"
	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/disk/pattern"
	"krping/agent/disk/rawio"
	"krping/agent/disk/verify"
)

func verifyCommand(p *program) *cobra.Command {
	var f dataFlags
	var backing string
	cmd := &cobra.Command{
		Use:   "verify DEVICE",
		Short: "Compare what the device reads, what its target holds, and what was written",
		Long: `Read the device back around the page cache and ask its target for digests of the same
ranges, computed where the data rests. With --pattern and the other flags of "write",
compare with what was written too: damage on the target's store is found only then, as
both ends agree on it. The first range that differs is named, to a block. Exit code 3.

The target of a disk of NVMe over fabrics cannot be asked. If it is this host, the disk or
file that it serves is read around the page cache; --backing names another path of it. If it
is another host, verify the disk there with the same flags: the sums must be the same.

Without --size, the whole device.`,
		Example: `  krpingctl verify /dev/krping0 --pattern random --seed 1 --size 64MiB
  krpingctl verify /dev/nvme0n1 --backing /dev/vdb`,
		Args: arguments("DEVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.verify(cmd.Context(), args[0], backing, &f)
		},
	}
	f.register(cmd, "")
	cmd.Flags().StringVar(&backing, "backing", "", "`path` on this host of the disk or file that the target serves, instead of asking the target")
	return cmd
}

func (p *program) verify(ctx context.Context, path, backing string, f *dataFlags) error {
	d, err := rawio.Open(path, os.O_RDONLY, true)
	if err != nil {
		return err
	}
	defer d.Close()
	length, err := f.length(d, d.Size-int64(f.offset))
	if err != nil {
		return err
	}
	o := verify.Options{
		Range: verify.Range{Offset: int64(f.offset), Length: length},
		Block: d.Block, Step: min(max(int64(f.bs), d.Block), verify.MaxDigest),
	}
	if f.pattern != "" {
		data, err := pattern.New(f.pattern, f.seed)
		if err != nil {
			return usageError{err}
		}
		o.Pattern = &data
	}
	asker, done, err := newAsker(d, backing)
	defer done()
	switch {
	case err == nil:
	case !errors.Is(err, verify.ErrNoTarget):
		return err
	case o.Pattern == nil:
		return fmt.Errorf("nothing to compare with: %w; give --pattern to compare with what was written, or --backing if this host has what the target serves", err)
	default:
		log.Warn().Msg(err.Error())
	}
	bar := newProgress("verifying", length)
	o.Done = bar.set
	result, err := verify.Run(ctx, d, asker, o)
	bar.end()
	if err != nil {
		return err
	}
	if f.asJSON {
		return json.NewEncoder(p.out).Encode(result)
	}
	_, err = fmt.Fprintf(p.out, "verified %s: %s, sha256 %s\n", humanize.IBytes(uint64(result.Bytes)), agreement(result), result.SHA256)
	return err
}

// newAsker returns who knows what rests at the target, and what to call when that has been asked.
func newAsker(d *rawio.Device, backing string) (verify.Asker, func(), error) {
	nothing := func() {}
	if backing == "" {
		served, err := servedHere(d.Name())
		if err != nil {
			return nil, nothing, err
		}
		backing = served
	}
	if backing == "" {
		target, err := verify.NewTarget(d.File)
		if err != nil {
			return nil, nothing, err
		}
		return target, nothing, nil
	}
	local, err := rawio.Open(backing, os.O_RDONLY, true)
	if err != nil {
		return nil, nothing, fmt.Errorf("what the target serves: %w", err)
	}
	return verify.Backing{ReaderAt: local}, func() { _ = local.Close() }, nil
}

func agreement(r verify.Result) string {
	switch {
	case r.Target && r.Known:
		return "device, target and what was written agree"
	case r.Target:
		return "device and target agree"
	}
	return "device and what was written agree (the target was not asked)"
}
