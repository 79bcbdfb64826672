// SPDX-License-Identifier: Apache-2.0

package verbs

/*
#include "shim.h"
*/
import "C"

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"
)

// device is an RDMA device that this process has open, from the first id that uses it until the device is
// removed. The kernel's removal waits until the process has closed it.
type device struct {
	context *C.struct_ibv_context
	gone    chan struct{} // closed when the device is being removed
	once    sync.Once

	ids int // that use it; protected by devices.mu
}

var devices = struct {
	mu   sync.Mutex // protects open
	open map[*C.struct_ibv_context]*device
}{open: map[*C.struct_ibv_context]*device{}}

// deviceOf returns the device that an id is bound to, or nil, for the caller to call destroyID.
func deviceOf(id *C.struct_rdma_cm_id) *device {
	if id.verbs == nil {
		return nil
	}
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d := devices.open[id.verbs]
	if d == nil {
		d = &device{context: id.verbs, gone: make(chan struct{})}
		devices.open[id.verbs] = d
		go d.watch(C.GoString(&id.verbs.device.dev_path[0]))
	}
	d.ids++
	return d
}

// deviceRemoved tells all users of an id's device that it is being removed.
func deviceRemoved(id *C.struct_rdma_cm_id) {
	devices.mu.Lock()
	d := devices.open[id.verbs]
	devices.mu.Unlock()
	if d != nil {
		d.removed()
	}
}

// destroyID destroys an id of deviceOf. The id's connection has been freed.
func (d *device) destroyID(id *C.struct_rdma_cm_id) {
	C.rdma_destroy_id(id)
	if d == nil {
		return
	}
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d.ids--
	d.closeUnused()
}

const removalInterval = time.Second // between looks for the device

// watch notices when the device disappears from sysfs. Often there is no event: the kernel notifies its
// modules in turn, and ib_uverbs waits until nobody has the device open. If rdma_cm was loaded in such an
// order that it comes later, it learns of the removal only after that.
func (d *device) watch(path string) {
	began, err := os.Stat(path)
	if err != nil {
		if _, err := os.Stat(filepath.Dir(path)); err == nil {
			d.removed()
		}
		return // without sysfs: rely on the event
	}
	ticker := time.NewTicker(removalInterval)
	defer ticker.Stop()
	for {
		select {
		case <-d.gone:
			return
		case <-ticker.C:
		}
		if now, err := os.Stat(path); errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(began, now) {
			d.removed()
			return
		}
	}
}

// removed ends the use of a device that is being removed.
func (d *device) removed() {
	d.once.Do(func() { close(d.gone) })
	devices.mu.Lock()
	defer devices.mu.Unlock()
	d.closeUnused()
}

// closeUnused closes a device that is being removed and that no id uses. librdmacm keeps a device open
// until it has seen another one, so only the files are closed here. devices.mu is locked.
func (d *device) closeUnused() {
	select {
	case <-d.gone:
	default:
		return
	}
	if d.ids == 0 && devices.open[d.context] == d {
		delete(devices.open, d.context)
		C.shim_close_files(d.context)
	}
}
