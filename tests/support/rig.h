/* SPDX-License-Identifier: Apache-2.0 */
/* rig.h - real workers with a fake router, in one process and one loop thread.
 *
 * The router's side is link's own, with a script in place of policy: a test says which worker gets
 * which run, and the rig records what comes back. Tokens are put at their index, and one that
 * comes twice must be equal. Failed expectations abort the test program with a text, so that a
 * test reads as a script.
 *
 * Threading: the thread that created it runs the loop (inside bt_rig_wait and friends).
 * Memory:    the heap; for tests.
 */
#ifndef BT_TESTS_SUPPORT_RIG_H
#define BT_TESTS_SUPPORT_RIG_H

#include "decode/worker.h"
#include "prefill/worker.h"
#include "tests/support/tiny_model.h"

enum {
    BT_RIG_TOKENS_MAX = 512,
    BT_RIG_REQUESTS_MAX = 512,
};

typedef struct bt_rig bt_rig;

typedef enum bt_rig_worker {
    BT_RIG_PREFILL,
    BT_RIG_DECODE,
    BT_RIG_WORKERS,
} bt_rig_worker;

typedef struct bt_rig_options {
    const bt_tiny_model *shape; /* NULL: bt_tiny_model_odd */
    const char *model_path;     /* this one in place of `shape` */
    bool no_prefill;
    bool no_decode;
    bt_kv_transport transport; /* AUTO: loopback */
    uint32_t prefill_blocks;   /* 0: 256 */
    uint32_t decode_blocks;    /* 0: 256 */
    uint32_t chunk;            /* 0: 64 */
    uint32_t token_budget;     /* 0: 128 */
    uint32_t running_max;      /* 0: 16 */
    uint32_t requests_max;     /* 0: 64 */
    uint32_t lease_ms;         /* 0: 2,000 */
    uint64_t kv_rate_limit_bytes_s;
    bool no_prefix_cache;
    bt_metrics *metrics;     /* of both workers */
    const char *kernels;     /* NULL: reference */
    bt_kv_trace_fn kv_trace; /* of source and sink; NULL: none */
    void *kv_trace_ctx;
} bt_rig_options;

/* One request and what the router has heard of it. */
typedef struct bt_rig_request {
    bt_request_id id;
    uint32_t attempt;
    const int32_t *prompt; /* borrowed; prompt and, on a retry, tokens made so far */
    uint32_t n_prompt;     /* the client's */
    uint32_t n_known;      /* in `prompt`; 0: n_prompt */
    bt_sampling sampling;
    int64_t deadline_left_ns; /* 0: none */

    int32_t tokens[BT_RIG_TOKENS_MAX];
    bool have[BT_RIG_TOKENS_MAX];
    bt_token_result first; /* result of the first token heard */
    uint32_t n_tokens;     /* from index n_known - n_prompt without a gap */
    uint32_t n_echoed;
    bool finished[BT_RIG_WORKERS];
    bt_link_finished end[BT_RIG_WORKERS];
    uint32_t n_parked; /* answers to a park, and the last one */
    bt_link_parked parked;
} bt_rig_request;

bt_rig *bt_rig_create(const bt_rig_options *options);

/* Stops the workers (a grace of 0), expects clean audits, frees everything. */
void bt_rig_destroy(bt_rig *rig);

/* Greedy, 16 tokens; the id is the rig's next. */
void bt_rig_request_init(bt_rig *rig, bt_rig_request *request, const int32_t *prompt,
                         uint32_t n_prompt);

/* Sends the request to a worker; the request is known to the rig until the rig's end. */
void bt_rig_send(bt_rig *rig, bt_rig_worker to, bt_link_mode mode, bt_rig_request *request);

/* The same without a peer, as for a request that needs one worker alone. */
void bt_rig_send_alone(bt_rig *rig, bt_rig_worker to, bt_link_mode mode, bt_rig_request *request);

/* Both halves: PREFILL to one worker and DECODE to the other. */
void bt_rig_send_split(bt_rig *rig, bt_rig_request *request);

void bt_rig_cancel(bt_rig *rig, bt_rig_worker at, const bt_rig_request *request);

/* Asks the decode worker to hold the request for (id, next_attempt), or lets it go on. */
void bt_rig_park(bt_rig *rig, const bt_rig_request *request, uint32_t next_attempt);
void bt_rig_resume(bt_rig *rig, const bt_rig_request *request);

/* Until so many answers have come. */
void bt_rig_wait_parked(bt_rig *rig, bt_rig_request *request, uint32_t n);

/* Runs the loop until done(ctx) holds; it is asked after each message. Aborts after 60 s. */
void bt_rig_wait(bt_rig *rig, bool (*done)(void *ctx), void *ctx);

/* Until that worker's FINISHED, or both's, has come. */
void bt_rig_wait_finished(bt_rig *rig, bt_rig_worker at, bt_rig_request *request);
void bt_rig_wait_split(bt_rig *rig, bt_rig_request *request);

/* Until the request has n tokens. */
void bt_rig_wait_tokens(bt_rig *rig, bt_rig_request *request, uint32_t n);

/* Until the worker's newest load report is as done() wants it. */
void bt_rig_wait_load(bt_rig *rig, bt_rig_worker which, bool (*done)(const bt_link_load *load));

/* Runs the loop for a while. */
void bt_rig_run_ms(bt_rig *rig, uint64_t ms);

/* Stops one worker for good, and waits for it to be gone; its audit must be clean. */
void bt_rig_stop_worker(bt_rig *rig, bt_rig_worker which, uint64_t grace_ms);

/* Ends the sessions of the router's side, as its death would. */
void bt_rig_drop_router(bt_rig *rig, bt_rig_worker which);

bool bt_rig_attached(const bt_rig *rig, bt_rig_worker which);

/* Until a worker whose router was dropped is back, with no run open. */
void bt_rig_wait_attached(bt_rig *rig, bt_rig_worker which);

/* Pretends that a prefill worker is attached which serves KV at this tcp address. */
void bt_rig_set_kv_address(bt_rig *rig, const char *tcp);

/* One of another host, at this socket. */
void bt_rig_set_kv_socket(bt_rig *rig, const char *name);

/* The worker's newest load report, and blocks it says it holds. */
const bt_link_load *bt_rig_load(const bt_rig *rig, bt_rig_worker which);
uint32_t bt_rig_blocks_known(const bt_rig *rig, bt_rig_worker which);
const bt_link_hello *bt_rig_hello(const bt_rig *rig, bt_rig_worker which);

bt_prefill_worker *bt_rig_prefill(bt_rig *rig);
bt_decode_worker *bt_rig_decode(bt_rig *rig);

/* n pseudo-random byte tokens of (seed), for prompts. */
void bt_rig_fill_prompt(int32_t *tokens, uint32_t n, uint64_t seed);

#endif /* BT_TESTS_SUPPORT_RIG_H */
