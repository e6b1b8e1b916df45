/* SPDX-License-Identifier: Apache-2.0 */
/* router_int.h - what the router's own sources share: its struct and the request's struct.
 *
 * router.c owns start, stop and the link's callbacks; request.c the life of a request, submit.c its
 * beginning; overload.c whether it is let in; placement.c where it runs, events.c what workers say
 * about it, recovery.c what follows when one fails; move.c and handover.c how streams and prefixes
 * leave a worker; report.c what is said about a request. front_grpc.c and front_http.c are the
 * doors of clients, guard.c stands before the first; admin.c and admin_explain.c the operator's.
 *
 * Threading: loop thread only.
 */
#ifndef BT_ROUTER_ROUTER_INT_H
#define BT_ROUTER_ROUTER_INT_H

#include "common/keys.h"
#include "common/log.h"
#include "common/metrics.h"
#include "proto/health.h"
#include "proto/link.h"
#include "proto/reflection.h"
#include "router/clients.h"
#include "router/explain.h"
#include "router/front.h"
#include "router/hot.h"
#include "router/models.h"
#include "router/prefix_map.h"
#include "router/registry.h"
#include "router/reply.h"
#include "router/router.h"

enum {
    BT_ROUTER_ATTEMPTS_MAX = 16,
    BT_ROUTER_RECOVERIES_MAX = 100,
    BT_ROUTER_FAILED_MAX = 32,
    BT_ROUTER_FETCHES_MAX = 16,     /* prefixes on their way from workers that drain */
    BT_ROUTER_REPORT_WAIT_MS = 200, /* for workers' numbers, after the last token */
};

typedef enum bt_router_request_state {
    BT_ROUTER_REQUEST_FREE,
    BT_ROUTER_REQUEST_TOKENIZING, /* on the work pool */
    BT_ROUTER_REQUEST_QUEUED,     /* waits for workers */
    BT_ROUTER_REQUEST_PREFILLING, /* placed: runs are sent, no token yet */
    BT_ROUTER_REQUEST_DECODING,   /* tokens come */
    BT_ROUTER_REQUEST_ENDING,     /* all tokens are there, workers' reports are not */
    BT_ROUTER_REQUEST_DONE,       /* no worker is involved, the client takes the rest */
} bt_router_request_state;

enum {
    BT_ROUTER_LEG_P,
    BT_ROUTER_LEG_D,
    BT_ROUTER_LEG_FROM, /* the decode worker that holds a moving request for D to pull */
    BT_ROUTER_LEGS,
};

/* A stream on its way from one decode worker to another (move.c). */
typedef enum bt_router_move {
    BT_ROUTER_MOVE_NONE,
    BT_ROUTER_MOVE_PARKING, /* D was asked to hold it */
    BT_ROUTER_MOVE_PULLING, /* FROM holds it, D pulls */
} bt_router_move;

/* A request's part on one worker, in its current attempt (FROM: in the one before). */
typedef struct bt_router_leg {
    bt_router_worker *worker; /* while open */
    bool open;                /* bound to the worker, which owes finished() */
    bool decoding;            /* D: counted there as one that decodes */
    bool used;                /* the name and the numerics below hold */
    bool has_report;
    uint32_t attempt;
    uint64_t session;
    uint64_t prefill_tokens; /* as bound */
    uint64_t live_tokens;
    char name[BT_LINK_NAME_MAX];
    uint8_t numerics_id[BT_LINK_ID_BYTES];
    bt_link_finished report;
} bt_router_leg;

struct bt_router_request {
    bt_router *router;
    uint32_t slot; /* also the low 16 bits of id.lo */
    bt_router_request_state state;
    bool abandoned;   /* the client is gone; freed when the job on the work pool is back */
    bool job_running; /* the prompt belongs to the work pool */
    bool started;     /* the first delta was consumed */
    bool is_waiting;  /* in the queue's list */
    bool is_aside;    /* in it, and holds up nobody: those who are here can't go on with it */
    bool decode_done; /* D said that it is through, an earlier token is still missing */
    bt_router_request *next; /* in the queue */
    bt_router_request *prev;

