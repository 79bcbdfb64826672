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
	for _, vm := range l.vms {
		if err := l.LoadModuleIn(ctx, vm); err != nil {
			return err
		}
	}
	return nil
}

// LoadModuleIn loads it in one VM.
func (l *Lab) LoadModuleIn(ctx context.Context, vm *VM) error {
	out, err := vm.Output(ctx, "modprobe -a rdma_cm ib_core libcrc32c && insmod "+Module(l.Kernel.Series()))
	if err != nil {
		return fmt.Errorf("load the module in VM %d: %w: %s", vm.index+1, err, out)
	}
	return nil
}
