// SPDX-License-Identifier: GPL-2.0
/* Connection set-up and loss: a function per rdma_cm event. */
#include <linux/inet.h>
#include <linux/netdevice.h>
#include <linux/rtnetlink.h>
#include <net/ipv6.h>
#include <rdma/ib_cm.h>

#include "rdma/conn.h"
#include "lib/fault.h"
#include "lib/log.h"

static __printf(2, 3) void setup_failed(struct krping_conn *conn, const char *fmt, ...)
{
	struct va_format text = { .fmt = fmt };
	va_list args;

	if (conn->quiet)
		return;
	va_start(args, fmt);
	text.va = &args;
	krping_err_ratelimited(conn->log_prefix, "%pV", &text);
	va_end(args);
}

void krping_conn_init(struct krping_conn *conn, const char *log_prefix,
		      const struct krping_conn_ops *ops)
{
	memset(conn, 0, sizeof(*conn));
	conn->log_prefix = log_prefix;
	conn->ops = ops;
	init_waitqueue_head(&conn->wait);
	spin_lock_init(&conn->lock);
}

/* Prepares the next attempt to connect; the previous one is closed. */
void krping_conn_reset(struct krping_conn *conn)
{
	spin_lock_bh(&conn->lock);
	conn->state = KRPING_CONN_IDLE;
	conn->error = 0;
	conn->private_len = 0;
	conn->stale = false;
	spin_unlock_bh(&conn->lock);
}

/* Keeps the first error: what follows a loss (flushes, a disconnect) is not its cause. */
void krping_conn_fail(struct krping_conn *conn, int error)
{
	bool first;

	spin_lock_bh(&conn->lock);
	first = conn->state != KRPING_CONN_CLOSED;
	if (first) {
		conn->error = error;
		WRITE_ONCE(conn->state, KRPING_CONN_CLOSED);
	}
	spin_unlock_bh(&conn->lock);
	if (!first)
		return;
	wake_up_all(&conn->wait);
	if (conn->ops && conn->ops->closed)
		conn->ops->closed(conn, error);
}

static void conn_advance(struct krping_conn *conn, enum krping_conn_state state)
{
	spin_lock_bh(&conn->lock);
	if (conn->state < state)
		WRITE_ONCE(conn->state, state);
	spin_unlock_bh(&conn->lock);
	wake_up_all(&conn->wait);
}

/* Return: 0 while the connection is not closed, else the error that closed it. */
int krping_conn_error(struct krping_conn *conn)
{
	int error;

	spin_lock_bh(&conn->lock);
	error = conn->state == KRPING_CONN_CLOSED ? conn->error : 0;
	spin_unlock_bh(&conn->lock);
	return error;
}

/**
 * krping_conn_wait - wait for a state
 * @conn:	the connection
 * @state:	this one or a later one
 * @timeout:	jiffies, MAX_SCHEDULE_TIMEOUT for none
 *
 * Return: 0, -EINTR, -ETIMEDOUT, or the error that closed the connection.
 */
int krping_conn_wait(struct krping_conn *conn, enum krping_conn_state state,
		     unsigned long timeout)
{
	long left;

	left = wait_event_interruptible_timeout(conn->wait, READ_ONCE(conn->state) >= state,
						timeout);
	if (left < 0)
		return -EINTR;
	if (!left)
		return -ETIMEDOUT;
	return krping_conn_error(conn);
}

/*
 * The errno for a CM event's status, which is a negative errno or, on some transports, a positive
 * code of that transport.
 */
static int cm_errno(int status, int otherwise)
{
	switch (status) {
	case -ENODEV:
	case -EADDRNOTAVAIL:
		return -EADDRNOTAVAIL;
	case -ETIMEDOUT:
	case -EHOSTUNREACH:
	case -ENETUNREACH:
	case -ENOMEM:
		return status;
	default:
		return otherwise;
	}
}

#define ROUTE_TIMEOUT_MS	2000

static void on_addr_resolved(struct krping_conn *conn)
{
	int ret = rdma_resolve_route(conn->id, ROUTE_TIMEOUT_MS);

	if (ret) {
		setup_failed(conn, "cannot resolve the route: %d", ret);
		krping_conn_fail(conn, cm_errno(ret, -EHOSTUNREACH));
	}
}

