// SPDX-License-Identifier: Apache-2.0

//go:build lab

package nomem

import "krping/test/internal/needs"

var _ = needs.Suite(needs.DebugKernel, needs.OneTransport)
