/* SPDX-License-Identifier: GPL-2.0 */
/*
 * Messages carry their subject (PROTOCOL.md section 5): "krping: [subject] text".
 * The _ratelimited variants are for what a peer or an application can provoke.
 */
#ifndef KRPING_LOG_H
#define KRPING_LOG_H

#include <linux/printk.h>
#include <linux/ratelimit.h>

#define krping_err(subject, fmt, ...)	pr_err("[%s] " fmt "\n", subject, ##__VA_ARGS__)
#define krping_warn(subject, fmt, ...)	pr_warn("[%s] " fmt "\n", subject, ##__VA_ARGS__)
#define krping_info(subject, fmt, ...)	pr_info("[%s] " fmt "\n", subject, ##__VA_ARGS__)

#define krping_err_ratelimited(subject, fmt, ...) \
	pr_err_ratelimited("[%s] " fmt "\n", subject, ##__VA_ARGS__)
#define krping_warn_ratelimited(subject, fmt, ...) \
	pr_warn_ratelimited("[%s] " fmt "\n", subject, ##__VA_ARGS__)
#define krping_info_ratelimited(subject, fmt, ...) \
	pr_info_ratelimited("[%s] " fmt "\n", subject, ##__VA_ARGS__)

#endif /* KRPING_LOG_H */
