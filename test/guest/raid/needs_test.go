// SPDX-License-Identifier: Apache-2.0

//go:build lab

package raid

import "krping/test/internal/needs"

var _ = needs.Suite(needs.OneTransport, needs.StockKernel, needs.Ends)
