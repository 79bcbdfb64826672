/* SPDX-License-Identifier: GPL-2.0 */
#ifndef KRPING_TAP_H
#define KRPING_TAP_H

#include "options.h"

int krping_tap_init(void);
void krping_tap_exit(void);
int krping_tap_start(const struct krping_options *opt);

#endif /* KRPING_TAP_H */
