// SPDX-License-Identifier: Apache-2.0

//go:build lab

package bridge

import "krping/test/internal/needs"

var _ = needs.Suite(needs.RaceCheck, needs.Once)