static void on_resolve_error(struct krping_conn *conn, const struct rdma_cm_event *event)
{
	if (event->event == RDMA_CM_EVENT_ADDR_ERROR && event->status == -ETIMEDOUT) {
		conn_advance(conn, KRPING_CONN_UNRESOLVED);
		return;
	}
	setup_failed(conn, "%s: %d", rdma_event_msg(event->event), event->status);
	krping_conn_fail(conn, cm_errno(event->status, -EHOSTUNREACH));
}

/* A local failure: failures caused by the peer have their own events. */
static void on_connect_error(struct krping_conn *conn, const struct rdma_cm_event *event)
{
	setup_failed(conn, "cannot connect: %d", event->status);
	krping_conn_fail(conn, cm_errno(event->status, -ECONNRESET));
}

static void on_unreachable(struct krping_conn *conn, const struct rdma_cm_event *event)
{
	setup_failed(conn, "the peer does not answer: %d", event->status);
	krping_conn_fail(conn, -ETIMEDOUT);
}

/* Called with @conn->lock held, in a state in which the owner does not read the data yet. */
static void save_private(struct krping_conn *conn, const void *data, u8 len)
{
	conn->private_len = data ? min_t(u8, len, sizeof(conn->private)) : 0;
	memcpy(conn->private, data, conn->private_len);
}

/* Return: whether it was saved: only a client's first answer is, a server saves none. */
static bool save_answer(struct krping_conn *conn, const void *data, u8 len)
{
	bool awaited;

	spin_lock_bh(&conn->lock);
	awaited = conn->state < KRPING_CONN_REQUESTED;
	if (awaited)
		save_private(conn, data, len);
	spin_unlock_bh(&conn->lock);
	return awaited;
}

/**
 * krping_conn_refusal - why a krping peer has rejected the connection
 * @conn:	connection that failed with -ECONNREFUSED
 * @value:	value of the reject, 0 if there is none
 *
 * Return: the reason, 0 if the peer gave none.
 */
enum krping_reject_reason krping_conn_refusal(const struct krping_conn *conn, u32 *value)
{
	struct krping_reject reject = {};

	if (conn->private_len >= sizeof(reject))
		memcpy(&reject, conn->private, sizeof(reject));
	if (be32_to_cpu(reject.magic) != KRPING_MAGIC)
		reject = (struct krping_reject){};
	*value = be32_to_cpu(reject.value);
	return be16_to_cpu(reject.reason);
}

/* Texts for the reasons of a target, logged on both sides. */
const char *krping_reject_text(enum krping_reject_reason reason)
{
	static const char *const texts[] = {
		[KRPING_REJ_MAGIC]	= "the client did not send a krping hello",
		[KRPING_REJ_VERSION]	= "the versions of the protocol differ",
		[KRPING_REJ_INVALID]	= "a field of the hello is out of range",
		[KRPING_REJ_VOLUME]	= "no volume of that name",
		[KRPING_REJ_QUEUES]	= "too many queues",
		[KRPING_REJ_BUSY]	= "the target has its maximum of connections",
		[KRPING_REJ_RESOURCES]	= "the target is out of memory or queue pairs",
		[KRPING_REJ_NOT_ALLOWED] = "the client's address is not allowed",
		[KRPING_REJ_CHALLENGE]	= "the target sent a challenge that was not asked for",
		[KRPING_REJ_KEY]	= "the keys of the two sides differ",
		[KRPING_REJ_NEEDS_KEY]	= "the volume has a key: the client needs key=",
		[KRPING_REJ_NO_KEY]	= "the client has a key, the volume has none",
		[KRPING_REJ_STALE]	= "the answered challenge is unknown or has expired",
		[KRPING_REJ_IN_USE]	= "another client has the volume",
	};

	return (u32)reason < ARRAY_SIZE(texts) && texts[reason] ? texts[reason] : "unknown";
}

/*
 * Saves the private data of a reject. On InfiniBand, rejects by the CM itself also have data. On
 * iWARP only those by the peer do, and siw reports them with another status than other drivers.
 */
