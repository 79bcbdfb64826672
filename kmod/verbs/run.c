// SPDX-License-Identifier: GPL-2.0
/* A verbs test from its command to its result: connections, set-up, verdict, teardown. */
#include <linux/nsproxy.h>
#include <linux/sched.h>
#include <linux/slab.h>

#include "lib/log.h"
#include "ping/hello.h"
#include "verbs/verbs.h"

/* ---- connections ---- */

/* A test needs its control connection: nothing waits for the others then. */
static void verbs_control_closed(struct krping_conn *conn, int error)
{
	struct krping_verbs *v = container_of(conn, struct krping_verbs, control);
	u32 nr = smp_load_acquire(&v->nr_queues), i;	/* pairs with queues_alloc() */

	for (i = 0; i < nr; i++)
		krping_conn_fail(&v->queues[i].conn, error);
	krping_thread_progress(&v->thread);
}

/* A test needs all of its connections. */
static void verbs_data_closed(struct krping_conn *conn, int error)
{
	struct krping_verbs_queue *q = container_of(conn, struct krping_verbs_queue, conn);

	krping_conn_fail(&q->v->control, error);
}

static bool verbs_data_admits(struct krping_conn *conn, const struct rdma_cm_id *id,
			      const struct rdma_conn_param *param)
{
	struct krping_verbs *v = container_of(conn, struct krping_verbs_queue, conn)->v;

	return krping_hello_group(param->private_data, param->private_data_len) ==
	       v->thread.group && krping_same_host(id, v->control.id);
}

static const struct krping_conn_ops verbs_control_ops = {
	.closed = verbs_control_closed,
};

static const struct krping_conn_ops verbs_data_ops = {
	.admits = verbs_data_admits,
	.closed = verbs_data_closed,
};

static struct rdma_conn_param conn_param(const struct krping_verbs *v, bool data)
{
	struct rdma_conn_param param = krping_conn_param;

	if (data && v->test.reads && v->is_initiator)
		param.initiator_depth = v->test.reads;
	if (data && v->test.reads && v->is_target)
		param.responder_resources = v->test.reads;
	return param;
}

static int queues_alloc(struct krping_verbs *v)
{
	int ret = krping_verbs_queues_alloc(v);
	u32 i;

	if (ret)
		return ret;
	for (i = 0; i < v->test.qps; i++) {
		krping_conn_init(&v->queues[i].conn, v->thread.log_prefix, &verbs_data_ops);
		v->queues[i].conn.server = v->thread.opt;
	}
	smp_store_release(&v->nr_queues, v->test.qps);	/* verbs_control_closed() sees them */
	return krping_conn_error(&v->control);	/* if it was closed before that */
}

/* The control connection has a device. */
static void set_roles(struct krping_verbs *v)
{
	const struct krping_options *t = &v->test;
	bool both = krping_verbs_both_send(t), bw = t->measure == KRPING_VERBS_BW;
	bool iwarp = krping_conn_is_iwarp(&v->control);

	v->is_initiator = both || krping_verbs_is_client(v);
	v->is_target = both || !krping_verbs_is_client(v);
	v->uses_check = bw && t->validate && t->verb == KRPING_VERB_WRITE;
	v->uses_credit = bw && ((t->validate && krping_verbs_is_write(t)) ||
				(iwarp && t->verb == KRPING_VERB_SEND));
}

/* Return: the largest size of the device and the path if it is too small for the test, else 0. */
static u32 too_small(const struct krping_verbs *v)
{
	u32 most = min_t(u64, U32_MAX, (u64)PAGE_SIZE *
			 krping_dev_max_reg_pages(v->control.id->device));

	most = min(most, krping_conn_max_message(&v->control, v->test.size));
	if (v->test.qp_type == KRPING_VERBS_UD)
		most = min(most, v->test.mtu ?: krping_verbs_path_mtu(&v->control));
	return v->test.size > most ? most : 0;
}

/* ---- the set-up after the control connection ---- */

static bool all_known(struct krping_verbs *v)
{
	return v->known == v->nr_queues;
}

