/* SPDX-License-Identifier: GPL-2.0 */
/* The private data of a ping/pong client: describes its test (PROTOCOL.md section 1). */
#ifndef KRPING_HELLO_H
#define KRPING_HELLO_H

#include "rdma/conn.h"
#include "options.h"

void krping_hello_fill(struct krping_test_hello *hello, const struct krping_options *opt,
		       u16 group);
u16 krping_hello_group(const void *data, u8 len);
void krping_hello_reject(struct krping_conn *conn, enum krping_reject_reason reason, u32 value);
bool krping_hello_tos_fits(struct krping_conn *conn, const struct krping_options *opt);
int krping_hello_check(struct krping_conn *conn, const struct krping_options *opt);
void krping_hello_rejected(struct krping_conn *conn);

#endif /* KRPING_HELLO_H */
