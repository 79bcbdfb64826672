// SPDX-License-Identifier: Apache-2.0

package verbstest

import (
	"os"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	quiet = time.Second // on a busy host a test may not run for longer than 200 ms
	os.Exit(m.Run())
}
