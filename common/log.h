/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - leveled, structured log lines: "event: key=value ...", or JSON.
 *
 * The message is the event followed by printf-formatted key=value pairs with units:
 *   bt_log(BT_INFO, "pull done: req=%s blocks=%zu took_us=%" PRId64, ...);
 * A line carries wall time, level and, when set, the process's role. Nothing per token.
 *
 * Threading: any thread. Memory: none after init; lines are cut at 1 KiB.
 */
#ifndef BT_COMMON_LOG_H
#define BT_COMMON_LOG_H

#include "common/status.h"

typedef enum bt_log_level {
    BT_ERROR, /* someone must act */
    BT_WARN,  /* we coped, but capacity or a peer is gone */
    BT_INFO,  /* start, stop, members, one line per finished request */
    BT_DEBUG, /* per step */
} bt_log_level;

typedef enum bt_log_format {
    BT_LOG_FORMAT_TEXT,
    BT_LOG_FORMAT_JSON, /* the key=value pairs of the message become members */
} bt_log_format;

/* Before other threads start. `who` names the process in each line ("router",
 * "prefill-0"); kept as a copy; NULL or "" for none. Lines go to stderr. */
void bt_log_init(bt_log_level level, bt_log_format format, const char *who);

bool bt_log_enabled(bt_log_level level);

BT_PRINTF(2, 3)
void bt_log(bt_log_level level, const char *fmt, ...);

/* At most `per_s` lines a second for this place; the next line says how many were
 * left out. `state` is a zeroed static of the caller. */
typedef struct bt_log_limit {
    int64_t window_start_ns;
    uint32_t n_in_window;
    uint32_t n_dropped;
} bt_log_limit;

BT_PRINTF(4, 5)
void bt_log_limited(bt_log_limit *state, uint32_t per_s, bt_log_level level, const char *fmt, ...);

#endif /* BT_COMMON_LOG_H */
