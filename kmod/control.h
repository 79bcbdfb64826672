/* SPDX-License-Identifier: GPL-2.0 */
#ifndef KRPING_CONTROL_H
#define KRPING_CONTROL_H

int krping_control_init(void);
void krping_control_exit(void);

#endif /* KRPING_CONTROL_H */
