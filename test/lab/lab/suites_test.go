// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"
)

func TestUnknownSuite(t *testing.T) {
	dirs := []string{"test/guest/block", "test/guest/faults", "test/hosts/faults"}
	for _, s := range []*suites{{only: []string{"hosts/block"}}, {only: []string{"block", "blok"}}, {skip: []string{"selftest"}}} {
		if err := s.known(dirs); err == nil || !strings.Contains(err.Error(), "block, faults") {
			t.Errorf("%v, %v: %v, want an error that names the suites", s.only, s.skip, err)
		}
	}
	s := suites{only: []string{"faults"}, skip: []string{"hosts/faults"}}
	if err := s.known(dirs); err != nil {
		t.Error(err)
	}
	for i, want := range []bool{false, true, false} {
		if s.wanted(dirs[i]) != want {
			t.Errorf("%s: wanted %t", dirs[i], !want)
		}
	}
}
