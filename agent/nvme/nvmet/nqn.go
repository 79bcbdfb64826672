// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"fmt"
	"strings"
)

// DiscoveryNQN is that of every discovery service.
const DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// longestNQN is in bytes, without the final NUL: NVMe base specification, 4.5.
const longestNQN = 223

// CheckNQN says what is wrong with a name of a subsystem or host. Names that do not begin with
// "nqn." are let through, as the kernel takes them.
func CheckNQN(nqn string) error {
	switch {
	case nqn == "":
		return fmt.Errorf("an NQN is needed, such as nqn.2024-01.org.example:disk0")
	case len(nqn) > longestNQN:
		return fmt.Errorf("NQN %.20s...: has %d bytes, %d is the most", nqn, len(nqn), longestNQN)
	case nqn == DiscoveryNQN:
		return fmt.Errorf("NQN %s: is that of the discovery service", nqn)
	case nqn == "." || nqn == ".." || strings.ContainsFunc(nqn, func(r rune) bool { return r <= ' ' || r == '/' || r == ',' || r == 0x7f }):
		return fmt.Errorf("NQN %q: must have no blank, comma or slash", nqn)
	}
	return nil
}
