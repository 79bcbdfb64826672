// SPDX-License-Identifier: Apache-2.0

//go:build lab

package access

import "krping/test/internal/needs"

var _ = needs.Suite(needs.OneTransport, needs.RaceCheck, needs.Once)
