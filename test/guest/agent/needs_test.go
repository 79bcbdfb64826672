// SPDX-License-Identifier: Apache-2.0

//go:build lab

package agent

import "krping/test/internal/needs"

var _ = needs.Suite(needs.EBPF, needs.Once)
