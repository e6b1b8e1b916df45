/* SPDX-License-Identifier: Apache-2.0 */
/* history.h - what the router remembers of a request's way, while it lives and afterwards.
 *
 * A living request carries its attempts (bt_router_attempts); when it has ended, its timeline goes
 * into a ring of fixed size, where the newest takes the oldest one's place. It is read rarely
 * (`baton explain`), so finding is a scan. Times are ns since the request came, 0: not reached.
 *
 * Threading: loop thread only.
 * Memory:    the ring is taken, and touched, in create.
 */
#ifndef BT_ROUTER_HISTORY_H
#define BT_ROUTER_HISTORY_H

#include "proto/link.h"

enum {
    BT_ROUTER_ATTEMPTS_KEPT = 4, /* the newest of a request */
    BT_ROUTER_WHY_MAX = 160,
};

/* Where a request was placed, and why that did not last. */
typedef struct bt_router_attempt {
    uint32_t number;                       /* 1, 2, 3 ... */
    bool moved;                            /* in mid-stream, from the decode worker named first */
    char prefill_worker[BT_LINK_NAME_MAX]; /* "": none apart */
    char decode_worker[BT_LINK_NAME_MAX];
    uint64_t placed_ns;
    uint64_t failed_ns;
    char why[BT_ROUTER_WHY_MAX];
} bt_router_attempt;

typedef struct bt_router_attempts {
    uint32_t n; /* noted so far; the newest of them are kept */
    bt_router_attempt kept[BT_ROUTER_ATTEMPTS_KEPT];
} bt_router_attempts;

/* A further attempt; fill it in. */
bt_router_attempt *bt_router_attempts_add(bt_router_attempts *attempts);

/* The newest attempt; NULL: there was none. */
bt_router_attempt *bt_router_attempts_newest(bt_router_attempts *attempts);

/* The attempts that are kept, the oldest first: idx < bt_router_attempts_kept(). */
uint32_t bt_router_attempts_kept(const bt_router_attempts *attempts);
const bt_router_attempt *bt_router_attempts_at(const bt_router_attempts *attempts, uint32_t idx);

typedef struct bt_router_timeline {
    bt_request_id id;
    char label[BT_LINK_LABEL_MAX];
    char model[BT_LINK_NAME_MAX];
    const char *state; /* a constant: "decoding", or how it ended */
    bool open;         /* it lives */
    char why[BT_ROUTER_WHY_MAX];
    uint64_t received_unix_ns;
    uint64_t tokenized_ns;
    uint64_t first_token_ns;
    uint64_t last_token_ns;
    uint64_t ended_ns; /* open: until now */
    uint32_t prompt_tokens;
    uint32_t cached_tokens;
    uint32_t generated_tokens;
    uint32_t recoveries;
    bt_router_attempts attempts;
} bt_router_timeline;

typedef struct bt_router_history bt_router_history;

/* Room for `n` requests; 0: it remembers nothing. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_history_create(uint32_t n, bt_router_history **out);
void bt_router_history_destroy(bt_router_history *history);

/* A request has ended. Copied. */
void bt_router_history_add(bt_router_history *history, const bt_router_timeline *timeline);

/* The newest with this id in hex or this label, until the next add; NULL: none. */
const bt_router_timeline *bt_router_history_find(const bt_router_history *history,
                                                 const char *request);

#endif /* BT_ROUTER_HISTORY_H */
