/* SPDX-License-Identifier: Apache-2.0 */
/* health.h - the standard grpc.health.v1.Health service (Check and Watch).
 *
 * Knows a small table of service names, each serving or not; "" is the whole server. Watch
 * streams send the state at once and each change; at shutdown all of them end.
 *
 * Threading: loop thread only.
 * Memory:    create, and one small object for each call (4 * watchers_max).
 */
#ifndef BT_PROTO_HEALTH_H
#define BT_PROTO_HEALTH_H

#include "common/rpc.h"

typedef struct bt_health bt_health;

enum { BT_HEALTH_SERVICES_MAX = 16 };

/* Registers both methods; before bt_rpc_server_start(). Knows "" as not serving. Of more
 * calls of one method than `watchers_max` (0: 256) the oldest is cancelled. */
BT_MUST_CHECK bt_status bt_health_create(bt_rpc_server *server, uint32_t watchers_max,
                                         bt_health **out);

/* Sets the state of `service` ("package.Service" or ""); the first time adds it. BT_EEXHAUSTED:
 * more than BT_HEALTH_SERVICES_MAX. BT_EINVAL: the name is longer than 127, or none. */
BT_MUST_CHECK bt_status bt_health_set(bt_health *health, const char *service, bool serving);

/* Everything is NOT_SERVING from now on, and watchers' streams end after they were told:
 * call it before bt_rpc_server_shutdown(), which waits for them. */
void bt_health_stop(bt_health *health);

/* After the server was destroyed. */
void bt_health_destroy(bt_health *health);

#endif /* BT_PROTO_HEALTH_H */
