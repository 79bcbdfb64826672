// SPDX-License-Identifier: Apache-2.0

//go:build lab

package injected

import "krping/test/internal/needs"

var _ = needs.Suite(needs.FaultBuild, needs.OneTransport, needs.Once)
