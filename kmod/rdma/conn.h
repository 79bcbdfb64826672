/* SPDX-License-Identifier: GPL-2.0 */
/*
 * A connection: one rdma_cm_id with its protection domain, completion queue and queue pair. cm.c
 * opens it and handles its events; qp.c allocates and frees its PD, CQ and QP.
 */
#ifndef KRPING_CONN_H
#define KRPING_CONN_H

#include <linux/socket.h>
#include <linux/spinlock.h>
#include <linux/wait.h>
#include <net/net_namespace.h>
#include <rdma/ib_verbs.h>
#include <rdma/rdma_cm.h>

#include "options.h"

/* Ordered: waits are for a state or any later one. */
enum krping_conn_state {
	KRPING_CONN_IDLE,	/* nothing has happened yet */
	KRPING_CONN_UNRESOLVED,	/* client: no answer for the address yet; goes back to idle */
	KRPING_CONN_RESOLVED,	/* client: address and route are known */
	KRPING_CONN_REQUESTED,	/* server: a client asks to connect */
	KRPING_CONN_LIVE,	/* both sides may send */
	KRPING_CONN_CLOSED,	/* final: @error says why */
};

struct krping_conn;

/**
 * struct krping_conn_ops - callbacks to the owner of a connection
 * @admits:	returns whether to accept this client; otherwise it is rejected as busy. Optional;
 *		called by the listener's handler
 * @closed:	the connection went to KRPING_CONN_CLOSED; optional. Called once, from a CM
 *		handler, a completion (in the CQ's context) or a poster; may not sleep.
 */
struct krping_conn_ops {
	bool (*admits)(struct krping_conn *conn, const struct rdma_cm_id *id,
		       const struct rdma_conn_param *param);
	void (*closed)(struct krping_conn *conn, int error);
};

/* The largest message buffer in bytes, and the most SGEs of its memory. */
#define KRPING_BUF_MAX		65536
#define KRPING_BUF_SGES		8

/* The most private data that rdma_cm delivers (in a reply). */
#define KRPING_PRIVATE_MAX	196

/**
 * struct krping_conn - one RC connection
 * @log_prefix:	in front of log messages; belongs to the owner, constant
 * @ops:	constant
 * @wait:	woken at each change of @state, and in a block session by a keep-alive
 * @lock:	protects @state, @error and writes of @private; innermost, taken with bottom
 *		halves off
 * @state:	enum krping_conn_state; only grows until krping_conn_reset(), except for
 *		KRPING_CONN_UNRESOLVED
 * @error:	negative errno; meaningful in KRPING_CONN_CLOSED
 * @private:	private data of the peer's request, or of its first reply or reject; written by the
 *		CM handler before @state reaches KRPING_CONN_REQUESTED, read after that
 * @private_len: bytes of @private
 * @stale:	the peer rejected because it still held a connection from before this host's
 *		reboot; it has now dropped that one. Written like @private
 * @quiet:	do not log why set-up fails: the owner has already logged it, and retries
 * @server:	ping/pong server: its command, which says whose requests to accept; constant
 * @id:		from krping_conn_open() or a listener until krping_conn_close()
 * @pd:		private to the connection unless @borrowed: its keys are invalid on others
 * @cq:		polled as struct krping_qp_attr describes
 * @cq_is_own:	@cq was made with a notify function
 * @borrowed:	@pd and @cq belong to the owner, and other connections have them, too
 * @buf_sges:	SGEs that a message buffer may have; from krping_conn_alloc()
 * @qp:		alias of @id->qp; NULL outside krping_conn_alloc()..krping_conn_destroy_qp()
 *
 * @id to @qp belong to the one thread that opens and closes the connection. Completions and
 * posters use @qp only between alloc and drain.
 */
struct krping_conn {
	const char *log_prefix;
	const struct krping_conn_ops *ops;
	wait_queue_head_t wait;
	spinlock_t lock;	/* what it protects: above */
	enum krping_conn_state state;
	int error;
	u8 private[KRPING_PRIVATE_MAX];
	u8 private_len;
	bool stale;
	bool quiet;
	const struct krping_options *server;
	struct rdma_cm_id *id;
	struct ib_pd *pd;
	struct ib_cq *cq;
	bool cq_is_own;
	bool borrowed;
	u32 buf_sges;
	struct ib_qp *qp;
};

