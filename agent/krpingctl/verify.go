// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
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
		Short: "Compare what the device returns with what its target has stored, and with what was written",
		Long: `Read the device, bypassing the page cache, and compare it with digests of the same ranges
that the target computes from its store. With --pattern and the other flags of "write",
also compare it with what was written: only this finds damage in the target's store,
which both ends see alike. The first block that differs is shown, and the exit code is 3.

The target of an NVMe over Fabrics disk cannot compute digests. If this host is the target,
verify reads the disk or file that it serves, bypassing the page cache; --backing gives
another path to it. If another host is the target, verify the disk there with the same flags
and compare the SHA-256 sums.

Without --size, the range extends to the end of the device.`,
		Example: `  krpingctl verify /dev/krping0 --pattern random --seed 1 --size 64MiB
  krpingctl verify /dev/nvme0n1 --backing /dev/vdb`,
		Args: arguments("DEVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := devicePath(args[0])
			if err != nil {
				return err
			}
			return p.verify(cmd.Context(), path, backing, &f)
		},
	}
	f.register(cmd, "")
	cmd.Flags().StringVar(&backing, "backing", "", "compare with this `path`, the disk or file that the target serves, instead of asking the target; of a partition, with its range there")
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
		return fmt.Errorf("nothing to compare with: %w; add --pattern to compare with what was written, or --backing if this host has the disk that the target serves", err)
	default:
		log.Warn().Msg(err.Error())
	}
	bar := newProgress("verifying", length)
	o.Done = bar.Set
	result, err := verify.Run(ctx, d, asker, o)
	bar.End()
	if err != nil {
		return err
	}
	if f.asJSON {
		return printJSON(p.out, result)
	}
	_, err = fmt.Fprintf(p.out, "verified %s: %s, sha256 %s\n", humanize.IBytes(uint64(result.Bytes)), agreement(result), result.SHA256)
	return err
}

// newAsker returns the Asker for the device's target, and a function that releases it. For a partition it
// asks for the ranges of the disk.
func newAsker(d *rawio.Device, backing string) (verify.Asker, func(), error) {
	nothing := func() {}
	disk, start, err := d.Whole()
	if err != nil {
		return nil, nothing, fmt.Errorf("find the disk of %s: %w", d.Name(), err)
	}
	if backing == "" {
		if backing, err = servedHere(disk); err != nil {
			return nil, nothing, err
		}
	}
	if backing != "" {
		if backing, err = devicePath(backing); err != nil {
			return nil, nothing, err
		}
		local, err := rawio.Open(backing, os.O_RDONLY, true)
		if err != nil {
			return nil, nothing, fmt.Errorf("open the disk that the target serves: %w", err)
		}
		return verify.Shifted{Disk: verify.Backing{ReaderAt: local}, Start: start}, func() { _ = local.Close() }, nil
	}
	whole, err := os.Open(disk)
	if err != nil {
		return nil, nothing, err
	}
	done := func() { _ = whole.Close() }
	target, err := verify.NewTarget(whole)
	if err != nil {
		return nil, done, err
	}
	return verify.Shifted{Disk: target, Start: start}, done, nil
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
