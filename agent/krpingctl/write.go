// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"time"

	"github.com/dustin/go-humanize"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"krping/agent/disk/pattern"
	"krping/agent/disk/rawio"
	"krping/bridge/inuse"
)

// dataFlags are the flags that write and verify share: a range of a device, and the data in it.
type dataFlags struct {
	pattern string
	seed    uint64
	offset  sizeFlag
	size    sizeFlag
	count   uint64
	bs      sizeFlag
	asJSON  bool
}

func (f *dataFlags) register(cmd *cobra.Command, patternDefault string) {
	f.bs = 1 << 20
	flags := cmd.Flags()
	flags.StringVar(&f.pattern, "pattern", patternDefault, "data `pattern`: "+strings.Join(pattern.Names(), ", "))
	flags.Uint64Var(&f.seed, "seed", 1, "`seed` of the pattern")
	flags.Var(&f.offset, "offset", "first byte of the range")
	flags.VarP(&boundedSize{&f.size, 1, math.MaxInt64}, "size", "S", "size of the range, like 64M")
	flags.VarP(&numberFlag[uint64]{&f.count, 0, math.MaxInt64}, "count", "C", "size of the range in blocks of --bs, instead of --size; 0: use --size")
	flags.Var(&f.bs, "bs", "size of one I/O")
	jsonFlagSays(cmd, &f.asJSON, "print the result as JSON")
}

// length returns the size of the range in bytes, from --size or --count. whole is the default.
func (f *dataFlags) length(d *rawio.Device, whole int64) (int64, error) {
	length := int64(f.size)
	if f.count > 0 {
		if f.size > 0 {
			return 0, usagef("--size and --count: give one of them")
		}
		if f.bs > 0 && int64(f.count) > math.MaxInt64/int64(f.bs) {
			return 0, usagef("--count %d: blocks of %d bytes, at most %d of them", f.count, f.bs, math.MaxInt64/int64(f.bs))
		}
		length = int64(f.count) * int64(f.bs)
	}
	if length == 0 {
		length = whole
	}
	switch {
	case length <= 0:
		return 0, usagef("--size or --count is needed")
	case f.bs <= 0 || int64(f.bs)%d.Block != 0:
		return 0, usagef("--bs %d: must be a multiple of the device's block size, %d", f.bs, d.Block)
	case int64(f.offset)%d.Block != 0 || length%d.Block != 0:
		return 0, usagef("--offset %d, size %d: must be multiples of the device's block size, %d", f.offset, length, d.Block)
	case d.IsBlock && length > d.Size-int64(f.offset):
		return 0, usagef("--offset %d and size %d: the range ends after the device's last byte; it has %d bytes", f.offset, length, d.Size)
	}
	return length, nil
}

func writeCommand(p *program) *cobra.Command {
	var (
		f                     dataFlags
		direct, fsync, anyDev bool
		name                  string
	)
	cmd := &cobra.Command{
		Use:   "write DEVICE --size SIZE",
		Short: "Write test data that verify can check",
		Long: `Write test data to a block device or a file. The data depends only on the pattern, the seed
and the offset, so that "verify" with the same flags can check it.`,
		Example: "  krpingctl write /dev/krping0 --size 64MiB --bs 256KiB --direct --name write_data",
		Args:    arguments("DEVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			path, err := devicePath(args[0])
			if err != nil {
				return err
			}
			w := writer{flags: f, fsync: fsync, name: name, out: p}
			return w.run(cmd.Context(), path, direct, anyDev)
		},
	}
	f.register(cmd, "random")
	flags := cmd.Flags()
	flags.BoolVar(&direct, "direct", false, "bypass the page cache (O_DIRECT)")
	flags.BoolVar(&fsync, "fsync", false, "call fsync at the end")
	flags.StringVar(&name, "name", "", "`name` that the writing thread takes (its comm), at most 15 bytes")
	flags.BoolVar(&anyDev, "any-device", false, "allow block devices other than krping and NVMe over Fabrics: their data is overwritten")
	return cmd
}

