// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
	"strings"
)

// Series returns the kernel's series, such as "6.1".
func (k Kernel) Series() string {
	parts := strings.SplitN(k.Release, ".", 3)
	return parts[0] + "." + parts[1]
}

// LoadModule loads rdma_krping of the build, in every VM.
func (l *Lab) LoadModule(ctx context.Context) error {
	script := "modprobe -a rdma_cm ib_core libcrc32c && insmod " + Module(l.Kernel.Series())
	for i, vm := range l.vms {
		if out, err := vm.Output(ctx, script); err != nil {
			return fmt.Errorf("load the module in VM %d: %w: %s", i+1, err, out)
		}
	}
	return nil
}
