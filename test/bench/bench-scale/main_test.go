// SPDX-License-Identifier: Apache-2.0

package main

import (
	"slices"
	"testing"
)

func TestParse(t *testing.T) {
	o, err := parse([]string{"--most", "256", "--queues", "16,1,4,1"})
	if err != nil || o.memory != 6400 || !slices.Equal(o.scale.Queues, []int{1, 4, 16}) || len(o.scale.Contenders) != 2 {
		t.Errorf("%+v, %v", o, err)
	}
	if o, err := parse([]string{"--queues", "", "--most", "0"}); err != nil || len(o.scale.Queues) > 0 {
		t.Errorf("%+v, %v", o, err)
	}
	for _, args := range [][]string{
		{"--most", "257"}, {"--most", "-1"}, {"--cycles", "-1"}, {"--memory", "1"}, {"--runtime", "1ms"}, {"more"},
		{"--queues", "0"}, {"--queues", "65"}, {"--queues", "1,"}, {"--queues", "x"}, {"--contenders", "nbd"},
	} {
		if _, err := parse(args); err == nil {
			t.Errorf("%q is accepted", args)
		}
	}
}
