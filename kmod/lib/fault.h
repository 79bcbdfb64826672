/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Faults that a test provokes, in a build with KRPING_FAULTS=y only: elsewhere they are no code.
 *
 * Each has a directory in debugfs, krping/faults/NAME:
 *
 *	rate	one time in so many it happens; 0 (as at load) never
 *	gap_ms	and at most once in so long
 *	ms	how long, of those that take a while
 *	fired	how often it has happened
 *
 * krping/faults/session limits all to the session or volume of that name.
 */
#ifndef KRPING_FAULT_H
#define KRPING_FAULT_H

#include <linux/types.h>

enum krping_fault {
	/* the client's */
	KRPING_FAULT_SEND_DROP,		/* a message of commands is not sent */
	KRPING_FAULT_SEND_DELAY,	/* it is sent later (ms) */
	KRPING_FAULT_SEND_DUPLICATE,	/* it is sent twice */
	KRPING_FAULT_SEND_CORRUPT,	/* a bit of inline data is wrong behind its CRC */
	KRPING_FAULT_RECV_DROP,		/* a message of responses is not looked at */
	KRPING_FAULT_RECV_DUPLICATE,	/* it is taken twice */
	KRPING_FAULT_RECV_CORRUPT,	/* a bit of inline data is wrong */
	KRPING_FAULT_POST_FAIL,		/* a work request cannot be posted */
	KRPING_FAULT_REG_REFUSE,	/* memory cannot be registered */
	KRPING_FAULT_ALLOC_FAIL,	/* no memory for a queue that is connected */
	KRPING_FAULT_ALIVE_LOST,	/* the question for a sign of life is not sent */
	KRPING_FAULT_DISCONNECT,	/* the connection is lost */
	/* the target's */
	KRPING_FAULT_TARGET_REJECT,	/* a client is rejected */
	KRPING_FAULT_TARGET_RECV_DROP,	/* a message of commands is not looked at */
	KRPING_FAULT_TARGET_RECV_CORRUPT, /* a bit of data is wrong that an RDMA READ has fetched */
	KRPING_FAULT_TARGET_SEND_CORRUPT, /* a bit of a READ's data is wrong behind its CRC */
	KRPING_FAULT_TARGET_POST_FAIL,	/* a work request cannot be posted */
	KRPING_FAULT_TARGET_ALLOC_FAIL,	/* no memory for large data */
	KRPING_FAULT_TARGET_ALIVE_LOST,	/* a question for a sign of life is not answered */
	KRPING_FAULT_TARGET_STORE_STALL, /* the disk takes its time (ms) */
	KRPING_FAULT_TARGET_STORE_SHORT, /* the disk returns less than was asked for */
	KRPING_FAULT_TARGET_DISCONNECT,	/* the connection is lost */
	/* everybody's */
	KRPING_FAULT_RESOLVE_STALL,	/* a look whether an address is resolved is late (ms) */
	KRPING_FAULT_CONNECT_STALL,	/* what a target has answered is read late (ms) */
	KRPING_FAULT_ACCEPT_STALL,	/* a ping server accepts late (ms) */
	KRPING_FAULT_SMALL_DEVICE,	/* devices are as small as an Intel X722 */
	KRPING_FAULTS_NR
};

#ifdef KRPING_FAULTS

void krping_faults_init(void);
void krping_faults_exit(void);
bool krping_fault_is_on(enum krping_fault fault, const char *session);
bool krping_fault(enum krping_fault fault, const char *session);
void krping_fault_delay(enum krping_fault fault, const char *session);
void krping_fault_sleep(enum krping_fault fault, const char *session);

#else

static inline void krping_faults_init(void)
{
}

static inline void krping_faults_exit(void)
{
}

static inline bool krping_fault_is_on(enum krping_fault fault, const char *session)
{
	return false;
}

static inline bool krping_fault(enum krping_fault fault, const char *session)
{
	return false;
}

static inline void krping_fault_delay(enum krping_fault fault, const char *session)
{
}

static inline void krping_fault_sleep(enum krping_fault fault, const char *session)
{
}

#endif

/* Does it happen to this data? Then a bit of it is wrong. */
static inline void krping_fault_corrupt(enum krping_fault fault, const char *session, void *data)
{
	if (krping_fault(fault, session))
		*(u8 *)data ^= 1;
}

#endif /* KRPING_FAULT_H */
