// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"krping/bridge/cli"
	"krping/bridge/store"
)

// createCommand makes the file of a new volume.
func createCommand() *cobra.Command {
	var location, size, id string
	var preallocate, quiet bool
	cmd := &cobra.Command{
		Use:   "create --store file:PATH --size SIZE",
		Short: "Create the file of a new volume",
		Long: `Create the file of a new volume, of zeros, and print the volume's UUID.

The UUID is kept with the file: in its extended attribute user.krping, or where the file system has
none, in PATH.krping. By it clients notice when they reconnect to another volume. The file is sparse
unless --preallocate is given. If the command fails or is interrupted, it leaves nothing.`,
		Example: `  krping-bridge create --store file:/var/lib/krping/vol0.img --size 100GiB --preallocate`,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			n := store.New{Preallocate: preallocate, Log: warn}
			var err error
			if n.Path, err = pathOf(location); err != nil {
				return cli.Usagef("--store: %w", err)
			}
			if size == "" {
				return cli.Usagef("--size SIZE is needed, like --size 100GiB")
			}
			if n.Size, err = parseSize(size); err != nil {
				return cli.Usagef("--size: %w", err)
			}
			if n.UUID, err = parseUUID(id); err != nil {
				return cli.Usagef("--uuid: %w", err)
			}
			var bar *cli.Progress
			if preallocate && !quiet {
				bar = cli.NewProgress("allocating", n.Size)
			}
			n.Allocated = bar.Set
			made, err := store.Create(cmd.Context(), n)
			bar.End()
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), made)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&location, "store", "s", "", "file:`PATH` of the file, which must not exist")
	f.StringVarP(&size, "size", "S", "", "`size` of the volume, a multiple of 512 bytes")
	f.BoolVar(&preallocate, "preallocate", false, "allocate all space now, so that no write fails for want of it")
	f.StringVar(&id, "uuid", "", "the volume's `UUID`; without it, a random one")
	f.BoolVarP(&quiet, "quiet", "q", false, "show no progress")
	return cmd
}

// pathOf returns the path of a file that stores a volume.
func pathOf(location string) (string, error) {
	location, err := storeOf(location)
	if err != nil {
		return "", err
	}
	return store.Path(location)
}

// adoptCommand accepts a file that is a copy, or was restored.
func adoptCommand() *cobra.Command {
	var location, id string
	var keep bool
	cmd := &cobra.Command{
		Use:   "adopt --store file:PATH",
		Short: "Accept a file that was copied, restored or moved as a volume",
		Long: `Accept a file that was copied, restored from a backup, or moved from another file system, and print
the volume's UUID. Until then the bridge refuses to serve it, as it may be older than what its clients
know, and two copies must not be served as one volume.

It becomes a new volume unless --keep-uuid is given. In both cases sessions that wrote to the volume
before fail when they reconnect; attach anew.`,
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			path, err := pathOf(location)
			if err != nil {
				return cli.Usagef("--store: %w", err)
			}
			want, err := parseUUID(id)
			if err != nil {
				return cli.Usagef("--uuid: %w", err)
			}
			adopted, err := store.Adopt(path, want, keep)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), adopted)
			return err
		},
	}
	f := cmd.Flags()
	f.StringVarP(&location, "store", "s", "", "file:`PATH` of the file")
	f.BoolVar(&keep, "keep-uuid", false, "it takes the place of the volume that it is a copy of")
	f.StringVar(&id, "uuid", "", "the new volume's `UUID`; without it, a random one")
	cmd.MarkFlagsMutuallyExclusive("keep-uuid", "uuid")
	return cmd
}

// warn tells what a command's user should know.
func warn(msg string) { fmt.Fprintln(os.Stderr, "krping-bridge: warning:", msg) }

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), cmd.Root().Name(), version)
			return err
		},
	}
}
