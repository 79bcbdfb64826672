// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"krping/agent/doctor"
)

// The list of supported kernels is doctor's; the others must say the same.
func TestSupportedKernels(t *testing.T) {
	for _, page := range []string{"../../README.md", "../../kmod/README.md"} {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		want := fmt.Sprintf("Linux %s to %s", doctor.OldestKernel, doctor.NewestKernel)
		if !strings.Contains(strings.Join(strings.Fields(string(text)), " "), want) {
			t.Errorf("%s does not say %q", page, want)
		}
	}
	releases := []string{"5.14.0-503.el9.x86_64", "5.15", "7.30.1-x", "16.1.0", "8.1"}
	for major, last := range map[int]int{6: 19, 7: 6} {
		for minor := range last + 1 {
			releases = append(releases, fmt.Sprintf("%d.%d.0-1-amd64", major, minor), fmt.Sprintf("%d.%d-rc1", major, minor))
		}
	}
	for _, release := range releases {
		// As DKMS does it.
		err := exec.Command("bash", "-c", `. ../../kmod/dkms.conf && [[ $1 =~ $BUILD_EXCLUSIVE_KERNEL ]]`, "bash", release).Run()
		if built := err == nil; built != doctor.Supported(release) {
			t.Errorf("%s: DKMS builds it: %v; doctor supports it: %v", release, built, doctor.Supported(release))
		}
	}
}
