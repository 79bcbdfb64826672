/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Messages carry a prefix (INTERFACE.md section 3): "krping: [prefix] text".
 * Use the _ratelimited variants for what a peer or an application can cause.
 */
#ifndef KRPING_LOG_H
#define KRPING_LOG_H

#include <linux/printk.h>
#include <linux/ratelimit.h>

/* Bytes of the prefix of a session or a volume, with the NUL: name@address:port. */
#define KRPING_LOG_PREFIX	128

#define krping_err(log_prefix, fmt, ...)	pr_err("[%s] " fmt "\n", log_prefix, ##__VA_ARGS__)
#define krping_warn(log_prefix, fmt, ...)	pr_warn("[%s] " fmt "\n", log_prefix, ##__VA_ARGS__)
#define krping_info(log_prefix, fmt, ...)	pr_info("[%s] " fmt "\n", log_prefix, ##__VA_ARGS__)

#define krping_err_ratelimited(log_prefix, fmt, ...) \
	pr_err_ratelimited("[%s] " fmt "\n", log_prefix, ##__VA_ARGS__)
#define krping_warn_ratelimited(log_prefix, fmt, ...) \
	pr_warn_ratelimited("[%s] " fmt "\n", log_prefix, ##__VA_ARGS__)
#define krping_info_ratelimited(log_prefix, fmt, ...) \
	pr_info_ratelimited("[%s] " fmt "\n", log_prefix, ##__VA_ARGS__)

#endif /* KRPING_LOG_H */
