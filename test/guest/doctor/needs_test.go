// SPDX-License-Identifier: Apache-2.0

//go:build lab

package doctor

import "krping/test/internal/needs"

var _ = needs.Suite(needs.EBPF, needs.Once)