static bool is_going(struct krping_verbs *v)
{
	return v->going;
}

static int describe_queues(struct krping_verbs *v)
{
	struct krping_verbs_msg msg;
	int ret = 0;
	u32 i;

	for (i = 0; i < v->nr_queues && !ret; i++) {
		krping_verbs_describe(&v->queues[i], &msg);
		ret = krping_verbs_tell(v, &msg);
	}
	return ret;
}

/* ---- client ---- */

static void explain_refusal(struct krping_verbs *v, struct krping_conn *conn)
{
	u32 value;

	if (krping_conn_refusal(conn, &value) == KRPING_REJ_DEVICE)
		krping_err_ratelimited(v->thread.log_prefix, "the server rejects the test: %s %u",
				       krping_need_text(value), value & KRPING_NEED_LIMIT_MAX);
	else
		krping_hello_rejected(conn);
}

static int connect_one(struct krping_verbs *v, struct krping_conn *conn, u16 connection)
{
	struct rdma_conn_param param = conn_param(v, connection);
	struct krping_verbs_hello hello;
	int ret;

	krping_verbs_fill_hello(&hello, &v->test, v->thread.group, connection);
	param.private_data = &hello;
	param.private_data_len = sizeof(hello);
	ret = krping_conn_connect(conn, &param, krping_verbs_setup_timeout(v));
	if (ret == -ECONNREFUSED)
		explain_refusal(v, conn);
	return ret;
}

static int connect_control(struct krping_verbs *v, struct net *net)
{
	u32 need, most;
	int ret;

	ret = krping_conn_open(&v->control, v->thread.opt, net, krping_step_timeout(&v->thread));
	if (ret)
		return ret;
	krping_thread_show_device(&v->thread, v->control.id->device->name);
	set_roles(v);
	ret = krping_verbs_check_device(v, &need);
	if (ret)
		return ret;
	most = too_small(v);
	if (most) {
		krping_err_ratelimited(v->thread.log_prefix,
				       "size=%u: must be at most %u, the limit of %s%s",
				       v->test.size, most, v->control.id->device->name,
				       v->test.qp_type == KRPING_VERBS_UD ? " or the path's MTU" :
									    "");
		return -EINVAL;
	}
	ret = queues_alloc(v);
	if (!ret)
		ret = krping_verbs_plan(v);
	if (!ret)
		ret = krping_verbs_control_alloc(v);
	if (ret == -EINVAL && v->test.inline_len)
		krping_err_ratelimited(v->thread.log_prefix,
				       "inline: %s has no inline data of %u bytes",
				       v->control.id->device->name, v->test.inline_len);
	return ret ?: connect_one(v, &v->control, 0);
}

static int connect_data(struct krping_verbs *v, struct krping_verbs_queue *q, struct net *net)
{
	struct sa_path_rec *path;
	int ret;

	ret = krping_conn_open(&q->conn, v->thread.opt, net, krping_step_timeout(&v->thread));
	if (ret)
		return ret;
	path = q->conn.id->route.path_rec;
	if (path && v->test.mtu && v->test.mtu < ib_mtu_enum_to_int(path->mtu))
		path->mtu = ib_mtu_int_to_enum(v->test.mtu);
	ret = krping_verbs_rc_prepare(q);
	return ret ?: connect_one(v, &q->conn, q->index + 1);
}

static int set_up_client(struct krping_verbs *v, struct net *net)
{
	static const struct krping_verbs_msg go = { .type = KRPING_VERBS_GO };
	int ret;
	u32 i;

	ret = connect_control(v, net);
	if (!ret)
		ret = krping_verbs_memory_alloc(v);
	if (!ret)
		ret = krping_verbs_queues_prepare(v);
	if (krping_verbs_is_reliable(&v->test))
		for (i = 0; i < v->nr_queues && !ret; i++)
			ret = connect_data(v, &v->queues[i], net);
	if (!ret)
		ret = describe_queues(v);
	if (!ret)
		ret = krping_verbs_wait(v, all_known);
	if (!ret)
		ret = krping_verbs_queues_connect(v);
	if (!ret)
		ret = krping_verbs_tell(v, &go);
	v->going = !ret;
	return ret;
}

