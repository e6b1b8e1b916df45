/* SPDX-License-Identifier: Apache-2.0 */
/* team.h - threads that compute one operation together.
 *
 * The thread that calls run() is member 0. The others wait between operations: they spin for some
 * microseconds, since the next operation of a step usually follows at once, then sleep.
 *
 * Threading: run() and destroy(): one thread at a time.
 * Memory:    create only.
 */
#ifndef BT_ENGINE_CPU_TEAM_H
#define BT_ENGINE_CPU_TEAM_H

#include "common/status.h"

typedef struct bt_team bt_team;

typedef void (*bt_team_fn)(void *ctx, uint32_t member, uint32_t n_members);

/* Starts n_members - 1 threads (none for 1). BT_EINVAL: n_members is 0. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_team_create(uint32_t n_members, bt_team **out);

/* Stops and joins the threads. NULL is allowed. */
void bt_team_destroy(bt_team *team);

/* fn(ctx, i, n_members) for each member i; returns when all are done. What they wrote is
 * then visible to the caller. */
void bt_team_run(bt_team *team, bt_team_fn fn, void *ctx);

uint32_t bt_team_size(const bt_team *team);

#endif /* BT_ENGINE_CPU_TEAM_H */
