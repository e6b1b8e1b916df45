/* SPDX-License-Identifier: Apache-2.0 */
/* router_rig.h - the real router with fake workers and a gRPC client, in one process.
 *
 * Fake workers speak the real link protocol over loopback and emit a scripted reply; what they
 * do wrong (hold still, fail, die, repeat themselves) is set by the test. Clients are real
 * gRPC calls over loopback. One loop drives all; a test waits for conditions, never for time,
 * and fails when a condition does not come within ten seconds.
 *
 * Threading: the thread that created it. Memory: the heap; for tests.
 */
#ifndef BT_TESTS_ROUTER_ROUTER_RIG_H
#define BT_TESTS_ROUTER_ROUTER_RIG_H

#include "common/metrics.h"
#include "engine/tokenizer.h"
#include "proto/generation.pb-c.h"
#include "proto/link.h"
#include "router/router.h"
#include "tests/support/fake_clock.h"

enum {
    RIG_WORKERS_MAX = 16,
    RIG_CLIENTS_MAX = 16,
    RIG_RUNS_MAX = 64,
    RIG_EOS = 258, /* of the tiny model; its tokens below 256 are bytes */
    RIG_CONTEXT = 200000,
};

typedef struct rig rig;

/* A run as the fake worker got it. */
typedef struct rig_run {
    bt_request_id id;
    uint32_t attempt;
    bt_link_mode mode;
    uint32_t n_tokens;
    uint32_t n_prompt;
    uint32_t max_tokens;
    uint64_t seed;
    bool echo;
    bool logprobs;
    bool has_peer;
    char peer[BT_LINK_NAME_MAX];
    bt_block_hash chain_root;
    int64_t deadline_left_ns;
    int32_t tokens[64];  /* the first of them */
    uint32_t next_index; /* to emit */
    uint32_t n_parks;    /* times it was asked to park */
    uint32_t next_attempt;
    bool parked; /* stands still */
    uint32_t n_resumes;
    bool cancelled;
    bool finished;
} rig_run;

/* A fetch as the fake worker got it. */
typedef struct rig_fetch {
    bt_request_id id;
    char peer[BT_LINK_NAME_MAX];
    bt_block_hash ids[8]; /* the first of them */
    uint32_t n_ids;
    uint32_t deadline_left_ms;
} rig_fetch;

typedef struct rig_worker {
    rig *rig;
    bt_link_worker *link; /* NULL: it is dead */
    bt_link_hello hello;
    bool up;
    char down_reason[256];
    /* what it does with a run */
    bool hold;         /* nothing, until the test says so */
    bool hold_echo;    /* the prompt is never reported */
    uint32_t emit_max; /* holds still after so many tokens; 0: no limit */
    bt_status fail;    /* finishes with this status and text at once */
    const char *fail_text;
    bool fail_drains;       /* it fails because it drains */
    bool repeat;            /* every event twice */
    bool slow_first;        /* P: keeps token 0 until the test says so */
    bool mute;              /* never says that it finished */
    bool drops;             /* D: ends at once, as when P's first token was the last one */
    bool wrong_duplicates;  /* D sends a wrong token 0 after the right one */
    uint32_t n_top;         /* entries of top logprobs */
    uint32_t cached_tokens; /* as reported */
    bool hold_park;         /* says nothing when asked to park */
    bt_status park;         /* answers with this when asked to park */
    bt_link_load load;      /* as reported; all blocks are free at first */
    uint32_t n_drains;      /* times it was told to drain */
    rig_fetch fetches[16];  /* it answers when the test says so */
    uint32_t n_fetches;
    uint32_t n_leaves; /* times it was told that it is not kept */
    rig_run runs[RIG_RUNS_MAX];
    uint32_t n_runs;
    uint32_t n_cancels;
} rig_worker;

typedef struct rig_client {
    rig *rig;
    bt_rpc_call *call; /* NULL after its end */
    bool hold;         /* asks for no further message */
    bool is_generate;
    /* what came back */
    uint32_t n_messages;
    bt_text text;
    bt_text prompt_text;
    bt_token_list ids;
    bt_token_list prompt_ids;
    uint32_t n_logprobs;
    uint32_t n_top;
    bool index_error;
    bool logprob_error; /* one is not what rig_logprob() says */
    bool has_start;
    char request_id[80];
    char model[80];
    uint64_t seed;
    uint32_t prompt_tokens;
    Baton__V1__GenerateReply *last; /* the reply with `finish` */
    bt_text unary;                  /* bytes of a unary reply */
    char label_meta[80];
    char pushback_meta[40];
    bool done;
    bt_rpc_code code;
    char message[512];
} rig_client;

