// SPDX-License-Identifier: GPL-2.0
/* Module load and unload. */
#include <linux/module.h>
#include <linux/printk.h>

#include "client/client.h"
#include "control.h"
#include "lib/fault.h"
#include "ping/result.h"
#include "rdma/conn.h"
#include "local/tap.h"
#include "target/target.h"

static int __init krping_init(void)
{
	int ret;

	ret = krping_qp_init();
	if (ret)
		return ret;
	ret = krping_client_init();
	if (ret)
		goto qp_exit;
	ret = krping_target_init();
	if (ret)
		goto client_exit;
	ret = krping_tap_init();
	if (ret)
		goto target_exit;
	ret = krping_control_init();
	if (ret)
		goto tap_exit;
	krping_faults_init();
	pr_info("[module] loaded, protocol version %d\n", KRPING_VERSION);
	return 0;

tap_exit:
	krping_tap_exit();
target_exit:
	krping_target_exit();
client_exit:
	krping_client_exit();
qp_exit:
	krping_qp_exit();
	return ret;
}

/* Running commands, sessions and volumes hold module references, so none is left here. */
static void __exit krping_exit(void)
{
	krping_faults_exit();
	krping_control_exit();
	krping_results_exit();
	krping_tap_exit();
	krping_target_exit();
	krping_client_exit();
	krping_qp_exit();
}

module_init(krping_init);
module_exit(krping_exit);

MODULE_DESCRIPTION("RDMA ping/pong and block I/O over RDMA that proves itself");
MODULE_AUTHOR("The krping developers");
MODULE_LICENSE("GPL");
MODULE_VERSION(KRPING_MODULE_VERSION);