static bool save_reject_data(struct krping_conn *conn, struct rdma_cm_event *event)
{
	const struct rdma_conn_param *param = &event->param.conn;
	const void *data;
	u8 len = 0;

	if (krping_conn_is_iwarp(conn))
		return save_answer(conn, param->private_data, param->private_data_len);
	data = rdma_consumer_reject_data(conn->id, event, &len);
	return save_answer(conn, data, len);
}

/* These the owner answers by another attempt, or explains. */
static bool is_negotiated(enum krping_reject_reason reason)
{
	return reason == KRPING_REJ_CHALLENGE || reason == KRPING_REJ_VERSION ||
	       reason == KRPING_REJ_INVALID || reason == KRPING_REJ_IN_USE;
}

static void on_rejected(struct krping_conn *conn, struct rdma_cm_event *event)
{
	u32 value;

	if (!save_reject_data(conn, event)) {	/* the peer had accepted or sent a request */
		krping_conn_fail(conn, -ECONNRESET);
		return;
	}
	conn->stale = event->status == IB_CM_REJ_STALE_CONN;
	if (!is_negotiated(krping_conn_refusal(conn, &value)))
		setup_failed(conn, "the peer rejected the connection: %s",
			     rdma_reject_msg(conn->id, event->status));
	krping_conn_fail(conn, -ECONNREFUSED);
}

static void on_established(struct krping_conn *conn, const struct rdma_cm_event *event)
{
	save_answer(conn, event->param.conn.private_data, event->param.conn.private_data_len);
	conn_advance(conn, KRPING_CONN_LIVE);
}

/*
 * A message from the client implies its confirmation (RTU), which may be lost; ib_cm then repeats
 * its reply. rdma_notify() is not used: if the connection ends soon after it, ib_cm keeps the
 * reply and the id for a minute; and it must not be called in a softirq.
 */
void krping_conn_confirm(struct krping_conn *conn)
{
	if (READ_ONCE(conn->state) == KRPING_CONN_REQUESTED)
		conn_advance(conn, KRPING_CONN_LIVE);
}

static void on_device_removal(struct krping_conn *conn)
{
	krping_err(conn->log_prefix, "the RDMA device is being removed");
	krping_conn_fail(conn, -ENODEV);
}

/*
 * Always returns 0: the owner destroys the id, never rdma_cm. On device removal rdma_cm waits
 * until the owner, woken by the failure, has done so.
 */
static int conn_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct krping_conn *conn = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		on_addr_resolved(conn);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		conn_advance(conn, KRPING_CONN_RESOLVED);
		break;
	case RDMA_CM_EVENT_ADDR_ERROR:
	case RDMA_CM_EVENT_ROUTE_ERROR:
		on_resolve_error(conn, event);
		break;
	case RDMA_CM_EVENT_CONNECT_ERROR:
		on_connect_error(conn, event);
		break;
	case RDMA_CM_EVENT_UNREACHABLE:
		on_unreachable(conn, event);
		break;
	case RDMA_CM_EVENT_REJECTED:
		on_rejected(conn, event);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		on_established(conn, event);
		break;
	case RDMA_CM_EVENT_DISCONNECTED:
	case RDMA_CM_EVENT_ADDR_CHANGE:
		krping_conn_fail(conn, -ECONNRESET);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		on_device_removal(conn);
		break;
	default:	/* TIMEWAIT_EXIT, multicast: nothing to do */
		break;
	}
	return 0;
}

/**
 * krping_conn_adopt - take the id of a connection request
 * @conn:	idle
 * @id:		new id of an RDMA_CM_EVENT_CONNECT_REQUEST, whose handler calls this
 * @event:	that event
 *
 * Return: 0: the handler must return 0; @conn now owns the id. -EBUSY: @conn already has a client.
 */
int krping_conn_adopt(struct krping_conn *conn, struct rdma_cm_id *id,
		      const struct rdma_cm_event *event)
{
	bool taken;

	spin_lock_bh(&conn->lock);
	taken = conn->state != KRPING_CONN_IDLE;
	if (!taken) {
		conn->id = id;
		id->context = conn;
		id->event_handler = conn_event;
		save_private(conn, event->param.conn.private_data,
			     event->param.conn.private_data_len);
		WRITE_ONCE(conn->state, KRPING_CONN_REQUESTED);
	}
	spin_unlock_bh(&conn->lock);
	if (taken)
		return -EBUSY;	/* rdma_cm destroys the new id: the client is rejected */
	wake_up_all(&conn->wait);
	return 0;
}

