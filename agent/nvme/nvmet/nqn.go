// SPDX-License-Identifier: Apache-2.0

package nvmet

import (
	"fmt"
	"strings"
)

// discoveryNQN is the NQN of every discovery service.
const discoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"

// maxNQN is the maximum length of an NQN in bytes, without the terminating NUL (NVM Express Base
// Specification 2.0, section 4.5).
const maxNQN = 223

// CheckNQN returns an error if the NQN of a subsystem or host is not valid. It need not begin with
// "nqn.", as for the kernel.
func CheckNQN(nqn string) error {
	switch {
	case nqn == "":
		return fmt.Errorf("an NQN is needed, such as nqn.2024-01.org.example:disk0")
	case len(nqn) > maxNQN:
		return fmt.Errorf("NQN %.20s...: has %d bytes, must be at most %d", nqn, len(nqn), maxNQN)
	case nqn == discoveryNQN:
		return fmt.Errorf("NQN %s: reserved for the discovery service", nqn)
	case nqn == "." || nqn == ".." || strings.ContainsFunc(nqn, func(r rune) bool { return r <= ' ' || r == '/' || r == ',' || r == 0x7f }):
		return fmt.Errorf("NQN %q: must not contain spaces, commas or slashes", nqn)
	}
	return nil
}
