/* SPDX-License-Identifier: GPL-2.0 */
#ifndef KRPING_PING_H
#define KRPING_PING_H

#include <linux/seq_file.h>

#include "options.h"

int krping_ping_run(const struct krping_options *opt);
void krping_pings_show(struct seq_file *seq);

#endif /* KRPING_PING_H */