/* ---- server ---- */

/*
 * Prepares for the client's test.
 * Return: 0, or why the server rejects it; @value is the value of the reject.
 */
static enum krping_reject_reason prepare_for(struct krping_verbs *v, u32 *value)
{
	struct krping_conn *conn = &v->control;
	enum krping_reject_reason reason;
	u16 connection;
	int ret;

	reason = krping_verbs_read_hello(conn->private, conn->private_len, v->thread.opt, &v->test,
					 &connection, value);
	if (reason)
		return reason;
	if (connection)
		return KRPING_REJ_INVALID;
	if (!krping_hello_tos_fits(conn, v->thread.opt)) {
		*value = v->thread.opt->tos;
		return KRPING_REJ_TOS;
	}
	v->thread.group = krping_hello_group(conn->private, conn->private_len);
	set_roles(v);
	if (krping_verbs_check_device(v, value))
		return KRPING_REJ_DEVICE;
	*value = too_small(v);
	if (*value)
		return KRPING_REJ_SIZE;
	if (queues_alloc(v) || krping_verbs_plan(v))
		return KRPING_REJ_RESOURCES;
	ret = krping_verbs_control_alloc(v);
	if (!ret)
		return 0;
	if (!v->test.inline_len || ret != -EINVAL)
		return KRPING_REJ_RESOURCES;
	*value = (u32)KRPING_NEED_INLINE << KRPING_NEED_SHIFT;
	return KRPING_REJ_DEVICE;
}

static int accept_control(struct krping_verbs *v, struct rdma_cm_id *listener)
{
	struct rdma_conn_param param;
	u32 reason, value = 0;
	int ret;

	ret = krping_conn_wait(&v->control, KRPING_CONN_REQUESTED, MAX_SCHEDULE_TIMEOUT);
	if (ret)
		return ret;
	krping_thread_show_device(&v->thread, v->control.id->device->name);
	reason = prepare_for(v, &value);
	if (reason) {
		krping_hello_reject(&v->control, reason, value);
		return -EPROTO;
	}
	/* Before accepting: once connected, the client requests its next connection. */
	if (krping_verbs_is_reliable(&v->test))
		krping_conn_listen_next(listener, &v->queues[0].conn);
	param = conn_param(v, false);
	return krping_conn_accept(&v->control, &param, krping_step_timeout(&v->thread));
}

/* The request must say the same as that of the control connection. */
static bool is_request_of(const struct krping_verbs_queue *q)
{
	const struct krping_conn *conn = &q->conn;
	struct krping_verbs_hello hello, want;

	krping_verbs_fill_hello(&want, &q->v->test, q->v->thread.group, q->index + 1);
	if (conn->private_len < sizeof(hello))
		return false;
	memcpy(&hello, conn->private, sizeof(hello));
	return !memcmp(&hello, &want, sizeof(hello));
}

static int accept_data(struct krping_verbs *v, struct krping_verbs_queue *q,
		       struct rdma_cm_id *listener)
{
	struct rdma_conn_param param = conn_param(v, true);
	int ret;

	ret = krping_conn_wait(&q->conn, KRPING_CONN_REQUESTED, krping_verbs_setup_timeout(v));
	if (ret)
		return ret;
	if (!is_request_of(q)) {
		krping_hello_reject(&q->conn, KRPING_REJ_INVALID, 0);
		return -EPROTO;
	}
	ret = krping_verbs_rc_prepare(q);
	if (ret)
		return ret;
	if (q->index + 1u < v->nr_queues)
		krping_conn_listen_next(listener, &v->queues[q->index + 1].conn);
	return krping_conn_accept(&q->conn, &param, krping_step_timeout(&v->thread));
}