    /* fixed after submit */
    bt_request_id id;
    char label[BT_ROUTER_LABEL_MAX];
    uint32_t model_idx;
    bt_sampling sampling; /* max_tokens is final once tokens are counted */
    bool has_max_tokens;
    int32_t priority;
    double ttft_target_ms;
    double tpot_target_ms;
    int64_t order_ns;       /* in the queue: arrival, less what its priority is worth */
    int64_t ttft_limit_ns;  /* from arrival: it is let in if this can be kept; 0: none */
    int64_t ttft_target_ns; /* its own: it is given up in the queue rather than late; 0: none */
    int64_t tpot_limit_ns;
    bool has_tpot_limit;         /* of its own */
    bt_router_forecast forecast; /* when it was let in */
    bt_router_client *client;
    size_t n_stops;
    char *stop_bytes; /* all stop strings, for the summary */
    const char *stops[BT_ROUTER_STOP_STRINGS_MAX];
    size_t stop_lens[BT_ROUTER_STOP_STRINGS_MAX];
    const bt_router_front_ops *front;
    void *front_ctx;

    /* work */
    bt_router_prompt *prompt;
    bt_router_reply *reply;
    uint32_t n_prompt;
    uint32_t attempt;      /* 1 from the first placement on */
    uint32_t n_fruitless;  /* of these, the newest ones in a row that brought no new token */
    uint32_t n_recoveries; /* attempts that had to go on with what an earlier one began */
    uint32_t n_before;     /* output tokens released before this attempt */
    uint32_t n_resumed;    /* of them sent along: this attempt's first token has that index */
    bt_router_leg legs[BT_ROUTER_LEGS];
    bt_router_move move;
    uint32_t next_attempt; /* with a move: the one that pulls */
    uint32_t n_moves;      /* times that another decode worker was told to pull it */
    bool has_first_report; /* of the prefill worker whose attempt was recovered from */
    bt_link_finished first_report;
    uint32_t n_failed; /* sessions that failed this request; the newest are kept */
    uint64_t failed[BT_ROUTER_FAILED_MAX];
    bt_status last_failure_status;
    bt_error last_failure;
    uint64_t n_mismatches; /* of the reply, already logged */
    uint64_t client_bytes; /* as counted for the client: its message and what is unread */
    uint64_t client_tokens;
    uint64_t client_unread;

    /* time, monotonic ns; 0: not yet */
    bt_timer *timer; /* the next of the moments below; kept by the slot */
    int64_t received_ns;
    int64_t tokenized_ns;
    int64_t queued_ns; /* since when it waits in the queue */
    int64_t placed_ns; /* last placement before the first token */
    int64_t first_token_ns;
    int64_t last_token_ns;
    int64_t deadline_ns;
    int64_t queue_deadline_ns;
    int64_t report_deadline_ns;
    int64_t read_deadline_ns;
    int64_t stalled_ns; /* since when its client has taken nothing of what waits for it */

    bt_router_attempts attempts; /* for the timeline */

    /* the end */
    bt_status status;
    bt_error error;
    uint64_t retry_after_ms;
    bt_router_summary summary;
};

/* Cached blocks that one worker was told to pull from another, which drains (handover.c). */
typedef struct bt_router_fetch {
    bool open;
    bt_request_id id;
    uint64_t from; /* sessions */
    uint64_t to;
    uint32_t from_slot;
    bt_block_hash first; /* of the chain */
} bt_router_fetch;

typedef struct bt_router_counts {
    uint32_t n_live; /* slots taken */
    uint32_t n_queued;
    uint32_t n_tpot_limits; /* requests with a limit of their own */
    uint64_t n_total;
    uint64_t n_failed;
    uint64_t n_refused;
    uint64_t n_cancelled;
    uint64_t n_retries;
    uint64_t n_recoveries; /* of them, streams that had begun */
    uint64_t n_moves;      /* streams handed on without a loss */
    uint64_t prompt_tokens;
    uint64_t generated_tokens;
    uint64_t late_events; /* of runs that are over */
    uint64_t mismatches;
} bt_router_counts;

