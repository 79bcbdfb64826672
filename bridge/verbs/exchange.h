/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Many exchanges of a latency test in one call. Each return to Go, and the Go runtime's monitor, which
 * looks after every call that sleeps, would take longer than the exchange itself.
 */
#ifndef KRPING_VERBS_EXCHANGE_H
#define KRPING_VERBS_EXCHANGE_H

#include "pairs.h"

#define SHIM_EXCHANGES	4096	/* in one call */

/* How a message of the peer, or the answer to one's own, is seen. */
enum shim_arrival {
	SHIM_RECEIVED,	/* a receive completes */
	SHIM_WRITTEN,	/* a byte of memory changes */
	SHIM_FETCHED,	/* one's own READ or atomic operation completes */
};

/*
 * The messages from number on, before end, of queue pair 0. A client sends a message and waits for the
 * answer; a server waits, and sends. The same as Go's transport.Exchange.
 */
struct shim_exchange {
	struct shim_work work;	/* of message number; its id and numbers count up with it */
	struct shim_receive receive;	/* posted, with the id of the one before, after each receive */
	uint64_t number;
	uint64_t end;
	uint64_t tx_last;	/* address of the last byte of what is sent, which gets the number; 0: none */
	uint64_t rx_last;	/* of the last byte of what arrives, which must have it; 0: none */
	int64_t limit_ns;	/* begin no exchange after this time */
	uint32_t arrival;	/* enum shim_arrival */
	uint32_t opcode;	/* enum ibv_wc_opcode of a receive, */
	uint32_t length;	/* its bytes, */
	uint32_t source_qpn;	/* and UD: its sender */
	uint32_t signal;	/* one message in so many is signalled */
	uint32_t quiet;		/* messages since the last signalled one */
	uint32_t server;
	uint32_t busy;		/* poll instead of sleeping */
	/* filled in */
	uint32_t exchanged;	/* messages that were sent and have arrived; number is behind them */
	uint32_t pending;	/* client: message number was sent */
	uint32_t polled;	/* completions, without those that are returned */
	uint32_t reserved;
	int64_t pending_ns;	/* since when */
	int64_t took_ns[SHIM_EXCHANGES];	/* client */
};

/*
 * Returns the number of completions in the pairs' done that it did not expect, or -errno. Also returns,
 * with 0, after limit_ns, after some time without a message, and when it was woken.
 */
int shim_exchange(uintptr_t pairs, struct shim_exchange *e);

#endif /* KRPING_VERBS_EXCHANGE_H */
