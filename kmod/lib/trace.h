/* SPDX-License-Identifier: GPL-2.0 */
/* Tracepoints under events/krping/ (INTERFACE.md section 4). */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM krping

#if !defined(KRPING_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define KRPING_TRACE_H

#include <linux/tracepoint.h>

#include "lib/cmd_event.h"
#include "uapi/krping.h"

#define show_krping_op(op)				\
	__print_symbolic(op,				\
			 { KRPING_OP_READ, "READ" },	\
			 { KRPING_OP_WRITE, "WRITE" },	\
			 { KRPING_OP_FLUSH, "FLUSH" },	\
			 { KRPING_OP_DISCARD, "DISCARD" },	\
			 { KRPING_OP_WRITE_ZEROES, "WRITE_ZEROES" },	\
			 { KRPING_OP_DIGEST, "DIGEST" })

#define show_krping_cmd_flags(flags)				\
	__print_flags(flags, "|",				\
		      { KRPING_CMD_FUA, "FUA" },		\
		      { KRPING_CMD_INLINE, "INLINE" },	\
		      { KRPING_CMD_SHA256, "SHA256" },	\
		      { KRPING_CMD_NO_UNMAP, "NO_UNMAP" })

#define show_krping_session_state(state)		\
	__print_symbolic(state,				\
			 { 0, "connecting" },		\
			 { 1, "live" },			\
			 { 2, "reconnecting" },		\
			 { 3, "failed" },		\
			 { 4, "stopping" })

DECLARE_EVENT_CLASS(krping_cmd,
		    TP_PROTO(const struct krping_cmd_event *e),
		    TP_ARGS(e),
		    TP_STRUCT__entry(__field(u64, sector)
				     __field(u32, session)
				     __field(u32, dev)
				     __field(u32, bytes)
				     __field(u32, crc)
				     __field(int, status)
				     __field(u16, queue)
				     __field(u16, tag)
				     __field(u8, op)
				     __field(u8, flags)
		    ),
		    TP_fast_assign(__entry->sector = e->sector;
				   __entry->session = e->session;
				   __entry->dev = e->dev;
				   __entry->bytes = e->bytes;
				   __entry->crc = e->crc;
				   __entry->status = e->status;
				   __entry->queue = e->queue;
				   __entry->tag = e->tag;
				   __entry->op = e->op;
				   __entry->flags = e->flags;
		    ),
		    TP_printk("session=%u dev=%u:%u queue=%u tag=0x%04x op=%s flags=%s sector=%llu bytes=%u crc=0x%08x status=%d",
			      __entry->session, MAJOR(__entry->dev), MINOR(__entry->dev),
			      __entry->queue, __entry->tag, show_krping_op(__entry->op),
			      show_krping_cmd_flags(__entry->flags), __entry->sector,
			      __entry->bytes, __entry->crc, __entry->status)
);

DEFINE_EVENT(krping_cmd, krping_cmd_post,
	     TP_PROTO(const struct krping_cmd_event *e),
	     TP_ARGS(e)
);

DEFINE_EVENT(krping_cmd, krping_cmd_done,
	     TP_PROTO(const struct krping_cmd_event *e),
	     TP_ARGS(e)
);

TRACE_EVENT(krping_session_state,
	    TP_PROTO(u32 session, u8 old, u8 new),
	    TP_ARGS(session, old, new),
	    TP_STRUCT__entry(__field(u32, session)
			     __field(u8, old)
			     __field(u8, new)
	    ),
	    TP_fast_assign(__entry->session = session;
			   __entry->old = old;
			   __entry->new = new;
	    ),
	    TP_printk("session=%u %s -> %s", __entry->session,
		      show_krping_session_state(__entry->old),
		      show_krping_session_state(__entry->new))
);

#define show_krping_tap_op(op)				\
	__print_flags(op, "|",				\
		      { 1, "READ" },			\
		      { 2, "WRITE" },			\
		      { 4, "FLUSH" },			\
		      { 8, "DISCARD" })

#define show_krping_drop(reason)			\
	__print_symbolic(reason,			\
			 { 0, "lost" },			\
			 { 1, "full" },			\
			 { 2, "memory" },		\
			 { 3, "error" })

TRACE_EVENT(krping_tap_drop,
	    TP_PROTO(u32 session, u8 op, u8 reason, u64 sector, u64 bytes),
	    TP_ARGS(session, op, reason, sector, bytes),
	    TP_STRUCT__entry(__field(u64, sector)
			     __field(u64, bytes)
			     __field(u32, session)
			     __field(u8, op)
			     __field(u8, reason)
	    ),
	    TP_fast_assign(__entry->sector = sector;
			   __entry->bytes = bytes;
			   __entry->session = session;
			   __entry->op = op;
			   __entry->reason = reason;
	    ),
	    TP_printk("session=%u op=%s sector=%llu bytes=%llu reason=%s", __entry->session,
		      show_krping_tap_op(__entry->op), __entry->sector, __entry->bytes,
		      show_krping_drop(__entry->reason))
);

TRACE_EVENT(krping_tap_mismatch,
	    TP_PROTO(u32 session, u64 sector, u32 bytes, u32 local, u32 remote),
	    TP_ARGS(session, sector, bytes, local, remote),
	    TP_STRUCT__entry(__field(u64, sector)
			     __field(u32, session)
			     __field(u32, bytes)
			     __field(u32, local)
			     __field(u32, remote)
	    ),
	    TP_fast_assign(__entry->sector = sector;
			   __entry->session = session;
			   __entry->bytes = bytes;
			   __entry->local = local;
			   __entry->remote = remote;
	    ),
	    TP_printk("session=%u sector=%llu bytes=%u local=0x%08x remote=0x%08x",
		      __entry->session, __entry->sector, __entry->bytes, __entry->local,
		      __entry->remote)
);

#endif /* KRPING_TRACE_H */

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