/* How long replies are: means of what is asked for, and of what share of that comes; 0: unknown. */
typedef struct bt_router_usage {
    double asked;
    double share;
} bt_router_usage;

typedef struct bt_router_meters bt_router_meters;         /* report.c */
typedef struct bt_router_front_grpc bt_router_front_grpc; /* front_grpc.c */
typedef struct bt_router_front_http bt_router_front_http; /* front_http.c */

struct bt_router {
    /* fixed after create */
    bt_loop *loop;
    bt_rpc *rpc;
    bt_router_options options; /* its pointers are not kept, but for the name */
    char name[BT_LINK_NAME_MAX];
    int64_t started_ns;
    bt_router_models *models;
    bt_router_meters *meters;
    bt_router_explains *explains;
    bt_rpc_server *client_server;
    bt_rpc_server *attach_server;
    bt_link_router *link;
    bt_health *health;
    bt_reflection *reflection;
    bt_router_front_grpc *front_grpc;
    bt_router_front_http *front_http; /* NULL: none */
    bt_wake *queue_wake;              /* capacity may have become free */
    bt_timer *tick;                   /* readiness, gauges */

    bt_router_registry *registry;
    bt_router_prefix_map *prefix_map;
    bt_router_hot *hot;
    bt_router_fetch fetches[BT_ROUTER_FETCHES_MAX];
    bt_router_counts counts;
    bool was_ready;
    bt_log_limit mismatch_limit;
    bt_log_limit malformed_limit;
    bt_log_limit guard_limit;

    bt_router_request *requests; /* requests_max of them */
    uint32_t *free_slots;
    uint32_t n_free;
    bt_router_request *queue_head; /* by order_ns */
    bt_router_request *queue_tail;
    bt_router_request *drain_next; /* while the queue is gone through */
    bt_router_clients *clients;
    int64_t tpot_limit_ns; /* the tightest one in force; 0: none */
    bt_router_usage usage[BT_ROUTER_MODELS_MAX];
    double excess[BT_ROUTER_MODELS_MAX]; /* mean of waited / forecast - 1 */

    bool stopping;
    bt_timer *stop_timer;
    int64_t drain_until_ns;
    int64_t refused_ns; /* since the last stream ended */
    bt_loop_fn stop_done;
    void *stop_ctx;
};

/* ---- request.c ---- */
BT_MUST_CHECK bt_status bt_router_requests_create(bt_router *router);
void bt_router_requests_destroy(bt_router *router);

/* The living request of that id, or NULL. */
bt_router_request *bt_router_request_find(bt_router *router, bt_request_id id);

/* Back to (or into) the queue; the caller sees to it that it is drained. */
void bt_router_request_enqueue(bt_router_request *request);

/* Tries to place what waits: from the queue's wake. */
void bt_router_queue_drain(void *router);

/* Sets the timer to the next moment that matters in this state; the other is its callback. */
void bt_router_request_arm(bt_router_request *request);
void bt_router_request_on_timer(void *request);

/* The slot is free again, with no job on the work pool and no leg open. */
void bt_router_request_free(bt_router_request *request);

/* All tokens are there: DECODING (or PREFILLING, without output) -> ENDING or DONE. */
void bt_router_request_complete(bt_router_request *request, bt_finish_reason reason);

/* Any state -> DONE with a reason; open runs are cancelled. */
BT_PRINTF(3, 4)
void bt_router_request_fail(bt_router_request *request, bt_status status, const char *fmt, ...);

/* ENDING -> DONE when no leg is open any more. */
void bt_router_request_check_ending(bt_router_request *request);

/* Tells the front that there is something to take. The request may be gone afterwards. */
void bt_router_request_notify(bt_router_request *request);

