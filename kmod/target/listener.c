// SPDX-License-Identifier: GPL-2.0
/* Listens for connection requests. Volumes with the same address and port share a listener. */
#include <linux/slab.h>

#include "lib/log.h"
#include "target/target.h"

/**
 * struct krping_listener - listens at an address for the volumes that share it
 * @entry:	in krping_listeners; under krping_listeners_lock
 * @users:	volumes that have joined or are about to; under krping_listeners_lock
 * @net:	network namespace; referenced
 * @opt:	a command with its address; constant
 * @log_prefix:	in front of log messages that are not about one volume
 * @lock:	held while listening begins or ends, and while a volume joins or leaves; outermost
 * @id:		NULL while not listening; under @lock
 * @addr:	where @id listens; under @lock
 * @lost:	@id has lost its device; set by events
 * @work:	listens again, after the RDMA device has changed
 * @volumes_lock: protects @volumes, held for reading while a request is handled. Writers hold
 *		@lock, too
 * @volumes:	those that have joined, in that order
 */
struct krping_listener {
	struct list_head entry;
	u32 users;
	struct net *net;
	struct krping_options opt;
	char log_prefix[KRPING_LOG_PREFIX];
	struct mutex lock;	/* what it protects: above */
	struct rdma_cm_id *id;
	struct sockaddr_storage addr;
	bool lost;
	struct delayed_work work;
	struct rw_semaphore volumes_lock;
	struct list_head volumes;
};

static DEFINE_MUTEX(krping_listeners_lock);	/* protects the list */
static LIST_HEAD(krping_listeners);

#define LISTEN_RETRY_DELAY	HZ

static void listen_again_now(struct krping_listener *l)
{
	WRITE_ONCE(l->lost, true);
	mod_delayed_work(krping_volume_wq, &l->work, 0);
}

static int listener_event(struct rdma_cm_id *id, struct rdma_cm_event *event)
{
	struct krping_listener *l = id->context;
	int ret = 0;

	switch (event->event) {
	case RDMA_CM_EVENT_CONNECT_REQUEST:
		down_read(&l->volumes_lock);
		ret = krping_target_accept(&l->volumes, l->log_prefix, id, event);
		up_read(&l->volumes_lock);
		break;
	case RDMA_CM_EVENT_ADDR_CHANGE:		/* a bond has failed over to another device */
		krping_warn(l->log_prefix, "the address has moved to another device");
		listen_again_now(l);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		krping_err(l->log_prefix, "the RDMA device is being removed");
		listen_again_now(l);
		break;
	default:
		break;
	}
	return ret;
}

/* @device: NULL for the wildcard address. */
static void set_live(struct krping_volume *v, const struct ib_device *device)
{
	enum krping_volume_state was;

	spin_lock(&v->lock);
	was = v->state;
	if (was != KRPING_VOLUME_STOPPING) {
		v->state = KRPING_VOLUME_LIVE;
		v->served = true;
	}
	if (device)
		strscpy(v->ibdev, device->name, sizeof(v->ibdev));
	spin_unlock(&v->lock);
	if (was == KRPING_VOLUME_STARTING)
		krping_info(v->log_prefix, "serving %llu bytes, %s%s", krping_volume_size(v),
			    v->opt.writeback ? "writeback" : "write-through",
			    v->opt.read_only ? ", read-only" : "");
	else if (was != KRPING_VOLUME_STOPPING)
		krping_info(v->log_prefix, "serving again");
}

static void set_no_device(struct krping_volume *v)
{
	spin_lock(&v->lock);
	if (v->state != KRPING_VOLUME_STOPPING)
		v->state = KRPING_VOLUME_NO_DEVICE;
	spin_unlock(&v->lock);
}

/* Called with l->lock held. @log_prefix: NULL: do not log failures. */
static int start_listening(struct krping_listener *l, const char *log_prefix)
{
	struct krping_volume *v;
	struct rdma_cm_id *id;
	int ret;

	/* The interface's index may have changed. */
	ret = krping_sockaddr(&l->opt, l->net, &l->addr);
	if (ret)
		return ret;
	WRITE_ONCE(l->lost, false);
	id = krping_listen(log_prefix, listener_event, l, l->net, &l->addr);
	if (IS_ERR(id))
		return PTR_ERR(id);
	l->id = id;
	list_for_each_entry(v, &l->volumes, at_listener)
		set_live(v, id->device);
	return 0;
}

/* Called with l->lock held. Afterwards no event is handled. */
static void stop_listening(struct krping_listener *l)
{
	if (l->id)
		rdma_destroy_id(l->id);
	l->id = NULL;
}

/* Releases an RDMA device that was removed or has lost the address. Called with l->lock held. */
static void release_device(struct krping_listener *l)
{
	struct krping_volume *v;

	stop_listening(l);
	list_for_each_entry(v, &l->volumes, at_listener)
		set_no_device(v);
}

static void listen_again_later(struct krping_listener *l)
{
	queue_delayed_work(krping_volume_wq, &l->work, LISTEN_RETRY_DELAY);
}

