// SPDX-License-Identifier: GPL-2.0
/* Threads: their list, connecting, and running a test. */
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/nsproxy.h>
#include <linux/random.h>
#include <linux/slab.h>
#include <net/ipv6.h>

#include "ping/hello.h"
#include "lib/log.h"
#include "ping/thread.h"

#define MAX_THREADS	4096	/* limited because each pins memory */

static DEFINE_MUTEX(threads_lock);	/* protects the list, its length and listed_dev */
static LIST_HEAD(threads);
static unsigned int nr_threads;

/* A test needs all of its connections: if one closes, the others are failed. */
static void ping_conn_closed(struct krping_conn *conn, int error)
{
	struct krping_thread *thread = container_of(conn, struct krping_ping_conn, conn)->thread;
	u32 i;

	if (!atomic_xchg(&thread->failed, 1))
		for (i = 0; i < thread->nr_conns; i++)
			krping_conn_fail(&thread->conns[i].conn, error);
	krping_thread_progress(thread);
}

static bool same_host(const struct sockaddr_storage *a, const struct sockaddr_storage *b)
{
	if (a->ss_family != b->ss_family)
		return false;
	if (a->ss_family == AF_INET)
		return ((const struct sockaddr_in *)a)->sin_addr.s_addr ==
		       ((const struct sockaddr_in *)b)->sin_addr.s_addr;
	return ipv6_addr_equal(&((const struct sockaddr_in6 *)a)->sin6_addr,
			       &((const struct sockaddr_in6 *)b)->sin6_addr);
}

/* Return: whether both ids have the same peer. */
bool krping_same_host(const struct rdma_cm_id *a, const struct rdma_cm_id *b)
{
	return same_host(&a->route.addr.dst_addr, &b->route.addr.dst_addr);
}

/* The first client gets the server; later connections must be from its group and host. */
static bool ping_conn_admits(struct krping_conn *conn, const struct rdma_cm_id *id,
			     const struct rdma_conn_param *param)
{
	struct krping_thread *thread = container_of(conn, struct krping_ping_conn, conn)->thread;
	struct krping_conn *first = &thread->conns[0].conn;

	if (conn == first)
		return true;
	return krping_hello_group(param->private_data, param->private_data_len) == thread->group &&
	       krping_same_host(id, first->id);
}

static const struct krping_conn_ops ping_conn_ops = {
	.admits = ping_conn_admits,
	.closed = ping_conn_closed,
};

/* /proc/krping shows it. */
void krping_thread_show_device(struct krping_thread *thread, const char *name)
{
	mutex_lock(&threads_lock);
	strscpy(thread->listed_dev, name, sizeof(thread->listed_dev));
	mutex_unlock(&threads_lock);
}

const struct rdma_conn_param krping_conn_param = {
	.responder_resources = 1,	/* RDMA READs that the peer has in flight */
	.initiator_depth = 1,
	.retry_count = 7,
	.rnr_retry_count = 7,
};

static int client_connect(struct krping_ping_conn *pc, u32 index, struct net *net)
{
	const struct krping_options *opt = pc->thread->opt;
	unsigned long timeout = krping_step_timeout(pc->thread);
	struct rdma_conn_param param = krping_conn_param;
	struct krping_test_hello hello;
	int ret;

	ret = krping_conn_open(&pc->conn, opt, net, timeout);
	if (!ret)
		ret = krping_ping_conn_prepare(pc, index);
	if (ret)
		return ret;
	krping_hello_fill(&hello, opt, pc->thread->group);
	param.private_data = &hello;
	param.private_data_len = sizeof(hello);
	ret = krping_conn_connect(&pc->conn, &param, timeout);
	if (ret == -ECONNREFUSED)
		krping_hello_rejected(&pc->conn);
	return ret;
}