static int set_up_server(struct krping_verbs *v, struct rdma_cm_id *listener)
{
	int ret;
	u32 i;

	ret = accept_control(v, listener);
	if (!ret)
		ret = krping_verbs_memory_alloc(v);
	if (!ret)
		ret = krping_verbs_queues_prepare(v);
	if (krping_verbs_is_reliable(&v->test))
		for (i = 0; i < v->nr_queues && !ret; i++)
			ret = accept_data(v, &v->queues[i], listener);
	if (!ret)
		ret = krping_verbs_wait(v, all_known);
	if (!ret)
		ret = krping_verbs_queues_connect(v);
	v->ready = !ret;
	if (!ret)
		ret = describe_queues(v);
	return ret ?: krping_verbs_wait(v, is_going);
}

/* The client disconnects when it has all reports; if it does not, the server does. */
static int await_disconnect(struct krping_verbs *v)
{
	int ret = krping_conn_wait(&v->control, KRPING_CONN_CLOSED,
				   krping_step_timeout(&v->thread));

	return ret == -EINTR ? ret : 0;
}

/* ---- the end ---- */

/* What has arrived at this side, also if there is no REPORT of it. */
static void count_arrivals(struct krping_verbs *v)
{
	u32 i;

	if (v->report_sent)
		return;
	v->report.received = v->arrived;
	for (i = 0; i < v->nr_queues; i++) {
		const struct krping_account *account = &v->queues[i].account;

		v->report.lost += account->next - account->received;
		v->report.repeated += account->repeated;
		v->report.reordered += account->reordered;
	}
}

/* Adds to the result what is known at the end; the peer's REPORT has added its part. */
static void count_at_end(struct krping_verbs *v)
{
	struct krping_verbs_counts *counts = &v->thread.result->verbs;
	/* LAT: to a message that the server has lost the client misses the answer, too */
	bool counts_all = krping_verbs_is_lat(v) && krping_verbs_is_client(v) && v->is_target;
	u64 received;

	count_arrivals(v);
	received = v->report.received + (v->test.verb == KRPING_VERB_READ ? v->done : 0);
	WRITE_ONCE(counts->sent, v->sent);
	WRITE_ONCE(counts->received, received);
	WRITE_ONCE(counts->lost, v->report.lost + (counts_all ? 0 : v->peer_lost));
	WRITE_ONCE(counts->repeated, counts->repeated + v->report.repeated);
	WRITE_ONCE(counts->reordered, counts->reordered + v->report.reordered);
	WRITE_ONCE(counts->damaged, counts->damaged + v->peer_damaged);
}

/* Return: 0, or what the counts of a test that has run to its end mean. */
static int verdict(struct krping_verbs *v)
{
	const struct krping_verbs_counts *counts = &v->thread.result->verbs;

	krping_info(v->thread.log_prefix,
		    "%s, qp=%s: %llu sent, %llu received, %llu lost, %llu repeated, %llu reordered, %llu damaged",
		    krping_verb_names[v->test.verb], krping_verbs_qp_names[v->test.qp_type],
		    counts->sent, counts->received, counts->lost, counts->repeated,
		    counts->reordered, counts->damaged);
	if (!counts->lost || !krping_verbs_is_reliable(&v->test))
		return 0;
	krping_err(v->thread.log_prefix, "a reliable connection has lost %llu messages",
		   counts->lost);
	return -EPROTO;
}

static enum krping_verbs_error error_code(int ret)
{
	switch (ret) {
	case -ENOMEM:
		return KRPING_VERBS_E_RESOURCES;
	case -EPROTO:
	case -EBADMSG:
		return KRPING_VERBS_E_PROTOCOL;
	case -EINTR:
		return KRPING_VERBS_E_STOPPED;
	case -ETIMEDOUT:
		return KRPING_VERBS_E_TIMEOUT;
	default:
		return KRPING_VERBS_E_DEVICE;
	}
}

/* Tells the peer that this side ends, unless it knows. */
static void say_goodbye(struct krping_verbs *v, int ret)
{
	struct krping_verbs_msg msg = {
		.type = KRPING_VERBS_ERROR,
		.number = cpu_to_be64(error_code(ret)),
	};

	if (v->told || READ_ONCE(v->control.state) != KRPING_CONN_LIVE ||
	    !krping_verbs_control_has_room(v))
		return;
	krping_verbs_queues_stop(v);
	if (!krping_verbs_control_send(v, &msg))
		krping_verbs_settle(v);
}

