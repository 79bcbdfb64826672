// SPDX-License-Identifier: Apache-2.0

package service

import (
	"context"
	"time"

	"github.com/vishvananda/netlink"
)

// settle is how long addresses may still change, and RDMA devices take them over, after the first one has changed.
const settle = 200 * time.Millisecond

// followAddresses calls changed after addresses of the host's network were added, until ctx ends. An error is one of
// netlink: no more calls are made then.
func followAddresses(ctx context.Context, changed func()) error {
	updates, done := make(chan netlink.AddrUpdate), make(chan struct{})
	defer func() { // the sender may wait for a reader
		close(done)
		for range updates { //nolint:revive // until it has closed the channel
		}
	}()
	failed := make(chan error, 1)
	o := netlink.AddrSubscribeOptions{ErrorCallback: func(err error) {
		select {
		case failed <- err:
		default:
		}
	}}
	if err := netlink.AddrSubscribeWithOptions(updates, done, o); err != nil {
		close(updates)
		return err
	}
	var settled <-chan time.Time
	for {
		select {
		case <-ctx.Done():
			return nil
		case update, ok := <-updates:
			if !ok {
				return <-failed
			}
			if update.NewAddr && settled == nil {
				settled = time.After(settle)
			}
		case <-settled:
			settled = nil
			changed()
		}
	}
}