struct rig {
    bt_loop *loop;
    bt_rpc *rpc;
    bt_metrics *metrics;
    bt_router *router;
    bt_rpc_channel *channel;
    bt_timer *poll;
    struct rig_waiting *waiting; /* what the poll timer looks at */
    char model_path[64];
    uint8_t tokenizer_hash[BT_LINK_ID_BYTES];
    bt_router_options options;
    const char *reply; /* what every model run says */
    rig_worker workers[RIG_WORKERS_MAX];
    uint32_t n_workers;
    rig_client clients[RIG_CLIENTS_MAX];
    uint32_t n_clients;
    bool stopped;
    bt_fake_clock *clock; /* of a timed rig */
};

/* cmocka set-up and tear-down: state is the rig, its options at their defaults (small limits of
 * time), the router not started. */
int rig_setup(void **state);
int rig_teardown(void **state);

/* The same by a fake clock, by which no worker is ever silent: rig_pass() lets time go by, and does
 * what is due. */
int rig_setup_timed(void **state);
int rig_teardown_timed(void **state);
void rig_pass(rig *r, int64_t ns);

/* Starts the router with rig->options. */
void rig_start(rig *r);
void rig_stop_router(rig *r, uint64_t grace_ms);

/* Starts it with a worker that has one place, which r->clients[0] keeps until rig_resume(). */
rig_worker *rig_start_full(rig *r);

/* A hello that this router accepts; a worker with it, attached (and ready at the router). */
bt_link_hello rig_hello(const rig *r, const char *name, bt_link_role role);
rig_worker *rig_add_worker(rig *r, const char *name, bt_link_role role);
rig_worker *rig_dial(rig *r, const bt_link_hello *hello); /* does not wait */

/* Cuts a worker off, as a crash does. */
void rig_kill(rig_worker *w);

/* Goes on with the held runs of a worker, up to so many tokens of each (0: to the end). */
void rig_resume(rig_worker *w, uint32_t emit_max);

/* Says something of a run as its worker would, whatever the state of the run. */
void rig_say_tokens(rig_worker *w, const rig_run *run, uint32_t index, const char *text);
void rig_say_finished(rig_worker *w, rig_run *run, bt_status status, bt_finish_reason reason);

/* The answer to a park. */
void rig_say_parked(rig_worker *w, rig_run *run, bt_status status);

/* Reports that it takes nothing new. */
void rig_drain(rig_worker *w);

/* It holds the full blocks of this prompt, as far as rig_run.tokens goes; the chain in ids[4]. */
uint32_t rig_store(rig_worker *w, const rig_run *run, bt_block_hash ids[4]);

/* The answer to its fetch i: all blocks were moved, or not one. */
void rig_say_fetched(rig_worker *w, uint32_t i, bt_status status);
void rig_wait_fetches(rig_worker *w, uint32_t n);
void rig_wait_leaves(rig_worker *w, uint32_t n);

/* Of every worker's output token of that index. */
float rig_logprob(uint32_t index);

/* Runs the loop until cond(ctx) holds. */
void rig_wait(rig *r, bool (*cond)(void *ctx), void *ctx);
void rig_wait_runs(rig_worker *w, uint32_t n);
void rig_wait_cancels(rig_worker *w, uint32_t n);
void rig_wait_parks(rig_worker *w, uint32_t run, uint32_t n);
void rig_wait_done(rig_client *c);
void rig_wait_tokens(rig_client *c, uint32_t n);
void rig_wait_ready(rig *r, bool ready);
void rig_wait_up(rig_worker *w);

/* Until the metrics have this line, as in "baton_router_requests_queued 2". */
void rig_wait_metric(rig *r, const char *line);

/* Runs the loop for a while, to show that something does not happen. */
void rig_idle(rig *r);

/* A request for this text; `sampling` may be NULL. Both are borrowed. */
Baton__V1__GenerateRequest rig_request(const char *prompt, Baton__V1__Sampling *sampling);

/* Starts a call; `meta` may be NULL. */
rig_client *rig_call(rig *r, const char *path, const ProtobufCMessage *message,
                     const bt_rpc_meta *meta, size_t n_meta, int64_t deadline_ns);
rig_client *rig_generate(rig *r, const Baton__V1__GenerateRequest *request);
rig_client *rig_generate_text(rig *r, const char *prompt);

/* Waits for the end and checks it. */
void rig_expect_ok(rig_client *c, const char *text);
void rig_expect_error(rig_client *c, bt_rpc_code code, const char *part_of_message);

#endif /* BT_TESTS_ROUTER_ROUTER_RIG_H */
