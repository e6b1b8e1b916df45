/* SPDX-License-Identifier: Apache-2.0 */
/* backend_int.h - what backend.c and reference.c share.
 *
 * Threading: see backend.h. Memory: see backend.h.
 */
#ifndef BT_ENGINE_CPU_BACKEND_INT_H
#define BT_ENGINE_CPU_BACKEND_INT_H

#include "engine/backend.h"

/* The reference backend: one thread more than one only divides rows of a matrix. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_reference_backend_create(const bt_backend_limits *limits,
                                                    bt_backend **out);

#endif /* BT_ENGINE_CPU_BACKEND_INT_H */