/**
 * struct krping_qp_attr - parameters of krping_conn_alloc()
 * @send_wr:	send queue depth
 * @recv_wr:	receive queue depth
 * @vector:	spreads connections over completion vectors
 * @poll:	context of completions if @notify is NULL
 * @notify:	the owner polls the completion queue; called in any context, with the connection,
 *		when there is something to poll
 * @pd:		use this PD and @cq instead of own ones; both of the id's device
 * @cq:		has room for all work requests; @vector, @poll and @notify are not used
 * @pd_flags:	IB_PD_*
 * @srq:	receives come from it, of the same PD; @recv_wr is not used. NULL: an own queue
 * @context:	of the queue pair, for completions that all share
 * @inline_len:	bytes of inline data in a work request
 * @send_sge:	SGEs of a work request in the send queue, besides those of messages; 0: one
 * @buf_sges:	SGEs that a message may have if the device allows it, at most KRPING_BUF_SGES;
 *		0: one, which is enough for messages of one page
 * @rw_ctxs:	RDMA READs and WRITEs by rdma_rw that the send queue holds besides @send_wr
 */
struct krping_qp_attr {
	u32 send_wr;
	u32 recv_wr;
	u32 vector;
	enum ib_poll_context poll;
	ib_comp_handler notify;
	struct ib_pd *pd;
	struct ib_cq *cq;
	unsigned int pd_flags;
	struct ib_srq *srq;
	void *context;
	u32 inline_len;
	u32 send_sge;
	u32 buf_sges;
	u32 rw_ctxs;
};

/* Called while it is open. */
static inline bool krping_conn_is_iwarp(const struct krping_conn *conn)
{
	return rdma_protocol_iwarp(conn->id->device, conn->id->port_num);
}

/* cm.c */
void krping_conn_init(struct krping_conn *conn, const char *log_prefix,
		      const struct krping_conn_ops *ops);
void krping_conn_reset(struct krping_conn *conn);
void krping_conn_fail(struct krping_conn *conn, int error);
int krping_conn_error(struct krping_conn *conn);
int krping_conn_wait(struct krping_conn *conn, enum krping_conn_state state,
		     unsigned long timeout);
int krping_conn_open(struct krping_conn *conn, const struct krping_options *opt,
		     struct net *net, unsigned long timeout);
int krping_conn_connect(struct krping_conn *conn, struct rdma_conn_param *param,
			unsigned long timeout);
struct rdma_cm_id *krping_listen(const char *log_prefix, rdma_cm_event_handler handler,
				 void *context, struct net *net,
				 const struct sockaddr_storage *addr);
int krping_conn_adopt(struct krping_conn *conn, struct rdma_cm_id *id,
		      const struct rdma_cm_event *event);
struct rdma_cm_id *krping_conn_listen(struct krping_conn *conn, struct net *net,
				      const struct sockaddr_storage *addr);
void krping_conn_listen_next(struct rdma_cm_id *listener, struct krping_conn *conn);
int krping_conn_reply(struct krping_conn *conn, struct rdma_conn_param *param);
void krping_conn_confirm(struct krping_conn *conn);
int krping_conn_setup_errno(struct krping_conn *conn, int ret);
int krping_conn_accept(struct krping_conn *conn, struct rdma_conn_param *param,
		       unsigned long timeout);
int krping_sockaddr(const struct krping_options *opt, struct net *net,
		    struct sockaddr_storage *addr);
#define KRPING_ADDR_TEXT	48	/* bytes of an address as text, with the NUL */
const char *krping_addr_text(const u8 addr[16], char text[KRPING_ADDR_TEXT]);
void krping_peer_addr(const struct rdma_cm_id *id, u8 addr[16]);
bool krping_peer_is_allowed(const struct rdma_cm_id *id, const struct krping_options *opt);
void krping_reject(struct rdma_cm_id *id, u8 version, enum krping_reject_reason reason,
		   u32 value);
enum krping_reject_reason krping_conn_refusal(const struct krping_conn *conn, u32 *value);
const char *krping_reject_text(enum krping_reject_reason reason);

/* qp.c */
int krping_qp_init(void);
void krping_qp_exit(void);
u32 krping_conn_max_message(const struct krping_conn *conn, u32 size);
int krping_conn_check_limit(struct krping_conn *conn, const char *what, u32 wanted, u32 limit);
u32 krping_dev_max_wr(const struct ib_device *dev);
u32 krping_dev_max_reg_pages(const struct ib_device *dev);
u32 krping_dev_max_send_sge(const struct ib_device *dev);
struct ib_cq *krping_cq_alloc(struct ib_device *dev, u32 cqe, u32 vector, ib_comp_handler notify,
			      void *context);
void krping_cq_free(struct ib_cq *cq);
int krping_conn_alloc(struct krping_conn *conn, const struct krping_qp_attr *want);
void krping_conn_free(struct krping_conn *conn);
void krping_conn_drain(struct krping_conn *conn);
void krping_conn_destroy_qp(struct krping_conn *conn);
void krping_conn_close(struct krping_conn *conn);
int krping_conn_post_send(struct krping_conn *conn, struct ib_send_wr *wr);
void krping_conn_wc_failed(struct krping_conn *conn, const struct ib_wc *wc, const char *what);

#endif /* KRPING_CONN_H */
