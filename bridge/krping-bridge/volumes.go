// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/rs/zerolog"

	"krping/bridge/access"
	"krping/bridge/cli"
	"krping/bridge/input"
	"krping/bridge/store"
	"krping/bridge/target"
	"krping/bridge/uuid"
)

// volumeSpec describes a volume on the command line.
type volumeSpec struct {
	name, store         string
	size                int64
	blockSize           uint32
	readOnly, writeback bool
	shared              bool
	keyFile             string
	uuid                uuid.UUID // zero: that of the store
}

func specs(o options) ([]volumeSpec, error) {
	var specs []volumeSpec
	if o.store != "" {
		size, err := parseSize(o.size)
		if err != nil {
			return nil, cli.Usagef("--size: %w", err)
		}
		id, err := parseUUID(o.uuid)
		if err != nil {
			return nil, cli.Usagef("--uuid: %w", err)
		}
		blockSize, err := parseBlockSize(o.blockSize)
		if err != nil {
			return nil, cli.Usagef("--block-size: %w", err)
		}
		specs = append(specs, volumeSpec{o.name, o.store, size, blockSize, o.readOnly, o.writeback, o.shared, o.keyFile, id})
	}
	for _, text := range o.volumes {
		spec, err := parseVolume(text)
		if err != nil {
			return nil, cli.Usagef("--volume %s: %w", text, err)
		}
		specs = append(specs, spec)
	}
	if len(specs) == 0 {
		return nil, cli.Usagef("--store file:PATH or --volume is needed")
	}
	return specs, nil
}

// parseVolume reads NAME=STORE[,size=SIZE][,block-size=N][,read-only][,writeback][,shared]
// [,key-file=FILE][,uuid=UUID].
func parseVolume(text string) (volumeSpec, error) {
	fields := strings.Split(text, ",")
	name, location, ok := strings.Cut(fields[0], "=")
	if !ok {
		return volumeSpec{}, errors.New("must begin with NAME=STORE")
	}
	v := volumeSpec{name: name, store: location, blockSize: 512}
	given := map[string]bool{}
	for _, field := range fields[1:] {
		key, value, hasValue := strings.Cut(field, "=")
		key = strings.ReplaceAll(key, "_", "-")
		if key == "readonly" {
			key = "read-only"
		}
		isFlag := key == "read-only" || key == "shared" || key == "writeback"
		switch {
		case given[key]:
			return v, fmt.Errorf("%s is given twice", key)
		case isFlag && hasValue:
			return v, fmt.Errorf("%s has no value: write %s alone, or leave it out", field, key)
		case hasValue && value == "":
			return v, fmt.Errorf("%s needs a value", key)
		}
		given[key] = true
		var err error
		switch key {
		case "size":
			v.size, err = parseSize(value)
		case "block-size":
			v.blockSize, err = parseBlockSize(value)
		case "read-only":
			v.readOnly = true
		case "shared":
			v.shared = true
		case "writeback":
			v.writeback = true
		case "uuid":
			v.uuid, err = uuid.Parse(value)
		case "key-file":
			v.keyFile = value
		default:
			err = fmt.Errorf("unknown option %q: must be size, block-size, read-only, writeback, shared, key-file or uuid", key)
		}
		if err != nil {
			return v, err
		}
	}
	return v, nil
}

func parseSize(text string) (int64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := input.Size(text)
	if err == nil && n == 0 {
		err = input.ErrSize
	}
	if err != nil {
		return 0, fmt.Errorf("%q: %w", text, err)
	}
	return n, nil
}

func parseBlockSize(text string) (uint32, error) {
	n, err := input.Size(text)
	if err != nil || n != 512 && n != 4096 {
		return 0, fmt.Errorf("%q: must be 512 or 4096", text)
	}
	return uint32(n), nil
}

func parseUUID(text string) (uuid.UUID, error) {
	if text == "" {
		return uuid.UUID{}, nil
	}
	return uuid.Parse(text)
}

// storeOf returns what stores a volume: an absolute path means a file.
func storeOf(text string) (string, error) {
	kind, _, _ := strings.Cut(text, ":")
	switch {
	case strings.HasPrefix(text, "/"):
		return "file:" + text, nil
	case kind != "file" && text != "mem:":
		return "", fmt.Errorf("store %q: must be mem: or file:PATH", text)
	}
	return text, nil
}

func openVolumes(log zerolog.Logger, o options) ([]*target.Volume, error) {
	specs, err := specs(o)
	if err != nil {
		return nil, err
	}
	var volumes []*target.Volume
	for i := range specs {
		if specs[i].store, err = storeOf(specs[i].store); err != nil {
			return nil, cli.Usagef("volume %s: %w", specs[i].name, err)
		}
	}
	for _, spec := range specs {
		key, err := readKey(spec.keyFile)
		if err != nil {
			closeVolumes(volumes)
			return nil, fmt.Errorf("volume %s: %w", spec.name, err)
		}
		s, err := store.Open(spec.store, store.Options{
			Size: spec.size, Writeback: spec.writeback, ReadOnly: spec.readOnly, UUID: spec.uuid,
			Log: func(msg string) { log.Warn().Str("volume", spec.name).Msg(msg) },
		})
		if err != nil {
			closeVolumes(volumes)
			return nil, fmt.Errorf("volume %s: %w", spec.name, err)
		}
		volumes = append(volumes, &target.Volume{
			Name: spec.name, Store: withStoreFaults(s, spec.name), BlockSize: spec.blockSize,
			ReadOnly: spec.readOnly, Shared: spec.shared, Writeback: spec.writeback, Key: key,
		})
	}
	return volumes, nil
}

func readKey(path string) (access.Key, error) {
	if path == "" {
		return nil, nil
	}
	return access.ReadKey(path)
}

// saveIdentities keeps the UUIDs of volumes that had none.
func saveIdentities(volumes []*target.Volume) error {
	for _, v := range volumes {
		if err := v.Store.SaveIdentity(); err != nil {
			return fmt.Errorf("volume %s: %w", v.Name, err)
		}
	}
	return nil
}

func closeVolumes(volumes []*target.Volume) {
	for _, v := range volumes {
		_ = v.Store.Close()
	}
}
