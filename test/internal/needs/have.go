// SPDX-License-Identifier: Apache-2.0

package needs

import (
	"slices"
	"strings"

	"golang.org/x/mod/semver"
)

// Have lists what a machine has, including its kernel's version as Kernel returns it.
type Have []string

// String returns the list as the value of Variable.
func (h Have) String() string { return strings.Join(h, ",") }

// Lacks returns the first need that the machine does not meet, or "".
func (h Have) Lacks(list []Need) Need {
	for _, need := range list {
		if !h.meets(need) {
			return need
		}
	}
	return ""
}

func (h Have) meets(need Need) bool {
	least, isKernel := strings.CutPrefix(string(need), kernelPrefix)
	return slices.ContainsFunc(h, func(has string) bool {
		if version, ok := strings.CutPrefix(has, kernelPrefix); ok && isKernel {
			return semver.Compare("v"+version, "v"+least) >= 0
		}
		return has == string(need)
	})
}
