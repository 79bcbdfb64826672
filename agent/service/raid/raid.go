// SPDX-License-Identifier: Apache-2.0

// Package raid reads how an md array uses a disk, and has mdadm take the disk out of the array
// or put it back. md itself never takes back a disk that has failed.
package raid

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// State says how an array uses a disk.
type State string

// States.
const (
	NoArray    State = "no_array"   // the array is not running
	InSync     State = "in_sync"    // the disk holds the array's data
	Recovering State = "recovering" // md copies to the disk what it lacks
	Spare      State = "spare"      // the disk stands by for one that fails
	Failed     State = "failed"     // the disk failed and is not used, but still held
	Missing    State = "missing"    // the disk is not in the array
)

// States are all states.
var States = []State{NoArray, InSync, Recovering, Spare, Failed, Missing}

// MD is the kernel's md driver. Arrays and disks are named by their paths, like /dev/md0.
type MD struct {
	Sys string // where sysfs is mounted
}

// State returns how an array uses a disk.
func (m MD) State(array, disk string) (State, error) {
	node, err := filepath.EvalSymlinks(array) // /dev/md/NAME is a link
	if errors.Is(err, fs.ErrNotExist) {
		return NoArray, nil
	}
	if err != nil {
		return "", fmt.Errorf("find %s: %w", array, err)
	}
	dir := filepath.Join(m.Sys, "class/block", filepath.Base(node), "md")
	running, err := os.ReadFile(filepath.Join(dir, "array_state"))
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is not an md array", array)
	}
	if err != nil {
		return "", fmt.Errorf("read the state of %s: %w", array, err)
	}
	if state := strings.TrimSpace(string(running)); state == "clear" || state == "inactive" {
		return NoArray, nil
	}
	member := filepath.Join(dir, "dev-"+filepath.Base(disk))
	flags, err := os.ReadFile(filepath.Join(member, "state"))
	slot, err2 := os.ReadFile(filepath.Join(member, "slot"))
	switch err = cmp.Or(err, err2); {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV): // ENODEV: it is being removed
		return Missing, nil
	case err != nil:
		return "", fmt.Errorf("read the state of %s in %s: %w", disk, array, err)
	}
	return stateOf(strings.TrimSpace(string(flags)), strings.TrimSpace(string(slot))), nil
}

// stateOf judges a member by its flags, like "in_sync,write_mostly", and its slot, a number or "none".
func stateOf(flags, slot string) State {
	set := strings.Split(flags, ",")
	switch {
	case slices.Contains(set, "faulty"):
		return Failed
	case slices.Contains(set, "in_sync"):
		return InSync
	case slot == "none":
		return Spare
	}
	return Recovering
}

// Fail makes md stop using a disk. md refuses that for the last disk with the array's data.
func (m MD) Fail(ctx context.Context, array, disk string) error {
	return manage(ctx, array, "--fail", disk)
}

// Remove takes a failed disk out of the array and closes it.
func (m MD) Remove(ctx context.Context, array, disk string) error {
	return manage(ctx, array, "--remove", disk)
}

// ReAdd puts a disk back that was in the array before. md copies what the array's bitmap says has
// changed since. It fails if the disk would need a full copy.
func (m MD) ReAdd(ctx context.Context, array, disk string) error {
	return manage(ctx, array, "--re-add", disk)
}

// limit is how long mdadm may take; it takes milliseconds, unless the array waits for a disk.
const limit = time.Minute

func manage(ctx context.Context, array, action, disk string) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "mdadm", "--manage", array, action, disk).CombinedOutput()
	switch {
	case err == nil:
		return nil
	case errors.Is(err, exec.ErrNotFound):
		return errors.New("mdadm is not installed: install the package mdadm")
	}
	command := fmt.Sprintf("mdadm --manage %s %s %s", array, action, disk)
	if text := strings.Join(strings.FieldsFunc(string(bytes.TrimSpace(out)), isNewline), "; "); text != "" {
		return fmt.Errorf("%s: %w: %s", command, err, text)
	}
	return fmt.Errorf("%s: %w", command, err)
}

func isNewline(r rune) bool { return r == '\n' }