/* The address of an id's peer, IPv6 or IPv4-mapped. */
void krping_peer_addr(const struct rdma_cm_id *id, u8 addr[16])
{
	const struct sockaddr_storage *peer = &id->route.addr.dst_addr;
	struct in6_addr in6 = {};

	if (peer->ss_family == AF_INET)
		ipv6_addr_set_v4mapped(((const struct sockaddr_in *)peer)->sin_addr.s_addr, &in6);
	else if (peer->ss_family == AF_INET6)
		in6 = ((const struct sockaddr_in6 *)peer)->sin6_addr;
	memcpy(addr, &in6, sizeof(in6));
}

/* @addr: as of krping_peer_addr(). Return: @text. */
const char *krping_addr_text(const u8 addr[16], char text[KRPING_ADDR_TEXT])
{
	struct in6_addr in6;

	memcpy(&in6, addr, sizeof(in6));
	if (ipv6_addr_v4mapped(&in6))
		snprintf(text, KRPING_ADDR_TEXT, "%pI4", &in6.s6_addr32[3]);
	else
		snprintf(text, KRPING_ADDR_TEXT, "%pI6c", &in6);
	return text;
}

/* Return: whether the server of command @opt may serve this client. */
bool krping_peer_is_allowed(const struct rdma_cm_id *id, const struct krping_options *opt)
{
	u8 addr[16];

	krping_peer_addr(id, addr);
	return krping_is_allowed(opt, addr);
}

/* Called with the handler lock of @id held. @version: as in struct krping_reject. */
void krping_reject(struct rdma_cm_id *id, u8 version, enum krping_reject_reason reason, u32 value)
{
	struct krping_reject reject = {
		.magic = cpu_to_be32(KRPING_MAGIC),
		.version = version,
		.reason = cpu_to_be16(reason),
		.value = cpu_to_be32(value),
	};

	rdma_reject(id, &reject, sizeof(reject), IB_CM_REJ_CONSUMER_DEFINED);
}

static int on_connect_request(struct krping_conn *conn, struct rdma_cm_id *id,
			      const struct rdma_cm_event *event)
{
	enum krping_reject_reason reason = KRPING_REJ_NOT_ALLOWED;
	u32 value = 0;

	if (krping_peer_is_allowed(id, conn->server)) {
		if (!conn->ops->admits || conn->ops->admits(conn, id, &event->param.conn))
			return krping_conn_adopt(conn, id, event);
		reason = KRPING_REJ_BUSY;
		value = conn->server->qps;
	}
	krping_warn_ratelimited(conn->log_prefix, "%pISpc was rejected: %s",
				&id->route.addr.dst_addr, krping_reject_text(reason));
	krping_reject(id, KRPING_TEST_VERSION, reason, value);
	return -EACCES;		/* rdma_cm destroys the id */
}

static int listener_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct krping_conn *conn = id->context;

	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		return on_connect_request(conn, id, event);
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		on_device_removal(conn);
		break;
	default:
		break;
	}
	return 0;
}

/*
 * ib_core may miss a neighbour's answer and then checks again only when its time-out expires, so
 * use a short one.
 */
#define ADDR_TIMEOUT	HZ

/* Return: whether to resolve again: no answer yet, and the connection is not closed. */
static bool is_unresolved(struct krping_conn *conn)
{
	bool again;

	spin_lock_bh(&conn->lock);
	again = conn->state == KRPING_CONN_UNRESOLVED;
	if (again)
		WRITE_ONCE(conn->state, KRPING_CONN_IDLE);
	spin_unlock_bh(&conn->lock);
	return again;
}