static void krping_listen_again(struct work_struct *work)
{
	struct krping_listener *l = container_of(to_delayed_work(work), struct krping_listener,
						 work);

	mutex_lock(&l->lock);
	/* A volume that has joined meanwhile may have listened again. */
	if (!list_empty(&l->volumes) && (!l->id || READ_ONCE(l->lost))) {
		release_device(l);
		if (start_listening(l, NULL))
			listen_again_later(l);
	}
	mutex_unlock(&l->lock);
}

/*
 * Is the address still where it was? rdma_cm does not tell when it was removed, or given to another
 * interface. Called with l->lock held.
 */
static bool is_current(struct krping_listener *l)
{
	struct sockaddr_storage addr;
	struct rdma_cm_id *id;
	bool same;

	if (krping_sockaddr(&l->opt, l->net, &addr) || memcmp(&addr, &l->addr, sizeof(addr)))
		return false;
	if (!l->id->device)	/* the wildcard address */
		return true;
	id = rdma_create_id(l->net, listener_event, l, RDMA_PS_TCP, IB_QPT_RC);
	if (IS_ERR(id))
		return false;
	((struct sockaddr_in *)&addr)->sin_port = 0;	/* any; an IPv6 address has it there, too */
	same = !rdma_bind_addr(id, (struct sockaddr *)&addr) && id->device == l->id->device;
	rdma_destroy_id(id);
	return same;
}

static void listener_init(struct krping_listener *l, const struct krping_volume *v)
{
	l->net = get_net(v->net);
	l->opt = v->opt;
	snprintf(l->log_prefix, sizeof(l->log_prefix), "target@%pISpc", &v->addr);
	mutex_init(&l->lock);
	INIT_DELAYED_WORK(&l->work, krping_listen_again);
	init_rwsem(&l->volumes_lock);
	INIT_LIST_HEAD(&l->volumes);
}

static bool is_at(const struct krping_listener *l, const struct krping_volume *v)
{
	return l->net == v->net && l->opt.port == v->opt.port &&
	       l->opt.family == v->opt.family && !strcmp(l->opt.ifname, v->opt.ifname) &&
	       !memcmp(l->opt.addr, v->opt.addr, sizeof(l->opt.addr));
}

/* Return: the listener for a volume, which may not listen yet, or NULL. */
static struct krping_listener *listener_get(const struct krping_volume *v)
{
	struct krping_listener *new = kzalloc(sizeof(*new), GFP_KERNEL), *l;

	if (!new)
		return NULL;
	mutex_lock(&krping_listeners_lock);
	list_for_each_entry(l, &krping_listeners, entry)
		if (is_at(l, v))
			goto found;
	l = new;
	listener_init(l, v);
	list_add(&l->entry, &krping_listeners);
found:
	l->users++;
	mutex_unlock(&krping_listeners_lock);
	if (l != new)
		kfree(new);
	return l;
}

static void listener_put(struct krping_listener *l)
{
	bool last;

	mutex_lock(&krping_listeners_lock);
	last = !--l->users;
	if (last)
		list_del(&l->entry);
	mutex_unlock(&krping_listeners_lock);
	if (!last)
		return;
	cancel_delayed_work_sync(&l->work);	/* without volumes nothing queues it again */
	put_net(l->net);
	kfree(l);
}

/* Called with l->lock held. */
static void remove_volume(struct krping_listener *l, struct krping_volume *v)
{
	down_write(&l->volumes_lock);
	list_del(&v->at_listener);
	up_write(&l->volumes_lock);
	if (list_empty(&l->volumes))
		stop_listening(l);
}

/**
 * krping_listener_join - listen for a volume
 * @v:	starting
 *
 * Return: 0: it is live, and may be stopped. Or a negative errno: nobody can connect any more, but
 * there may be connections, as it may have listened on one of several devices.
 */
int krping_listener_join(struct krping_volume *v)
{
	struct krping_listener *l = listener_get(v);
	int ret = 0;

	if (!l)
		return -ENOMEM;
	mutex_lock(&l->lock);
	if (l->id && !is_current(l))
		release_device(l);
	down_write(&l->volumes_lock);
	list_add_tail(&v->at_listener, &l->volumes);
	up_write(&l->volumes_lock);
	v->listener = l;
	if (l->id)
		set_live(v, l->id->device);
	else
		ret = start_listening(l, v->log_prefix);
	if (ret) {
		v->listener = NULL;
		remove_volume(l, v);
		listen_again_later(l);	/* for the others, if there are any */
	}
	mutex_unlock(&l->lock);
	if (ret)
		listener_put(l);
	return ret;
}

/* Undoes krping_listener_join(), if it was called: afterwards nobody can connect to the volume. */
void krping_listener_leave(struct krping_volume *v)
{
	struct krping_listener *l = v->listener;

	if (!l)
		return;
	v->listener = NULL;
	mutex_lock(&l->lock);
	remove_volume(l, v);
	mutex_unlock(&l->lock);
	listener_put(l);
}
