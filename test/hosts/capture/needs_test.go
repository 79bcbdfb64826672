// SPDX-License-Identifier: Apache-2.0

//go:build lab

package capture

import "krping/test/internal/needs"

var _ = needs.Suite(needs.TwoHosts, needs.StockKernel, needs.Once)
