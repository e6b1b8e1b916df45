/* SPDX-License-Identifier: Apache-2.0 */
/* admission.h - whether a request is one that this worker can ever run.
 *
 * Routers check what clients send; this is the worker's own look at what a router sends, so that
 * nothing that doesn't fit reaches the engine. Whether there is room just now is asked elsewhere.
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_WORKER_ADMISSION_H
#define BT_WORKER_ADMISSION_H

#include "common/status.h"
#include "proto/link.h"

typedef struct bt_admission {
    unsigned modes; /* bits 1 << bt_link_mode that it takes */
    uint32_t context;
    uint32_t n_vocab;
    uint32_t pool_blocks;
} bt_admission;

/* BT_OK, or why it can't run here: BT_EINVAL (it makes no sense), BT_EUNSUPPORTED (its mode),
 * BT_ERANGE (longer than the context), BT_EEXHAUSTED (larger than the pool). O(n_tokens). */
BT_MUST_CHECK bt_status bt_admission_check(const bt_admission *admission, const bt_link_run *run,
                                           bt_error *err);

#endif /* BT_WORKER_ADMISSION_H */