/* Ends all living requests: the router stops. */
void bt_router_requests_fail_all(bt_router *router, const char *why);

/* Test only: what is due by bt_clock_now_ns(), as the timers would. */
void bt_router_requests_tick(bt_router *router);

/* ---- overload.c ---- */

/* When the router's queue begins with a request; lower goes first. */
int64_t bt_router_order_ns(int64_t received_ns, int32_t priority);

/* The limits of a request that came in, from its targets and the router's options; and back. */
void bt_router_request_set_limits(bt_router_request *request, bool refuse_late);
void bt_router_request_unset_limits(bt_router_request *request);

/* Whether a newcomer would wait too long, whatever its prompt. BT_EEXHAUSTED: *err says why,
 * *retry_after_ms when to come back. O(queue). */
BT_MUST_CHECK bt_status bt_router_check_backlog(const bt_router *router, uint32_t model_idx,
                                                int32_t priority, int64_t now_ns, bt_error *err,
                                                uint64_t *retry_after_ms);

/* The same for a request with its prompt known: its wait, first token and deadline. */
BT_MUST_CHECK bt_status bt_router_request_check_forecast(bt_router_request *request, bt_error *err,
                                                         uint64_t *retry_after_ms);

/* What a client is to wait before it tries again, by what waits now. */
uint64_t bt_router_pushback_ms(const bt_router *router, uint32_t model_idx);

/* A request had its first token, or was given up, so long after it came. */
void bt_router_note_wait(const bt_router_request *request, int64_t ttft_ns);

/* From the tick: what was seen of waits counts less with time. */
void bt_router_forget_excess(bt_router *router);

/* A request is complete: how much of what it asked for came. */
void bt_router_note_used(const bt_router_request *request);

/* Limits per client. BT_EEXHAUSTED: one more request, or these tokens, would be too many.
 * join() and count_tokens() count it, leave() takes all of it back. */
BT_MUST_CHECK bt_status bt_router_check_client(const bt_router *router,
                                               const bt_router_front_request *in, bt_error *err);
void bt_router_request_join_client(bt_router_request *request, const bt_router_front_request *in);
void bt_router_request_leave_client(bt_router_request *request);
BT_MUST_CHECK bt_status bt_router_request_count_tokens(bt_router_request *request, bt_error *err);

/* The reply grew, or its client took some of it. */
void bt_router_request_count_unread(bt_router_request *request, bool taken);

/* BT_EABORTED: too much of it is unread, or its client has too many bytes under way. */
BT_MUST_CHECK bt_status bt_router_request_check_unread(const bt_router_request *request,
                                                       bt_error *err);

/* ---- placement.c ---- */

/* Sends the request to workers. BT_OK: PREFILLING now, or ended (DONE) because it can't be
 * placed ever. BT_AGAIN: no worker is free for it, it stays as it is. BT_ENOTFOUND: as before, and
 * those behind it may be placed: no worker that is here could go on with what it has begun. */
BT_MUST_CHECK bt_status bt_router_request_place(bt_router_request *request);

/* What a move and a placement do alike. `attempt`: the run's, on that worker. */
void bt_router_leg_open(bt_router_leg *leg, bt_router_worker *worker, uint32_t attempt,
                        uint64_t prefill_tokens, uint64_t live_tokens);

/* Its run is over, or its worker lost. Of a leg that is not open: nothing. */
void bt_router_leg_unbind(bt_router_request *request, bt_router_leg *leg);
bool bt_router_request_has_open_leg(const bt_router_request *request);

/* The sessions that failed this request; 0 is none. */
void bt_router_request_note_failed(bt_router_request *request, uint64_t session);
bool bt_router_request_has_failed(const bt_router_request *request, uint64_t session);

/* Prompt and output so far in one array; the caller frees *to_free. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_request_collect(const bt_router_request *request,
                                                  const int32_t **tokens, uint32_t *n,
                                                  int32_t **to_free);

/* A run with what is the request's own; its sender adds where, how and which tokens. */
bt_link_run bt_router_request_run(const bt_router_request *request);

