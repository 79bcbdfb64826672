// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"

	"github.com/rs/zerolog"

	"krping/agent/service/volumes"
)

// volumeFindings reports the sessions that the agent does not attach because their target has another
// volume than the expected one. The file is what the agent remembers.
func volumeFindings(file string) []Finding {
	const check = "volumes"
	refused, err := volumes.New(file, zerolog.Nop()).Refused()
	if err != nil {
		f := unchecked(check, err)
		if f.Fix == "" {
			f.Fix = fmt.Sprintf("mv %s %s.broken", file, file) + "; the agent remembers the volumes that are attached again when it is restarted"
		}
		return []Finding{f}
	}
	var findings []Finding
	for _, session := range slices.Sorted(maps.Keys(refused)) {
		findings = append(findings, Finding{
			Check: check, Level: Problem, Found: "session " + session + " is not attached: its target has another volume than the expected one",
			Cause: refused[session],
			Fix:   "on the target: mount the file system of the volume, and start the target again; or, if the other volume is right: krpingctl agent --forget " + session,
		})
	}
	return findings
}
