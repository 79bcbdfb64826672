// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/rs/zerolog/log"
	"github.com/spf13/cobra"

	"krping/agent/disk/pattern"
	"krping/agent/disk/rawio"
	"krping/agent/trace/replay"
	"krping/bridge/cli"
)

// replayFlags are the flags of replay.
type replayFlags struct {
	speed   float64
	depth   int
	pattern string
	seed    uint64
	anyDev  bool
}

func replayCommand(p *program) *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use:   "replay FILE DEVICE",
		Short: "Replay a workload that trace --record has recorded, on a device of at least the same size",
		Long: `Submit each bio of a recording again, with the same operation, offset, size and flags, at the
same time since the start. The data that is written depends only on the pattern, the seed and
the offset, so that "verify" can check it. The latencies shown are those of the system calls.`,
		Example: "  krpingctl trace /dev/krping0 --record load.trace --for 1m\n  krpingctl replay load.trace /dev/krping1 --speed 2",
		Args:    arguments("FILE", "DEVICE"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if f.speed < 0 || f.depth < 1 || f.depth > 1024 {
				return usagef("--speed must not be negative, and --depth must be 1 to 1024")
			}
			device, err := devicePath(args[1])
			if err != nil {
				return err
			}
			return p.replay(cmd.Context(), args[0], device, f)
		},
	}
	flags := cmd.Flags()
	flags.Float64Var(&f.speed, "speed", 1, "`factor` of the recorded speed; 0: as fast as possible")
	flags.IntVar(&f.depth, "depth", 64, "maximum `number` of I/Os in flight")
	flags.StringVar(&f.pattern, "pattern", "random", "`pattern` of the written data: "+strings.Join(pattern.Names(), ", "))
	flags.Uint64Var(&f.seed, "seed", 1, "`seed` of the pattern")
	flags.BoolVar(&f.anyDev, "any-device", false, "allow block devices other than krping and NVMe over Fabrics: their data is overwritten")
	return cmd
}

func (p *program) replay(ctx context.Context, path, device string, f replayFlags) error {
	data, err := pattern.New(f.pattern, f.seed)
	if err != nil {
		return usageError{err}
	}
	if err := checkOutputs([]namedFile{{"FILE", path}}, namedFile{"DEVICE", device}); err != nil {
		return err
	}
	recording, err := readRecording(path)
	if err != nil {
		return err
	}
	mode := os.O_RDONLY
	if recording.Writes() {
		mode = os.O_RDWR
		claim, err := claimToWrite(device, f.anyDev)
		if err != nil {
			return err
		}
		if claim != nil { // else the open says that there is no such device
			defer claim.Close()
		}
	}
	d, err := rawio.Open(device, mode, true)
	if err != nil {
		return err
	}
	defer d.Close()
	if d.Size < recording.Size {
		return usagef("%s is too small: it has %d bytes, %s was recorded on a device of %d", device, d.Size, path, recording.Size)
	}
	if recording.Lost > 0 {
		log.Warn().Uint64("lost", recording.Lost).Msg("the recording is incomplete: the trace lost bios")
	}
	defer p.showReplay(recording, f.speed)()
	player := replay.Player{Device: d, Data: data, Speed: f.speed, Depth: f.depth}
	result, err := player.Play(ctx, recording)
	if result != nil && result.Bios > 0 {
		fmt.Fprintf(p.out, "replayed %d of %s, %s, in %.3f s (recorded: %.3f s); at most %.3f s late\n", result.Bios, count(len(recording.List), "bio"),
			count(int(result.Bytes), "byte"), result.Elapsed.Seconds(), recording.End.Sub(recording.Start).Seconds(), max(result.Late, 0).Seconds())
		if printErr := result.Summary.Write(p.out); printErr != nil {
			return printErr
		}
	}
	return err
}

// showReplay shows how far a replay is, until a result is printed or the returned function is called.
func (p *program) showReplay(r *replay.Recording, speed float64) (end func()) {
	length := time.Duration(0) // as fast as possible: not known
	if speed > 0 {
		length = time.Duration(float64(r.End.Sub(r.Start)) / speed)
	}
	p.out = cli.AfterProgress(p.out)
	return newTimed("replaying", length).end
}

func readRecording(path string) (*replay.Recording, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	recording, err := replay.Read(f)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return recording, nil
}
