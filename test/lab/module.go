// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"fmt"
)

// LoadModule loads the built rdma_krping in every VM.
func (l *Lab) LoadModule(ctx context.Context) error {
	for _, vm := range l.vms {
		if err := l.LoadModuleIn(ctx, vm); err != nil {
			return err
		}
	}
	return nil
}

// LoadModuleIn loads it in one VM. The initramfs has loaded what it depends on.
func (l *Lab) LoadModuleIn(ctx context.Context, vm *VM) error {
	out, err := vm.Output(ctx, "insmod "+Module(l.config.Kernel))
	if err != nil {
		return fmt.Errorf("load the module in VM %d: %w: %s", vm.index+1, err, out)
	}
	return nil
}
