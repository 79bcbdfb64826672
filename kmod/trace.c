// SPDX-License-Identifier: GPL-2.0
#include <linux/types.h>

#define CREATE_TRACE_POINTS
#include "trace.h"