static void end_early(struct krping_verbs *v, int ret)
{
	if (ret == -ECONNRESET && !v->told)
		krping_err_ratelimited(v->thread.log_prefix,
				       "the connection was lost before the test had ended");
	say_goodbye(v, ret);
}

/* Both sides are ready. */
static int run_test(struct krping_verbs *v)
{
	struct krping_result *result = v->thread.result;
	int ret;

	result->test = v->test;
	result->test.txdepth = krping_verbs_in_flight(&v->queues[0]);
	WRITE_ONCE(result->size, v->test.size);
	krping_result_running(result, v->control.id->device->name);
	ret = krping_verbs_loop(v);
	count_at_end(v);
	return ret;
}

static int run_client(struct krping_verbs *v, struct net *net)
{
	int ret = set_up_client(v, net);

	if (!ret)
		ret = run_test(v);
	if (ret)
		end_early(v, ret);
	return ret ?: verdict(v);
}

static int run_server(struct krping_verbs *v, struct net *net,
		      const struct sockaddr_storage *addr)
{
	struct rdma_cm_id *listener;
	int ret;

	listener = krping_conn_listen(&v->control, net, addr);
	if (IS_ERR(listener))
		return PTR_ERR(listener);
	krping_result_listening(v->thread.result);
	ret = set_up_server(v, listener);
	if (!ret)
		ret = run_test(v);
	if (!ret)
		ret = await_disconnect(v);
	else
		end_early(v, ret);
	rdma_destroy_id(listener);	/* until this returns it may still set a connection's id */
	if (ret == -ECONNRESET && v->client_stopped)
		ret = 0;
	return ret ?: verdict(v);
}

/* Nothing is polled any more. Queue pairs go before the memory that they use. */
static void tear_down(struct krping_verbs *v)
{
	krping_verbs_queues_free(v);
	if (v->control.qp) {
		rdma_disconnect(v->control.id);
		krping_conn_destroy_qp(&v->control);
	}
	krping_verbs_memory_free(v);
	krping_verbs_control_free(v);
	krping_conn_close(&v->control);
	kvfree(v->queues);
}

static int list_and_run(struct krping_verbs *v, struct net *net,
			const struct sockaddr_storage *addr)
{
	int ret = krping_thread_list(&v->thread);

	if (ret)
		return ret;
	ret = krping_verbs_is_client(v) ? run_client(v, net) : run_server(v, net, addr);
	tear_down(v);
	krping_thread_unlist(&v->thread);
	return v->thread.result->verbs.damaged ? -EBADMSG : ret;
}

static int alloc_and_run(const struct krping_options *opt, struct krping_result *result)
{
	struct net *net = current->nsproxy->net_ns;
	struct sockaddr_storage addr;
	struct krping_verbs *v;
	int ret;

	ret = krping_sockaddr(opt, net, &addr);
	if (ret)
		return ret;
	snprintf(result->peer, sizeof(result->peer), "%pISpc", &addr);
	v = kvzalloc(sizeof(*v), GFP_KERNEL);
	if (!v)
		return -ENOMEM;
	v->test = *opt;
	v->began = ktime_get();
	krping_conn_init(&v->control, v->thread.log_prefix, &verbs_control_ops);
	v->control.server = opt;
	ret = krping_thread_init(&v->thread, opt, result, &addr);
	if (!ret) {
		ret = list_and_run(v, net, &addr);
		krping_thread_exit(&v->thread);
	}
	kvfree(v);
	return ret;
}

/**
 * krping_verbs_run - run a verbs command to its end in this thread
 * @opt:	a client's or server's command with KRPING_TEST_VERBS
 * @result:	filled in; done when this returns
 *
 * Return: 0 or the errno that INTERFACE.md section 1 documents.
 */
int krping_verbs_run(const struct krping_options *opt, struct krping_result *result)
{
	int ret = alloc_and_run(opt, result);

	krping_result_done(result, ret);
	return ret;
}
