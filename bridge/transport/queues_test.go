// SPDX-License-Identifier: Apache-2.0

package transport

import "testing"

func TestCompletionQueues(t *testing.T) {
	for _, tc := range []struct {
		config          QueueConfig
		queues, entries int
	}{
		{QueueConfig{Queues: 1, Sends: 1, Receives: 1}, 1, 2},
		{QueueConfig{Queues: 1, Sends: 16384, Receives: 16384}, 1, 32768},
		{QueueConfig{Queues: 1024, Sends: 68, Receives: 128}, 13, 79 * 196},
		{QueueConfig{Queues: 1024, Sends: 68, Receives: 2048, Shared: true}, 5, 205*68 + 2048},
		{QueueConfig{Queues: 1024, Sends: 16388, Receives: 16384}, 32, 32 * 32772},
	} {
		if queues, entries := tc.config.CompletionQueues(); queues != tc.queues || entries != tc.entries {
			t.Errorf("%+v: %d queues of %d entries, want %d of %d", tc.config, queues, entries, tc.queues, tc.entries)
		}
	}
}
