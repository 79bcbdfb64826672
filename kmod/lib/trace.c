// SPDX-License-Identifier: GPL-2.0
#include <linux/build_bug.h>
#include <linux/stddef.h>
#include <linux/types.h>

#define CREATE_TRACE_POINTS
#include "lib/trace.h"

#ifdef CONFIG_EVENT_TRACING
/*
 * Programs on raw tracepoints read the events' argument by the offsets in the events' format, which
 * are those of the record. So both must have the same layout, after the record's header. Its size
 * depends on the kernel: 8 bytes, or 12 and padding with PREEMPT_RT of 6.1.
 */
#define RECORDED(member)	\
	(offsetof(struct trace_event_raw_krping_cmd, member) -	\
	 offsetof(struct trace_event_raw_krping_cmd, sector))
#define ARGUMENT(member)	offsetof(struct krping_cmd_event, member)

static_assert(!ARGUMENT(sector));
static_assert(RECORDED(session) == ARGUMENT(session));
static_assert(RECORDED(dev) == ARGUMENT(dev));
static_assert(RECORDED(bytes) == ARGUMENT(bytes));
static_assert(RECORDED(crc) == ARGUMENT(crc));
static_assert(RECORDED(status) == ARGUMENT(status));
static_assert(RECORDED(queue) == ARGUMENT(queue));
static_assert(RECORDED(tag) == ARGUMENT(tag));
static_assert(RECORDED(op) == ARGUMENT(op));
static_assert(RECORDED(flags) == ARGUMENT(flags));
#endif
