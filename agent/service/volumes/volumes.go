// SPDX-License-Identifier: Apache-2.0

// Package volumes remembers which volume each session was attached to, over restarts of the agent
// and of the host, so that another or an empty one under the same name is refused.
package volumes

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"

	"krping/bridge/atomicfile"
)

// DefaultPath is where the agent keeps the file.
const DefaultPath = "/var/lib/krping/volumes.json"

// Volume is what is known of a session's volume.
type Volume struct {
	UUID      string    `json:"uuid,omitempty"` // "" if its target speaks version 1 of the protocol only
	Size      uint64    `json:"size"`           // bytes
	BlockSize uint64    `json:"block_size"`     // bytes
	Volatile  bool      `json:"volatile,omitempty"`
	Seen      time.Time `json:"seen"` // when it was first seen so

	// If the target had another volume at the last attempt to attach it.
	Refused string    `json:"refused,omitempty"` // why
	Since   time.Time `json:"since,omitzero"`
}

// content is the file.
type content struct {
	Version int               `json:"version"`
	Volumes map[string]Volume `json:"volumes"` // by the session's name
}

const version = 1

// File is the file that remembers volumes. It is read at each call, so that several processes can use
// it: the agent, and krpingctl.
type File struct {
	path string
	log  zerolog.Logger
}

// New returns the file at path. It need not exist.
func New(path string, log zerolog.Logger) File { return File{path, log} }

// All returns what is known, by session. A file that does not exist knows nothing. Of one that is broken
// only Forget makes a new one.
func (f File) All() (map[string]Volume, error) {
	data, err := os.ReadFile(f.path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the known volumes: %w", err)
	}
	var c content
	if err := json.Unmarshal(data, &c); err != nil {
		return nil, fmt.Errorf("%s is broken: %w", f.path, err)
	}
	if c.Version != version {
		return nil, fmt.Errorf("%s has version %d, this program reads version %d", f.path, c.Version, version)
	}
	return c.Volumes, nil
}

// Get returns what is known of a session's volume. The zero Volume is unknown.
func (f File) Get(session string) (Volume, error) {
	all, err := f.All()
	return all[session], err
}

// Refused returns why volumes are refused, by session.
func (f File) Refused() (map[string]string, error) {
	all, err := f.All()
	refused := map[string]string{}
	for session, v := range all {
		if v.Refused != "" {
			refused[session] = v.Refused
		}
	}
	return refused, err
}

// Set remembers a volume. If that is known already, nothing is written.
func (f File) Set(session string, v Volume) error {
	return f.change(false, func(all map[string]Volume) bool {
		was, known := all[session]
		if known {
			v.Seen = was.Seen
		}
		if v.Seen.IsZero() || v.UUID != was.UUID {
			v.Seen = time.Now().UTC().Truncate(time.Second)
		}
		if v == was {
			return false
		}
		all[session] = v
		return true
	})
}

// Refuse remembers why the target's volume is refused: it is not the one that is known. "" means that
// none is refused any more.
func (f File) Refuse(session, why string) error {
	return f.change(false, func(all map[string]Volume) bool {
		v := all[session]
		if v.Refused == why {
			return false
		}
		v.Refused = why
		switch {
		case why == "":
			v.Since = time.Time{}
		case v.Since.IsZero():
			v.Since = time.Now().UTC().Truncate(time.Second)
		}
		all[session] = v
		return true
	})
}

// Forget forgets a session's volume, and reports whether it was known, or may have been: of a broken file it
// keeps a copy, and forgets all.
func (f File) Forget(session string) (known bool, err error) {
	_, broken := f.All()
	err = f.change(true, func(all map[string]Volume) bool {
		_, known = all[session]
		delete(all, session)
		return known
	})
	return known || broken != nil && err == nil, err
}

// change applies a change and writes the file, if change returns true. A broken file is an error, or with
// anew is kept under another name.
func (f File) change(anew bool, change func(map[string]Volume) bool) error {
	held, err := f.lock()
	if err != nil {
		return fmt.Errorf("remember the volume: %w", err)
	}
	defer held.Close()
	all, err := f.All()
	broken := err != nil
	if broken && !anew {
		return fmt.Errorf("remember the volume: %w", err)
	}
	if all == nil {
		all = map[string]Volume{}
	}
	if !change(all) && !broken {
		return nil
	}
	if broken {
		f.log.Error().Err(err).Str("kept", f.path+".broken").Msg("starting anew with the known volumes")
		if err := os.Rename(f.path, f.path+".broken"); err != nil {
			return fmt.Errorf("remember the volume: %w", err)
		}
	}
	data, err := json.MarshalIndent(content{version, all}, "", "  ")
	if err == nil {
		err = atomicfile.Write(f.path, append(data, '\n'))
	}
	if err != nil {
		return fmt.Errorf("remember the volume: %w", err)
	}
	return nil
}

// lock takes the lock of the file's directory, until the returned file is closed.
func (f File) lock() (*os.File, error) {
	dir := filepath.Dir(f.path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	d, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, errors.Join(fmt.Errorf("lock %s: %w", dir, err), d.Close())
	}
	return d, nil
}