/* What bt_link_router_run() says; a worker that does not take it is not chosen until it reports. */
BT_MUST_CHECK bt_status bt_router_send_run(bt_router_worker *worker, const bt_link_run *run);

/* Output tokens so far. */
uint32_t bt_router_request_count_output(const bt_router_request *request);

/* The next attempt has to report the prompt, with logprobs. */
bool bt_router_request_wants_echo(const bt_router_request *request);

/* Unbinds open legs, and tells their workers to stop. */
void bt_router_request_close_legs(bt_router_request *request);

/* How much of this prompt each worker holds (views[].matched_blocks). */
void bt_router_request_match(const bt_router_request *request, bt_router_worker_view *views,
                             const uint32_t *slots, size_t n);

/* Why a request of this model can't be placed now, for its client. */
bt_status bt_router_describe_shortage(bt_router *router, uint32_t model_idx, bt_error *err);

/* Workers of a model as the policy sees them. */
size_t bt_router_view(const bt_router *router, uint32_t model_idx, bool need_room,
                      bt_router_worker_view views[BT_ROUTER_WORKERS_MAX],
                      uint32_t slots[BT_ROUTER_WORKERS_MAX]);
bt_router_policy_options bt_router_policy_options_of(const bt_router *router);
bool bt_router_model_is_ready(const bt_router *router, uint32_t model_idx);

/* ---- events.c ---- */

/* What the link hears from workers. */
void bt_router_on_tokens(bt_router *router, bt_router_worker *worker, const bt_link_tokens *tokens);
void bt_router_on_finished(bt_router *router, bt_router_worker *worker,
                           const bt_link_finished *finished);
/* is_gone: its session is over. Otherwise it is there, and is told to stop what it has. */
void bt_router_on_worker_lost(bt_router *router, bt_router_worker *worker, const char *reason,
                              bool is_gone);

/* The open leg of a living request that an event is about, or NULL: it is late. */
bt_router_leg *bt_router_find_leg(bt_router *router, const bt_router_worker *worker,
                                  bt_request_id id, uint32_t attempt, bt_router_request **out);

/* ---- recovery.c ---- */

/* A leg ended badly (its own report, or its worker is lost); it is unbound already. */
void bt_router_leg_failed(bt_router_request *request, int leg_idx, bt_status status,
                          const char *text, bool is_lost);

/* A leg's worker drains, and gave the run back: that is no failure of anybody's. */
void bt_router_leg_refused(bt_router_request *request, int leg_idx, const char *text);

/* All attempts are used up: it ends, with the last reason. */
void bt_router_request_give_up(bt_router_request *request);

/* Places it anew, though nobody failed it: its worker is wanted for nothing new. */
void bt_router_request_replace(bt_router_request *request, const char *why);

/* What this attempt's first report says is kept for the usage: another attempt follows. */
void bt_router_request_keep_report(bt_router_request *request);

/* ---- move.c ---- */

/* The worker takes nothing new (or is to get rid of what it has): sees to it that its decode
 * runs go on elsewhere, some at a time. Cheap; from every load report of such a worker. */
void bt_router_move_away(bt_router *router, bt_router_worker *worker);

void bt_router_on_parked(bt_router *router, bt_router_worker *worker, const bt_link_parked *parked);

/* D has said something: it has what it was to pull. */
void bt_router_move_done(bt_router_request *request);

/* FROM's run is over, or its worker is lost: D decides. */
void bt_router_move_left(bt_router_request *request);

/* Legs are about to be closed. */
void bt_router_move_end(bt_router_request *request);

/* Whether `to` gets to the blocks of `from`: by TCP, or on the same host. */
bool bt_router_can_pull(const bt_router_worker *from, const bt_router_worker *to);

/* ---- handover.c ---- */

/* The worker drains: has its hot prefixes fetched by others, some at a time, and lets it go when
 * none is left. Cheap; from every load report of such a worker. */
void bt_router_hand_over(bt_router *router, bt_router_worker *from);

