/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Faults for tests. Compiled only with KRPING_FAULTS=y; otherwise these functions are empty.
 *
 * Each fault has a directory in debugfs, krping/faults/NAME:
 *
 *	rate	happens every rate-th time; 0 (the default): never
 *	gap_ms	minimum time between two
 *	ms	duration, of faults that are a delay
 *	fired	how often it has happened
 *
 * krping/faults/session limits all faults to the session or volume of that name.
 */
#ifndef KRPING_FAULT_H
#define KRPING_FAULT_H

#include <linux/types.h>

enum krping_fault {
	/* client */
	KRPING_FAULT_SEND_DROP,		/* a message of commands is not sent */
	KRPING_FAULT_SEND_DELAY,	/* it is sent late (ms) */
	KRPING_FAULT_SEND_DUPLICATE,	/* it is sent twice */
	KRPING_FAULT_SEND_CORRUPT,	/* a bit of inline data is flipped after its CRC */
	KRPING_FAULT_RECV_DROP,		/* a message of responses is ignored */
	KRPING_FAULT_RECV_DUPLICATE,	/* it is processed twice */
	KRPING_FAULT_RECV_EARLY,	/* an answer is treated as if its SEND had not completed */
	KRPING_FAULT_RECV_CORRUPT,	/* a bit of inline data is flipped */
	KRPING_FAULT_POST_FAIL,		/* a work request cannot be posted */
	KRPING_FAULT_REG_REFUSE,	/* memory cannot be registered */
	KRPING_FAULT_MAP_UNFIT,		/* data in place does not fit a memory region */
	KRPING_FAULT_ALLOC_FAIL,	/* no memory for a connected queue */
	KRPING_FAULT_KEEPALIVE_LOST,	/* a KEEP_ALIVE is not sent */
	KRPING_FAULT_DISCONNECT,	/* the connection is lost */
	KRPING_FAULT_TAP_ALLOC_FAIL,	/* no memory for a copy of a tap */
	/* target */
	KRPING_FAULT_TARGET_REJECT,	/* a client is rejected */
	KRPING_FAULT_TARGET_RECV_DROP,	/* a message of commands is ignored */
	KRPING_FAULT_TARGET_RECV_CORRUPT, /* a bit of data from an RDMA READ is flipped */
	KRPING_FAULT_TARGET_SEND_CORRUPT, /* a bit of a READ's data is flipped after its CRC */
	KRPING_FAULT_TARGET_POST_FAIL,	/* a work request cannot be posted */
	KRPING_FAULT_TARGET_ALLOC_FAIL,	/* no memory for data */
	KRPING_FAULT_TARGET_KEEPALIVE_LOST,	/* a KEEP_ALIVE is not answered */
	KRPING_FAULT_TARGET_STORE_STALL, /* the store is slow (ms) */
	KRPING_FAULT_TARGET_STORE_SHORT, /* the store returns too little */
	KRPING_FAULT_TARGET_DISCONNECT,	/* the connection is lost */
	KRPING_FAULT_TARGET_SETUP_STALL, /* the queue pair is made late (ms) */
	KRPING_FAULT_TARGET_FULL,	/* connections may have 16 MiB */
	KRPING_FAULT_TARGET_DRAIN_STALL, /* the queue pair is drained late (ms) */
	/* all connections */
	KRPING_FAULT_RESOLVE_STALL,	/* the check for a resolved address is late (ms) */
	KRPING_FAULT_CONNECT_STALL,	/* a target's reply is read late (ms) */
	KRPING_FAULT_ACCEPT_STALL,	/* a ping server accepts late (ms) */
	KRPING_FAULT_FRAGMENTED,	/* memory for messages has no large blocks */
	KRPING_FAULT_SMALL_DEVICE,	/* devices report limits as small as an Intel X722's */
	KRPING_FAULT_VERBS_CORRUPT,	/* a bit of a message is flipped before its check */
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

/* Flips a bit of @data if the fault happens. */
static inline void krping_fault_corrupt(enum krping_fault fault, const char *session, void *data)
{
	if (krping_fault(fault, session))
		*(u8 *)data ^= 1;
}

#endif /* KRPING_FAULT_H */
