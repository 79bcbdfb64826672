// SPDX-License-Identifier: Apache-2.0

package bench

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"
)

// OneSession measures a session of each contender with each number of queues. The rows are valid even if there is an
// error.
func (b *Scale) OneSession(ctx context.Context) (rows []Scaled, err error) {
	s := &site{server: b.Lab.VM(0), client: b.Lab.VM(1), log: b.Log}
	disks, err := s.disksOf(ctx, "brd", 1, 64)
	if err != nil {
		return nil, err
	}
	for _, name := range b.Contenders {
		for _, n := range b.Queues {
			row, failed := b.queues(ctx, s, name, disks[0], n)
			if failed != nil {
				err = errors.Join(err, fmt.Errorf("%s, %d queues: %w", name, n, failed))
				break
			}
			rows = append(rows, row)
		}
	}
	return rows, err
}

// queues attaches the disk with a number of queues, measures and detaches it.
func (b *Scale) queues(ctx context.Context, s *site, name, disk string, n int) (row Scaled, err error) {
	s.queues = n
	row = Scaled{Contender: name, Number: n}
	before, err := s.warm(ctx, name, disk)
	if err != nil {
		return row, err
	}
	c := numbered(name, 0)
	defer func() { err = errors.Join(err, c.detach(ctx, s)) }()
	begin := time.Now()
	device, err := c.attach(ctx, s, disk)
	if err != nil {
		return row, err
	}
	row.Attach = time.Since(begin)
	// Both silently take one queue per CPU if they are asked for more.
	has, err := s.run(ctx, s.client, "ls /sys/block/"+strings.TrimPrefix(device, "/dev/")+"/mq | wc -l")
	if err != nil {
		return row, err
	}
	if has = strings.TrimSpace(has); has != fmt.Sprint(n) {
		return row, fmt.Errorf("it has %s queues", has)
	}
	err = b.measure(ctx, s, &row, before, device, queuesJob)
	return row, err
}
