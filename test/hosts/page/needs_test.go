// SPDX-License-Identifier: Apache-2.0

//go:build lab

package page

import "krping/test/internal/needs"

var _ = needs.Suite(needs.Browser, needs.StockKernel, needs.Once)