/* Waits for a request that ping_conn_admits() accepts. */
static int await_request(struct krping_ping_conn *pc, u32 index)
{
	struct krping_conn *conn = &pc->conn;
	int ret;

	ret = krping_conn_wait(conn, KRPING_CONN_REQUESTED, index ?
			       krping_step_timeout(pc->thread) : MAX_SCHEDULE_TIMEOUT);
	if (ret)
		return ret;
	if (!index)
		pc->thread->group = krping_hello_group(conn->private, conn->private_len);
	return krping_hello_check(conn, pc->thread->opt);
}

static int server_accept(struct krping_ping_conn *pc, u32 index, struct rdma_cm_id *listener)
{
	struct krping_thread *thread = pc->thread;
	struct rdma_conn_param param = krping_conn_param;
	int ret;

	ret = await_request(pc, index);
	if (!ret)
		ret = krping_ping_conn_prepare(pc, index);
	if (ret)
		return ret;
	/* Before accepting: once connected, the client requests its next connection. */
	if (index + 1 < thread->nr_conns)
		krping_conn_listen_next(listener, &thread->conns[index + 1].conn);
	ret = krping_conn_accept(&pc->conn, &param, krping_step_timeout(thread));
	return ret == -ECONNRESET ? 0 : ret;	/* the test handles a disconnect */
}

static int run_test(struct krping_thread *thread)
{
	struct krping_conn *conn = &thread->conns[0].conn;

	krping_result_running(thread->result, conn->id->device->name);
	return thread->test->run(thread);
}

static int run_client(struct krping_thread *thread, struct net *net)
{
	int ret = 0;
	u32 i;

	for (i = 0; i < thread->nr_conns && !ret; i++) {
		ret = client_connect(&thread->conns[i], i, net);
		if (!i && thread->conns[0].conn.id)
			krping_thread_show_device(thread, thread->conns[0].conn.id->device->name);
	}
	return ret ?: run_test(thread);
}

static int run_server(struct krping_thread *thread, struct net *net,
		      const struct sockaddr_storage *addr)
{
	struct rdma_cm_id *listener;
	int ret = 0;
	u32 i;

	listener = krping_conn_listen(&thread->conns[0].conn, net, addr);
	if (IS_ERR(listener))
		return PTR_ERR(listener);
	krping_result_listening(thread->result);
	for (i = 0; i < thread->nr_conns && !ret; i++) {
		ret = server_accept(&thread->conns[i], i, listener);
		if (!i && thread->conns[0].conn.id)
			krping_thread_show_device(thread, thread->conns[0].conn.id->device->name);
	}
	if (!ret)
		ret = run_test(thread);
	rdma_destroy_id(listener);	/* until this returns it may still set a connection's id */
	return ret;
}

/* Return: 0, or -EAGAIN if there are too many. */
int krping_thread_list(struct krping_thread *thread)
{
	int ret = 0;

	mutex_lock(&threads_lock);
	if (nr_threads < MAX_THREADS) {
		nr_threads++;
		list_add_tail(&thread->entry, &threads);
	} else {
		ret = -EAGAIN;
	}
	mutex_unlock(&threads_lock);
	if (ret)
		krping_err_ratelimited(thread->log_prefix, "%u threads already run, which is the maximum",
				       MAX_THREADS);
	return ret;
}

void krping_thread_unlist(struct krping_thread *thread)
{
	mutex_lock(&threads_lock);
	list_del(&thread->entry);
	nr_threads--;
	mutex_unlock(&threads_lock);
}

/**
 * krping_thread_init - initialise a thread without connections
 * @thread:	zeroed
 * @opt:	its command
 * @result:	filled in by it
 * @addr:	address of the command
 *
 * Return: 0 or -ENOMEM.
 */
int krping_thread_init(struct krping_thread *thread, const struct krping_options *opt,
		       struct krping_result *result, const struct sockaddr_storage *addr)
{
	thread->stats = alloc_percpu(struct krping_stats);
	if (!thread->stats)
		return -ENOMEM;
	thread->opt = opt;
	thread->result = result;
	thread->group = get_random_u32();
	init_waitqueue_head(&thread->wait);
	snprintf(thread->log_prefix, sizeof(thread->log_prefix), "%s:%d@%pISpc",
		 opt->role == KRPING_PING_CLIENT ? "client" : "server", task_pid_nr(current),
		 addr);
	return 0;
}