static int resolve(struct krping_conn *conn, const struct sockaddr_storage *peer,
		   unsigned long timeout)
{
	unsigned long until = jiffies + timeout;
	long left;
	int ret;

	do {
		left = until - jiffies;
		if (left <= 0) {
			setup_failed(conn, "the address does not answer");
			return -ETIMEDOUT;
		}
		ret = rdma_resolve_addr(conn->id, NULL, (struct sockaddr *)peer,
					jiffies_to_msecs(min_t(long, left, ADDR_TIMEOUT)));
		if (ret) {
			setup_failed(conn, "no RDMA device of this host reaches the address: %d",
				     ret);
			return cm_errno(ret, -EADDRNOTAVAIL);
		}
		ret = krping_conn_wait(conn, KRPING_CONN_UNRESOLVED, left + ADDR_TIMEOUT);
		krping_fault_sleep(KRPING_FAULT_RESOLVE_STALL, conn->log_prefix);
	} while (!ret && is_unresolved(conn));
	return ret ?: krping_conn_error(conn);	/* if it was closed meanwhile, there is no device */
}

static int make_sockaddr(struct sockaddr_storage *addr, u16 family, const u8 *ip,
			 const char *ifname, u16 port, struct net *net)
{
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)addr;
	struct sockaddr_in *in = (struct sockaddr_in *)addr;
	struct net_device *dev;

	memset(addr, 0, sizeof(*addr));
	if (family == AF_INET) {
		in->sin_family = AF_INET;
		memcpy(&in->sin_addr, ip, sizeof(in->sin_addr));
		in->sin_port = htons(port);
		return 0;
	}
	in6->sin6_family = AF_INET6;
	memcpy(&in6->sin6_addr, ip, sizeof(in6->sin6_addr));
	in6->sin6_port = htons(port);
	if (!ifname[0])
		return 0;
	rcu_read_lock();
	dev = dev_get_by_name_rcu(net, ifname);
	if (dev)
		in6->sin6_scope_id = dev->ifindex;
	rcu_read_unlock();
	return dev ? 0 : -ENODEV;
}

/* Binds the id to the source address, which also selects the device and the interface. */
static int bind_source(struct krping_conn *conn, const struct krping_options *opt,
		       struct net *net)
{
	struct sockaddr_storage src;
	int ret;

	if (!opt->src_family)
		return 0;
	ret = make_sockaddr(&src, opt->src_family, opt->src, opt->src_ifname, 0, net);
	if (!ret)
		ret = rdma_bind_addr(conn->id, (struct sockaddr *)&src);
	if (!ret)
		return 0;
	setup_failed(conn, "source: the address is on no RDMA device of this host: %d", ret);
	return cm_errno(ret, -EADDRNOTAVAIL);
}

/**
 * krping_conn_open - make the id, and resolve the address and route of a command's peer
 * @conn:	idle
 * @opt:	a valid command of a client
 * @net:	network namespace of the caller
 * @timeout:	jiffies
 *
 * Return: 0, or a negative errno after which @conn->id is NULL.
 */
int krping_conn_open(struct krping_conn *conn, const struct krping_options *opt,
		     struct net *net, unsigned long timeout)
{
	struct sockaddr_storage peer;
	struct rdma_cm_id *id;
	int ret;