// claimToWrite claims an existing disk or file that is to be overwritten. It returns nil for a new file,
// and an error if writing could destroy data that the user did not offer.
func claimToWrite(path string, anyDevice bool) (io.Closer, error) {
	if err := inuse.CheckPath(path); err != nil {
		return nil, err
	}
	info, err := os.Stat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil, nil
	case err != nil:
		return nil, err
	case info.Mode()&os.ModeDevice != 0 && !anyDevice && !isKrping(path) && !isRemoteNVMe(path):
		return nil, usagef("%s is not a krping device, nor one of NVMe over Fabrics: add --any-device if its data may be overwritten", path)
	}
	return inuse.Claim(path)
}

var krpingName = regexp.MustCompile(`^krping[0-9]+(p[0-9]+)?$`)

// isKrping reports whether a path, or what it links to, is a disk of the module, or a partition of one.
func isKrping(path string) bool {
	resolved, err := filepath.EvalSymlinks(path)
	return err == nil && filepath.Dir(resolved) == "/dev" && krpingName.MatchString(filepath.Base(resolved))
}

type writer struct {
	flags dataFlags
	fsync bool
	name  string
	out   *program
}

type writeResult struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	MBs     float64 `json:"mb_per_second"` // 10^6 bytes
	SHA256  string  `json:"sha256"`
	Pattern string  `json:"pattern"`
	Seed    uint64  `json:"seed"`
	Offset  int64   `json:"offset"`
}

func (w *writer) run(ctx context.Context, path string, direct, anyDevice bool) error {
	data, err := pattern.New(w.flags.pattern, w.flags.seed)
	if err != nil {
		return usageError{err}
	}
	if len(w.name) > 15 {
		return usagef("--name %s: must be at most 15 bytes, the limit of the kernel", w.name)
	}
	claim, err := claimToWrite(path, anyDevice)
	if err != nil {
		return err
	}
	flags := os.O_WRONLY
	if claim != nil {
		defer claim.Close()
	} else {
		if _, err := w.flags.length(&rawio.Device{Block: rawio.FileBlock}, 0); err != nil {
			return err // before there is a file
		}
		flags |= os.O_CREATE | os.O_EXCL
	}
	d, err := rawio.Open(path, flags, direct)
	if err != nil {
		return err
	}
	defer d.Close()
	length, err := w.flags.length(d, 0)
	if err != nil {
		return err
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if w.name != "" {
		if err := setThreadName(w.name); err != nil {
			return err
		}
	}
	result, err := w.write(ctx, d, data, length)
	if err != nil {
		return err
	}
	if w.flags.asJSON {
		return printJSON(w.out.out, result)
	}
	_, err = fmt.Fprintf(w.out.out, "wrote %s in %.2f s, %.1f MB/s, sha256 %s\n", humanize.IBytes(uint64(result.Bytes)), result.Seconds, result.MBs, result.SHA256)
	return err
}

func (w *writer) write(ctx context.Context, d *rawio.Device, data pattern.Pattern, length int64) (writeResult, error) {
	result := writeResult{Pattern: w.flags.pattern, Seed: w.flags.seed, Offset: int64(w.flags.offset)}
	buf, err := rawio.Buffer(int(w.flags.bs))
	if err != nil {
		return result, err
	}
	defer rawio.Free(buf)
	bar := newProgress("writing", length)
	defer bar.End()
	sum := sha256.New()
	start := time.Now()
	for result.Bytes < length {
		if err := ctx.Err(); err != nil {
			return result, err
		}
		at := int64(w.flags.offset) + result.Bytes
		part := buf[:min(int64(w.flags.bs), length-result.Bytes)]
		data.Fill(part, at)
		if _, err := d.WriteAt(part, at); err != nil {
			return result, fmt.Errorf("write %d bytes at offset %d: %w", len(part), at, err)
		}
		_, _ = sum.Write(part)
		result.Bytes += int64(len(part))
		bar.Set(result.Bytes)
	}
	if w.fsync {
		if err := d.Sync(); err != nil {
			return result, fmt.Errorf("fsync: %w", err)
		}
	}
	result.Seconds = time.Since(start).Seconds()
	result.MBs = float64(result.Bytes) / 1e6 / max(result.Seconds, 1e-9)
	result.SHA256 = hex.EncodeToString(sum.Sum(nil))
	return result, nil
}

func setThreadName(name string) error {
	text, err := unix.BytePtrFromString(name)
	if err != nil {
		return usagef("--name %q: %v", name, err)
	}
	if err := prctlName(text); err != nil {
		return fmt.Errorf("set the thread's name: %w", err)
	}
	return nil
}
