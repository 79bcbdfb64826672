// SPDX-License-Identifier: Apache-2.0

package journal

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/rs/zerolog"
	"golang.org/x/sys/unix"
)

func TestSeverities(t *testing.T) {
	var out bytes.Buffer
	log := zerolog.New(New(&out))
	log.Error().Str("peer", "10.0.0.1:9999").Int("pid", 7).Msg("the target is gone")
	log.Warn().Msg("b")
	log.Info().Msg("c")
	log.Debug().Msg("d")
	log.Log().Msg("e")
	log.Warn().Msg("two\n<7>lines")
	if want := "<3>the target is gone peer=10.0.0.1:9999 pid=7\n<4>b\n<6>c\n<7>d\n<6>e\n<4>two\n<4><7>lines\n"; out.String() != want {
		t.Errorf("%q, want %q", out.String(), want)
	}
}

func TestStream(t *testing.T) {
	f, err := os.Create(filepath.Join(t.TempDir(), "log"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var stat unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &stat); err != nil {
		t.Fatal(err)
	}
	if isStream(f, "") || isStream(f, "8:1") || !isStream(f, fmt.Sprintf("%d:%d", stat.Dev, stat.Ino)) {
		t.Error("only the journal's DEVICE:INODE is its stream")
	}
}