void bt_router_on_fetched(bt_router *router, const bt_router_worker *worker,
                          const bt_link_fetched *fetched);

/* The worker of this session, which was to fetch, is gone. */
void bt_router_fetches_lost(bt_router *router, uint64_t session);

/* The request was placed: its prompt's blocks are in use. */
void bt_router_note_hot(bt_router_request *request);

/* ---- report.c ---- */
BT_MUST_CHECK bt_status bt_router_meters_create(bt_metrics *metrics, bt_router_meters **out);
void bt_router_meters_destroy(bt_router_meters *meters);

/* The request is DONE (or refused, or abandoned): fills its summary, counts and logs it. */
void bt_router_report_end(bt_router_request *request);

/* A request was refused before it had a slot. */
void bt_router_report_refusal(bt_router *router, bt_status status);

/* A request was refused for lack of room, so long after it had come in. */
void bt_router_report_refusal_time(bt_router *router, int64_t ns);
void bt_router_report_retry(bt_router *router, bool is_recovery);
void bt_router_report_move(bt_router *router, bool done);
void bt_router_report_fetched(bt_router *router, bool done, uint32_t n_blocks);

/* An attempt was sent to workers (legs are open), or the newest one failed. */
void bt_router_report_placed(bt_router_request *request);
void bt_router_report_attempt_failed(bt_router_request *request, const char *why);

/* Generated tokens arrived. */
void bt_router_report_tokens(bt_router_request *request, int64_t now_ns);

/* The request's way so far. */
void bt_router_report_timeline(const bt_router_request *request, bt_router_timeline *out);

/* Gauges of now. */
void bt_router_report_tick(bt_router *router);

/* ---- admin_explain.c ---- */
/* A call of Admin.Explain whose token was checked: takes it. */
void bt_router_admin_explain(bt_rpc_call *call, bt_router *router);

/* ---- guard.c ---- */

/* With API keys: who calls without one gets UNAUTHENTICATED, whatever the method; but health is
 * for everybody, and the cluster's state for who knows the cluster key too. Keeps a
 * bt_keys_client on the calls that it lets in. A bt_rpc_guard. */
bool bt_router_guard(bt_rpc_call *call, const char *path, void *router);

/* Does the call show the token of an operator (bt_cluster_key_admin_token)? */
bool bt_router_is_operator(const bt_router *router, const bt_rpc_call *call);

/* ---- admin.c ---- */

/* The operator's calls, on the attach server, before it starts. */
BT_MUST_CHECK bt_status bt_router_admin_register(bt_router *router);

/* ---- front_grpc.c ---- */
BT_MUST_CHECK bt_status bt_router_front_grpc_create(bt_router *router, bt_router_front_grpc **out);
void bt_router_front_grpc_destroy(bt_router_front_grpc *front);

/* Jobs on the work pool are not back yet. */
bool bt_router_front_grpc_is_busy(const bt_router_front_grpc *front);

/* ---- front_http.c ---- */
typedef struct bt_router_front_http_options {
    const char *address; /* borrowed during create, as all of these but keys */
    bt_keys *keys;       /* NULL: the door is open */
    const char *tls_cert;
    const char *tls_key;
    const char *tls_client_ca;
} bt_router_front_http_options;

/* Binds and serves. BT_EEXISTS: the port is in use; BT_EINVAL, BT_ENOTFOUND, BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_front_http_create(bt_router *router,
                                                    const bt_router_front_http_options *options,
                                                    bt_router_front_http **out, bt_error *err);
int bt_router_front_http_port(const bt_router_front_http *front);

/* Calls done(ctx) when every call has been answered and its last bytes are out (or a second has
 * passed since). NULL: at once. */
void bt_router_front_http_drain(bt_router_front_http *front, bt_loop_fn done, void *ctx);

/* With no call open. NULL is allowed. */
void bt_router_front_http_destroy(bt_router_front_http *front);

#endif /* BT_ROUTER_ROUTER_INT_H */
