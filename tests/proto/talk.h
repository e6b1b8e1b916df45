/* SPDX-License-Identifier: Apache-2.0 */
/* talk.h - a loop with a server and a channel to it on a loopback port, and calls by hand.
 *
 * Each wait has a watchdog that ends a hanging test. */
#ifndef BT_TESTS_PROTO_TALK_H
#define BT_TESTS_PROTO_TALK_H

#include "common/rpc.h"

typedef struct pair {
    bt_loop *loop;
    bt_rpc *rpc;
    bt_rpc_server *server;
    bt_rpc_channel *channel;
    bt_timer *watchdog;
    bt_timer *poll;
    bool (*until)(void *ctx);
    void *until_ctx;
    bool down;
    char address[64];
} pair;

enum {
    TALK_REPLIES_MAX = 64,
    TALK_BYTES_MAX = 1 << 16,
};

/* A client's call: collects up to TALK_REPLIES_MAX replies. */
typedef struct talk {
    pair *pair;
    bt_rpc_call *call;
    struct {
        uint8_t *bytes;
        size_t len;
    } replies[TALK_REPLIES_MAX];
    size_t n_replies;
    bool done;
    bt_rpc_code code;
    char message[512];
    size_t wanted; /* for pair_wait_replies */
} talk;

/* Makes loop, rpc and a server at `address` (NULL: 127.0.0.1:0) that is not started. */
void pair_init(pair *p, const char *address);

/* Starts the server and makes the channel. */
void pair_start(pair *p);

/* Runs the loop until until(ctx); looked at after every event and each few ms. */
void pair_run(pair *p, bool (*until)(void *ctx), void *ctx);

/* Runs the loop for a few ms: for WAIT_FOR. */
void pair_step(pair *p);

#define WAIT_FOR(pair, condition)                                                                  \
    while (!(condition)) {                                                                         \
        pair_step(pair);                                                                           \
    }

/* Shuts the server down and destroys it; the rest stays. */
void pair_stop_server(pair *p);

/* A new server, on the port of the one before. */
void pair_remake_server(pair *p);

/* Destroys channel, rpc and loop. */
void pair_deinit(pair *p);

void talk_start(talk *t, pair *p, const char *path);
void talk_send(talk *t, const uint8_t *bytes, size_t len);
void talk_wait_replies(talk *t, size_t n);
void talk_wait_done(talk *t);
void talk_free(talk *t);

#endif /* BT_TESTS_PROTO_TALK_H */