/* Undoes krping_thread_init(). */
void krping_thread_exit(struct krping_thread *thread)
{
	free_percpu(thread->stats);
}

static struct krping_thread *alloc_thread(const struct krping_options *opt,
					  struct krping_result *result,
					  const struct sockaddr_storage *addr)
{
	struct krping_thread *thread;
	u32 i;

	thread = kzalloc(sizeof(*thread), GFP_KERNEL);
	if (!thread)
		return NULL;
	thread->conns = kvcalloc(opt->qps, sizeof(*thread->conns), GFP_KERNEL);
	if (!thread->conns || krping_thread_init(thread, opt, result, addr)) {
		kvfree(thread->conns);
		kfree(thread);
		return NULL;
	}
	thread->nr_conns = opt->qps;
	thread->test = opt->test == KRPING_TEST_PING ? &krping_ping_test : &krping_perf_test;
	for (i = 0; i < thread->nr_conns; i++) {
		thread->conns[i].thread = thread;
		krping_conn_init(&thread->conns[i].conn, thread->log_prefix, &ping_conn_ops);
		thread->conns[i].conn.server = opt;
	}
	return thread;
}

static void free_thread(struct krping_thread *thread)
{
	krping_thread_exit(thread);
	kvfree(thread->conns);
	kfree(thread);
}

static int connect_and_run(struct krping_thread *thread, struct net *net,
			   const struct sockaddr_storage *addr)
{
	u32 i;
	int ret;

	ret = krping_is_client(thread) ? run_client(thread, net) : run_server(thread, net, addr);
	for (i = 0; i < thread->nr_conns; i++)
		krping_ping_conn_down(&thread->conns[i]);
	return ret;
}

/**
 * krping_thread_run - run a ping/pong command to its end in this thread
 * @opt:	KRPING_PING_CLIENT or KRPING_PING_SERVER
 * @result:	filled in; done when this returns
 *
 * Return: 0 or the errno that INTERFACE.md section 1 documents.
 */
int krping_thread_run(const struct krping_options *opt, struct krping_result *result)
{
	struct net *net = current->nsproxy->net_ns;
	struct krping_thread *thread;
	struct sockaddr_storage addr;
	int ret;

	ret = krping_sockaddr(opt, net, &addr);
	if (ret)
		goto done;
	snprintf(result->peer, sizeof(result->peer), "%pISpc", &addr);
	thread = alloc_thread(opt, result, &addr);
	if (!thread) {
		ret = -ENOMEM;
		goto done;
	}
	ret = krping_thread_list(thread);
	if (!ret) {
		ret = connect_and_run(thread, net, &addr);
		krping_thread_unlist(thread);
	}
	free_thread(thread);
done:
	krping_result_done(result, ret);
	return ret;
}

/* A server that clients cannot find yet. */
static bool is_before_listening(const struct krping_thread *thread)
{
	return thread->opt->role == KRPING_PING_SERVER &&
	       READ_ONCE(thread->result->state) == KRPING_RESULT_CONNECTING;
}

/* Shows the nine columns of upstream krping, or "listen" while a server has no client. */
void krping_threads_show(struct seq_file *seq)
{
	struct krping_thread *thread;
	int n = 1, i;

	mutex_lock(&threads_lock);
	list_for_each_entry(thread, &threads, entry) {
		if (is_before_listening(thread))
			continue;
		if (!thread->listed_dev[0]) {
			seq_printf(seq, "%d listen\n", n++);
			continue;
		}
		seq_printf(seq, "%d-%s", n++, thread->listed_dev);
		for (i = 0; i < KRPING_PING_COUNTERS; i++)
			seq_printf(seq, " %llu", krping_stats_sum(thread->stats, i));
		seq_putc(seq, '\n');
	}
	mutex_unlock(&threads_lock);
}
