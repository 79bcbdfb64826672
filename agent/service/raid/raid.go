// SPDX-License-Identifier: Apache-2.0

// Package raid reads how an md array uses a disk, and has mdadm take the disk out of the array
// or put it back. md itself never takes back a disk that has failed.
package raid

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
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
	dir, err := m.dir(array)
	if errors.Is(err, fs.ErrNotExist) {
		return NoArray, nil
	}
	if err != nil {
		return "", err
	}
	running, err := attribute(dir, "array_state")
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("%s is not an md array", array)
	}
	if err != nil {
		return "", fmt.Errorf("read the state of %s: %w", array, err)
	}
	if running == "clear" || running == "inactive" {
		return NoArray, nil
	}
	state, _, err := member(filepath.Join(dir, "dev-"+filepath.Base(disk)))
	if err != nil {
		return "", fmt.Errorf("read the state of %s in %s: %w", disk, array, err)
	}
	return state, nil
}

// dir returns the directory of an array in sysfs.
func (m MD) dir(array string) (string, error) {
	node, err := filepath.EvalSymlinks(array) // /dev/md/NAME is a link
	if err != nil {
		return "", fmt.Errorf("find %s: %w", array, err)
	}
	return filepath.Join(m.Sys, "class/block", filepath.Base(node), "md"), nil
}

func attribute(dir, name string) (string, error) {
	text, err := os.ReadFile(filepath.Join(dir, name))
	return strings.TrimSpace(string(text)), err
}

// member reads the directory of an array's disk in sysfs: how it is used, and its slot.
func member(dir string) (state State, slot string, err error) {
	flags, err := attribute(dir, "state")
	if err == nil {
		slot, err = attribute(dir, "slot")
	}
	switch {
	case errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENODEV): // ENODEV: it is being removed
		return Missing, "", nil
	case err != nil:
		return "", "", err
	}
	return stateOf(flags, slot), slot, nil
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
// changed since. It fails if the disk would need a full copy, or was in use without the array's
// other disks: then it holds writes that the bitmap does not know.
func (m MD) ReAdd(ctx context.Context, array, disk string) error {
	if err := m.checkUse(ctx, array, disk); err != nil {
		return err
	}
	return manage(ctx, array, "--re-add", disk)
}

// arrayState is where mdadm shows the slots whose disks a superblock says are in use: "A." or "AA".
var arrayState = regexp.MustCompile(`(?m)^\s*Array State : ([A.R]+)`)

// checkUse compares the superblock of a disk with the array. The superblock was last written when the disk was
// last in use. If it lacks a disk that holds the array's data now, the two were in use apart from
// each other, such as on two hosts; neither mdadm nor the kernel refuses to put them together again.
func (m MD) checkUse(ctx context.Context, array, disk string) error {
	slots, err := m.inSync(array)
	if err != nil {
		return fmt.Errorf("read the disks of %s: %w", array, err)
	}
	text, err := mdadm(ctx, "--examine", disk)
	if err != nil {
		return err
	}
	found := arrayState.FindStringSubmatch(text)
	if found == nil {
		return fmt.Errorf("%s has no superblock of version 1.x", disk)
	}
	for _, slot := range slots {
		if slot >= len(found[1]) || found[1][slot] == '.' {
			return fmt.Errorf("%s was in use without the disk in slot %d of %s (Array State %s): their data may differ anywhere", disk, slot, array, found[1])
		}
	}
	return nil
}

// inSync returns the slots of an array whose disks hold its data.
func (m MD) inSync(array string) ([]int, error) {
	dir, err := m.dir(array)
	if err != nil {
		return nil, err
	}
	members, err := filepath.Glob(filepath.Join(dir, "dev-*"))
	if err != nil {
		return nil, err
	}
	var slots []int
	for _, one := range members {
		state, slot, err := member(one)
		if err != nil {
			return nil, err
		}
		if n, err := strconv.Atoi(slot); err == nil && state == InSync {
			slots = append(slots, n)
		}
	}
	return slots, nil
}

// limit is how long mdadm may take; it takes milliseconds, unless the array waits for a disk.
const limit = time.Minute

func manage(ctx context.Context, array, action, disk string) error {
	_, err := mdadm(ctx, "--manage", array, action, disk)
	return err
}

// mdadm runs mdadm and returns its output, which is in the error if it fails.
func mdadm(ctx context.Context, args ...string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	out, err := exec.CommandContext(ctx, "mdadm", args...).CombinedOutput()
	switch {
	case err == nil:
		return string(out), nil
	case errors.Is(err, exec.ErrNotFound):
		return "", errors.New("mdadm is not installed: install the package mdadm")
	}
	text := strings.Join(strings.Split(strings.TrimSpace(string(out)), "\n"), "; ")
	return "", fmt.Errorf("mdadm %s: %w: %s", strings.Join(args, " "), err, text)
}