	ret = krping_sockaddr(opt, net, &peer);	/* the interface's index may have changed */
	if (ret)
		return ret;
	id = rdma_create_id(net, conn_event, conn, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return PTR_ERR(id);
	conn->id = id;
	if (opt->has_tos)
		rdma_set_service_type(id, opt->tos);
	ret = bind_source(conn, opt, net);
	if (!ret)
		ret = resolve(conn, &peer, timeout);
	if (!ret)
		return 0;
	rdma_destroy_id(id);	/* until this returns a handler may use @conn->id */
	conn->id = NULL;
	return ret;
}

/**
 * krping_conn_setup_errno - what a failed call of rdma_cm means while a connection is set up
 * @conn:	the connection
 * @ret:	negative errno of the call
 *
 * Over siw rdma_connect() waits for TCP: that may return EPROTO, and a signal must not restart the
 * system call. EINVAL means that the peer or the device is gone, so that the id is in the wrong
 * state: @conn is closed then.
 *
 * Return: a negative errno.
 */
int krping_conn_setup_errno(struct krping_conn *conn, int ret)
{
	switch (ret) {
	case -ERESTARTSYS:
		return -EINTR;
	case -ECONNRESET:
	case -EINVAL:
	case -EPROTO:
		krping_conn_fail(conn, -ECONNRESET);
		return krping_conn_error(conn);
	default:
		return ret;
	}
}

/* Return: 0 when the peer has accepted; on an error the caller closes @conn. */
int krping_conn_connect(struct krping_conn *conn, struct rdma_conn_param *param,
			unsigned long timeout)
{
	int ret = rdma_connect(conn->id, param);

	if (ret)
		return krping_conn_setup_errno(conn, ret);
	ret = krping_conn_wait(conn, KRPING_CONN_LIVE, timeout);
	krping_fault_sleep(KRPING_FAULT_CONNECT_STALL, conn->log_prefix);
	return ret;
}

#define LISTEN_BACKLOG	128

/**
 * krping_listen - listen for connection requests
 * @log_prefix:	in front of log messages; NULL: do not log failures
 * @handler:	handles events of the listener, and of a new id until it is adopted
 * @context:	passed to @handler
 * @net:	network namespace
 * @addr:	address and port to bind to
 *
 * Return: the listening id, which the caller destroys, or an ERR_PTR.
 */
struct rdma_cm_id *krping_listen(const char *log_prefix, rdma_cm_event_handler handler,
				 void *context, struct net *net,
				 const struct sockaddr_storage *addr)
{
	struct rdma_cm_id *id;
	int ret;

	id = rdma_create_id(net, handler, context, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return id;
	ret = rdma_bind_addr(id, (struct sockaddr *)addr);
	if (ret) {
		if (log_prefix)
			krping_err_ratelimited(log_prefix, "cannot bind: %s", ret == -EADDRINUSE ?
					       "the port is in use" :
					       "the address is on no RDMA device of this host");
		ret = ret == -EADDRINUSE ? ret : cm_errno(ret, -EADDRNOTAVAIL);
		goto destroy_id;
	}
	ret = rdma_listen(id, LISTEN_BACKLOG);
	if (!ret)
		return id;
	if (log_prefix)
		krping_err_ratelimited(log_prefix, "cannot listen: %d", ret);
	ret = ret == -EADDRINUSE ? ret : cm_errno(ret, -EADDRNOTAVAIL);	/* its device has gone */
destroy_id:
	rdma_destroy_id(id);
	return ERR_PTR(ret);
}

/* Listens for one client; its request sets @conn->id and the state KRPING_CONN_REQUESTED. */
struct rdma_cm_id *krping_conn_listen(struct krping_conn *conn, struct net *net,
				      const struct sockaddr_storage *addr)
{
	return krping_listen(conn->log_prefix, listener_event, conn, net, addr);
}

/* Return: 0; an event then reports the client's confirmation or the loss. */
int krping_conn_reply(struct krping_conn *conn, struct rdma_conn_param *param)
{
	int ret;

	rdma_lock_handler(conn->id);
	ret = rdma_accept(conn->id, param);
	rdma_unlock_handler(conn->id);
	return ret;
}

/* Return: 0 when the client has confirmed; on an error the caller closes @conn. */
int krping_conn_accept(struct krping_conn *conn, struct rdma_conn_param *param,
		       unsigned long timeout)
{
	int ret;

	krping_fault_sleep(KRPING_FAULT_ACCEPT_STALL, conn->log_prefix);
	ret = krping_conn_reply(conn, param);
	return ret ? krping_conn_setup_errno(conn, ret) :
		     krping_conn_wait(conn, KRPING_CONN_LIVE, timeout);
}

/**
 * krping_conn_listen_next - direct the next request to another connection
 * @listener:	from krping_conn_listen()
 * @conn:	idle
 */
void krping_conn_listen_next(struct rdma_cm_id *listener, struct krping_conn *conn)
{
	rdma_lock_handler(listener);
	listener->context = conn;
	rdma_unlock_handler(listener);
}

/**
 * krping_sockaddr - the address of a command
 * @opt:	a valid command with an address
 * @net:	where its interface name is looked up
 * @addr:	filled in
 *
 * Return: 0 or -ENODEV if there is no such interface.
 */
int krping_sockaddr(const struct krping_options *opt, struct net *net,
		    struct sockaddr_storage *addr)
{
	return make_sockaddr(addr, opt->family, opt->addr, opt->ifname, opt->port, net);
}
