// SPDX-License-Identifier: Apache-2.0

//go:build lab

package block

import "krping/test/internal/needs"

var _ = needs.Suite(needs.RaceCheck)
