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

	"krping/agent/pattern"
	"krping/agent/rawio"
	"krping/agent/verify"
)

func verifyCommand(p *program) *cobra.Command {
	var f dataFlags
	cmd := &cobra.Command{
		Use:   "verify DEVICE",
		Short: "Compare what the device reads, what its target holds, and what was written",
		Long: `Read the device back around the page cache and ask its target for digests of the same
ranges, computed where the data rests. With --pattern and the other flags of "write",
compare with what was written too: damage on the target's store is found only then, as
both ends agree on it. The first range that differs is named, to a block. Exit code 3.

Without --size, the whole device.`,
		Example: "  krpingctl verify /dev/krping0 --pattern random --seed 1 --size 64MiB",
		Args:    usageArgs(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.verify(cmd.Context(), args[0], &f)
		},
	}
	f.register(cmd, "")
	return cmd
}

func (p *program) verify(ctx context.Context, path string, f *dataFlags) error {
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
	var asker verify.Asker
	target, err := verify.NewTarget(d.File)
	switch {
	case err == nil:
		asker = target
	case !errors.Is(err, verify.ErrNoTarget):
		return err
	case o.Pattern == nil:
		return fmt.Errorf("nothing to compare with: %w; give --pattern to compare with what was written", err)
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

func agreement(r verify.Result) string {
	switch {
	case r.Target && r.Known:
		return "device, target and what was written agree"
	case r.Target:
		return "device and target agree"
	}
	return "device and what was written agree (the target was not asked)"
}
