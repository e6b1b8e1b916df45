/* SPDX-License-Identifier: Apache-2.0 */
/* bench transfer: KV blocks from one process to another, checksums on both sides included,
 * against what could carry them at best.
 *
 *   memcpy   the same blocks out of a fresh read-only mapping of the source's pool: what shm
 *            does without protocol and checksums
 *   raw TCP  the same blocks over one connection on 127.0.0.1, blocking, 256 KiB a call
 *   pull     the source has announced everything before the clock starts
 *   parts signed        the same pull with a tag for each piece of parts (--kv-auth full); all
 *            others have tags on frames alone
 *   announce and pull   the clock starts with the announcement, so the source's checksums of all
 *            blocks are inside; in a cluster they overlap with the prefill
 *
 * Each measurement of a round takes the next window of blocks, and the pools are larger than
 * the caches, so that all of them start cold. Rounds are interleaved; the medians of rates and
 * of the rounds' ratios are reported. The other process is a child: the source on a loop, and a
 * thread for raw TCP.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "bench/program.h"
#include "common/alloc.h"
#include "common/clock.h"
#include "common/crc32c.h"
#include "common/socket.h"
#include "kvtransfer/sink.h"
#include "kvtransfer/source.h"

enum {
    ROUNDS_MAX = 101,
    STEP_BYTES = 256 * 1024, /* of raw TCP */
    TIMEOUT_MS = 60000,
};

static const int64_t MS = 1000000; /* ns */

typedef struct transfer_options {
    const char *json;
    int64_t n_rounds;
    int64_t n_blocks;      /* in one transfer */
    int64_t n_pool_blocks; /* in each pool */
    int64_t n_layers, n_kv_heads, head_dim;
} transfer_options;

#define INT_OPTION(option_name, field, least, most, text)                                          \
    {                                                                                              \
        .name = option_name, .type = BT_CONFIG_INT, .group = "Work", .min = least, .max = most,    \
        .help = text, .offset = offsetof(transfer_options, field)                                  \
    }

static const bt_config_option OPTIONS[] = {
    BT_PROGRAM_JSON_OPTION(transfer_options),
    INT_OPTION("rounds", n_rounds, 3, ROUNDS_MAX, "Interleaved rounds."),
    INT_OPTION("blocks", n_blocks, 1, 4096, "Blocks of 16 tokens in one transfer."),
    INT_OPTION("pool-blocks", n_pool_blocks, 8, 65536,
               "Blocks in each pool, more than caches hold."),
    INT_OPTION("layers", n_layers, 1, 256, "Layers of the model."),
    INT_OPTION("kv-heads", n_kv_heads, 1, 64, "KV heads of the model."),
    INT_OPTION("head-dim", head_dim, 2, 256, "Size of a head."),
};

static const bt_config_spec SPEC = {
    .command = "bench/run transfer",
    .summary = "Measures KV transfers between two processes against memcpy and loopback TCP.",
    .options = OPTIONS,
    .n_options = BT_ARRAY_LEN(OPTIONS),
};

typedef enum command_kind {
    COMMAND_ANNOUNCED, /* offer, announce, complete; answer when all is checksummed */
    COMMAND_NOW,       /* the same without an answer */
    COMMAND_OPEN_END,  /* offer and announce; answer when all is checksummed */
    COMMAND_COMPLETE,
    COMMAND_STOP,
} command_kind;

typedef struct command {
    command_kind kind;
    uint32_t number; /* of the transfer */
    uint32_t first;  /* block */
} command;

typedef struct pools {
    bt_kv_terms terms;
    uint32_t n_blocks; /* in one transfer */
    uint32_t n_pool_blocks;
    bt_mapping source, target;
} pools;

static bt_kv_transfer name_of(uint32_t number)
{
    return (bt_kv_transfer){.request = {.hi = 1, .lo = number}, .attempt = 1};
}

static size_t window_bytes(const pools *p)
{
    return p->n_blocks * p->terms.layout.block_bytes;
}

/* ---- the child: a source, and raw TCP ---- */

typedef struct child {
    const pools *pools;
    bt_loop *loop;
    bt_kv_source *source;
    bt_timer *timer;
    int fd;
    uint64_t summed_due; /* counter that answers; 0: none */
    int raw_fd;          /* listens */
} child;

static void on_released(bt_kv_transfer transfer, bt_kv_outcome outcome, const char *text, void *ctx)
{
    (void)transfer;
    (void)outcome;
    (void)text;
    (void)ctx;
}

static void answer_when_summed(void *ctx)
{
    child *c = ctx;
    if (bt_kv_source_counters_get(c->source)->parts_summed >= c->summed_due) {
        bt_timer_stop(c->timer);
        const uint8_t byte = 1;
        (void)!write(c->fd, &byte, 1);
    }
}

static void offer_window(child *c, const command *cmd)
{
    const pools *p = c->pools;
    bt_block_id *ids = malloc(p->n_blocks * sizeof *ids);
    for (uint32_t i = 0; ids && i < p->n_blocks; i++) {
        ids[i] = cmd->first + i;
    }
    const bt_kv_offer offer = {.transfer = name_of(cmd->number),
                               .block_ids = ids,
                               .n_blocks = p->n_blocks,
                               .n_tokens = p->n_blocks * BT_KV_BLOCK_TOKENS,
                               .lease_ms = TIMEOUT_MS};
    bt_error err;
    if (!ids || bt_kv_source_offer(c->source, &offer, &err) != BT_OK ||
        bt_kv_source_announce_blocks(c->source, offer.transfer, 0, p->n_blocks) != BT_OK) {
        bt_loop_stop(c->loop);
    }
    free(ids);
}

static void on_command(int fd, int events, void *ctx)
{
    (void)events;
    child *c = ctx;
    command cmd;
    if (read(fd, &cmd, sizeof cmd) != (ssize_t)sizeof cmd || cmd.kind == COMMAND_STOP) {
        bt_loop_stop(c->loop);
        return;
    }
    if (cmd.kind == COMMAND_COMPLETE) {
        (void)!bt_kv_source_complete(c->source, name_of(cmd.number), "t", 1, false);
        return;
    }
    c->summed_due = bt_kv_source_counters_get(c->source)->parts_summed +
                    (uint64_t)c->pools->n_blocks * c->pools->terms.layout.n_layers;
    offer_window(c, &cmd);
    if (cmd.kind != COMMAND_OPEN_END) {
        (void)!bt_kv_source_complete(c->source, name_of(cmd.number), "t", 1, false);
    }
    if (cmd.kind != COMMAND_NOW) {
        bt_timer_start(c->timer, 1, 1);
    }
}

/* Serves windows to one raw connection: 4 bytes name the first block. */
static void *serve_raw(void *arg)
{
    const child *c = arg;
    const int fd = accept(c->raw_fd, NULL, NULL);
    uint32_t first;
    while (fd >= 0 && recv(fd, &first, sizeof first, MSG_WAITALL) == (ssize_t)sizeof first) {
        const uint8_t *at =
            (const uint8_t *)c->pools->source.base + first * c->pools->terms.layout.block_bytes;
        size_t left = window_bytes(c->pools);
        while (left > 0) {
            const ssize_t n = send(fd, at, bt_size_min(left, STEP_BYTES), MSG_NOSIGNAL);
            if (n <= 0) {
                break;
            }
            at += n;
            left -= (size_t)n;
        }
    }
    bt_socket_close(fd);
    return NULL;
}

static bool run_child(child *c, const char *shm_address)
{
    const pools *p = c->pools;
    const bt_kv_source_options options = {
        .terms = p->terms,
        .incarnation = 1,
        .pool_base = p->source.base,
        .n_blocks = p->n_pool_blocks,
        .pool_fd = p->source.fd,
        .tcp_address = "127.0.0.1:0",
        .shm_address = shm_address,
        .max_transfers = 8,
        .max_transfer_blocks = p->n_blocks,
        .max_peers = 8,
    };
    const bt_kv_source_callbacks callbacks = {.released = on_released};
    bt_watch *watch = NULL;
    bt_error err = {"out of memory"};
    pthread_t thread;
    if (bt_loop_create(&c->loop) != BT_OK ||
        bt_kv_source_create(c->loop, &options, &callbacks, &c->source, &err) != BT_OK ||
        bt_timer_create(c->loop, answer_when_summed, c, &c->timer) != BT_OK ||
        bt_watch_create(c->loop, c->fd, on_command, c, &watch) != BT_OK ||
        pthread_create(&thread, NULL, serve_raw, c) != 0) {
        (void)fprintf(stderr, "bench transfer: %s\n", err.text);
        return false;
    }
    bt_kv_peer peer;
    bt_kv_source_peer(c->source, &peer);
    if (write(c->fd, &peer, sizeof peer) != (ssize_t)sizeof peer) {
        return false;
    }
    bt_watch_set(watch, BT_WATCH_READ);
    bt_loop_run(c->loop);
    return true; /* the process ends: everything goes with it */
}

/* ---- the parent: a sink for each measurement, and the clock ---- */

typedef struct bench {
    pools pools;
    pid_t child;
    int fd;     /* commands */
    int raw_fd; /* raw TCP */
    bt_kv_peer peer;
    bt_loop *loop;
    bt_timer *timer;
    uint32_t number;  /* of the last transfer */
    bt_status status; /* of it */
    bt_kv_pull_stats stats;
    int64_t done_ns;
    uint32_t window;
} bench;

static void on_done(const bt_kv_done *done, void *ctx)
{
    bench *b = ctx;
    b->done_ns = bt_clock_now_ns();
    b->status = BT_OK;
    b->stats = *done->stats;
    bt_loop_stop(b->loop);
}

static void on_failed(bt_kv_transfer transfer, bt_status status, const char *text, void *ctx)
{
    bench *b = ctx;
    (void)transfer;
    (void)fprintf(stderr, "bench transfer: %s\n", text);
    b->status = status;
    bt_loop_stop(b->loop);
}

static void stop_loop(void *ctx)
{
    bench *b = ctx;
    bt_loop_stop(b->loop);
}

static void run_for(bench *b, uint64_t ms)
{
    bt_timer_start(b->timer, ms, 0);
    bt_loop_run(b->loop);
}

/* Blocks of the next window; all measurements of a round see another one. */
static uint32_t next_window(bench *b)
{
    const uint32_t n = b->pools.n_pool_blocks / b->pools.n_blocks;
    return b->window++ % n * b->pools.n_blocks;
}

static bool send_command(bench *b, command_kind kind, uint32_t first)
{
    const command cmd = {.kind = kind, .number = b->number, .first = first};
    return write(b->fd, &cmd, sizeof cmd) == (ssize_t)sizeof cmd;
}

static bool wait_answer(const bench *b)
{
    uint8_t byte;
    return read(b->fd, &byte, 1) == 1;
}

typedef enum measured {
    MEASURE_PULL,     /* from pull() on; all was announced before */
    MEASURE_ANNOUNCE, /* from the command to announce on */
    MEASURE_COMPLETE, /* from the command to complete on; all was moved before */
} measured;

/* Nanoseconds of one transfer; 0: it failed. */
static int64_t measure_transfer(bench *b, bt_kv_transport transport, bt_kv_auth auth, measured what)
{
    const pools *p = &b->pools;
    const bt_kv_sink_options options = {
        .terms = p->terms,
        .incarnation = 2,
        .pool_base = p->target.base,
        .n_blocks = p->n_pool_blocks,
        .transport = transport,
        .auth = auth,
        .max_transfers = 2,
        .max_transfer_blocks = p->n_blocks,
        .max_peers = 1,
    };
    const bt_kv_sink_callbacks callbacks = {.done = on_done, .failed = on_failed, .ctx = b};
    bt_kv_sink *sink = NULL;
    bt_block_id *ids = malloc(p->n_blocks * sizeof *ids);
    const uint32_t first = next_window(b);
    int64_t start_ns = 0;
    bt_error err = {"out of memory"};
    b->number++;
    b->status = BT_EABORTED;
    if (!ids || bt_kv_sink_create(b->loop, &options, &callbacks, &sink, &err) != BT_OK) {
        goto out;
    }
    for (uint32_t i = 0; i < p->n_blocks; i++) {
        ids[i] = first + i;
    }
    if (what != MEASURE_ANNOUNCE) {
        const command_kind kind = what == MEASURE_PULL ? COMMAND_ANNOUNCED : COMMAND_OPEN_END;
        if (!send_command(b, kind, first) || !wait_answer(b)) {
            goto out;
        }
    }
    if (bt_kv_sink_open(sink, name_of(b->number), &b->peer, bt_clock_now_ns() + TIMEOUT_MS * MS,
                        &err) != BT_OK) {
        goto out;
    }
    run_for(b, 20); /* connected, mapped, announced */
    start_ns = bt_clock_now_ns();
    if (what == MEASURE_ANNOUNCE && !send_command(b, COMMAND_NOW, first)) {
        goto out;
    }
    if (bt_kv_sink_pull(sink, name_of(b->number), ids, p->n_blocks, 0, &err) != BT_OK) {
        goto out;
    }
    if (what == MEASURE_COMPLETE) {
        run_for(b, 200);
        start_ns = bt_clock_now_ns();
        if (!send_command(b, COMMAND_COMPLETE, first)) {
            goto out;
        }
    }
    bt_loop_run(b->loop);
    run_for(b, 5); /* END goes out */
out:
    if (b->status != BT_OK) {
        (void)fprintf(stderr, "bench transfer: %s\n", err.text);
    }
    bt_kv_sink_destroy(sink);
    free(ids);
    return b->status == BT_OK ? b->done_ns - start_ns : 0;
}

static int64_t measure_memcpy(bench *b)
{
    const pools *p = &b->pools;
    const size_t offset = next_window(b) * p->terms.layout.block_bytes;
    void *mapped = mmap(NULL, p->source.bytes, PROT_READ, MAP_SHARED, p->source.fd, 0);
    if (mapped == MAP_FAILED) {
        return 0;
    }
    const int64_t start_ns = bt_clock_now_ns();
    memcpy((uint8_t *)p->target.base + offset, (const uint8_t *)mapped + offset, window_bytes(p));
    const int64_t took_ns = bt_clock_now_ns() - start_ns;
    (void)munmap(mapped, p->source.bytes);
    return took_ns;
}

static int64_t measure_raw(bench *b)
{
    const pools *p = &b->pools;
    const uint32_t first = next_window(b);
    uint8_t *at = (uint8_t *)p->target.base + first * p->terms.layout.block_bytes;
    size_t left = window_bytes(p);
    const int64_t start_ns = bt_clock_now_ns();
    if (send(b->raw_fd, &first, sizeof first, MSG_NOSIGNAL) != (ssize_t)sizeof first) {
        return 0;
    }
    while (left > 0) {
        const ssize_t n = recv(b->raw_fd, at, bt_size_min(left, STEP_BYTES), 0);
        if (n <= 0) {
            return 0;
        }
        at += n;
        left -= (size_t)n;
    }
    return bt_clock_now_ns() - start_ns;
}

/* ---- rounds and report ---- */

enum {
    MEMCPY,
    RAW,
    SHM,
    SHM_ANNOUNCE,
    TCP,
    TCP_FULL,
    TCP_ANNOUNCE,
    SHM_COMPLETE,
    TCP_COMPLETE,
    N_KINDS
};

static int64_t measure_one(bench *b, int kind)
{
    switch (kind) {
    case MEMCPY:
        return measure_memcpy(b);
    case RAW:
        return measure_raw(b);
    case SHM:
        return measure_transfer(b, BT_KV_TRANSPORT_SHM, BT_KV_AUTH_AUTO, MEASURE_PULL);
    case SHM_ANNOUNCE:
        return measure_transfer(b, BT_KV_TRANSPORT_SHM, BT_KV_AUTH_AUTO, MEASURE_ANNOUNCE);
    case TCP:
        return measure_transfer(b, BT_KV_TRANSPORT_TCP, BT_KV_AUTH_FRAMES, MEASURE_PULL);
    case TCP_FULL:
        return measure_transfer(b, BT_KV_TRANSPORT_TCP, BT_KV_AUTH_FULL, MEASURE_PULL);
    case TCP_ANNOUNCE:
        return measure_transfer(b, BT_KV_TRANSPORT_TCP, BT_KV_AUTH_FRAMES, MEASURE_ANNOUNCE);
    case SHM_COMPLETE:
        return measure_transfer(b, BT_KV_TRANSPORT_SHM, BT_KV_AUTH_AUTO, MEASURE_COMPLETE);
    default:
        return measure_transfer(b, BT_KV_TRANSPORT_TCP, BT_KV_AUTH_FRAMES, MEASURE_COMPLETE);
    }
}

static void report_rates(bt_report *report, const double ns[N_KINDS][ROUNDS_MAX], size_t n,
                         double bytes)
{
    static const struct {
        const char *name;
        int kind, limit; /* limit == kind: none */
        const char *limit_name;
    } rows[] = {
        {"memcpy, cold mappings", MEMCPY, MEMCPY, NULL},
        {"shm, pull", SHM, MEMCPY, "memcpy"},
        {"shm, announce and pull", SHM_ANNOUNCE, MEMCPY, "memcpy"},
        {"loopback TCP, raw", RAW, RAW, NULL},
        {"tcp, pull", TCP, RAW, "raw TCP"},
        {"tcp, pull, parts signed", TCP_FULL, TCP, "tcp, pull"},
        {"tcp, announce and pull", TCP_ANNOUNCE, RAW, "raw TCP"},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(rows); i++) {
        double rates[ROUNDS_MAX];
        double ratios[ROUNDS_MAX];
        for (size_t r = 0; r < n; r++) {
            rates[r] = bytes / ns[rows[i].kind][r];
            ratios[r] = ns[rows[i].limit][r] / ns[rows[i].kind][r];
        }
        const double rate = bt_report_median(rates, n);
        bt_report_row row = {.name = rows[i].name, .value = rate, .unit = "GB/s"};
        if (rows[i].limit_name) { /* such that the printed share is the median of the ratios */
            row.limit = rate / bt_report_median(ratios, n);
            row.limit_name = rows[i].limit_name;
        }
        bt_report_add(report, &row);
    }
}

static void report_latency(bt_report *report, const char *name, const double *ns, size_t n)
{
    double us[ROUNDS_MAX];
    for (size_t r = 0; r < n; r++) {
        us[r] = ns[r] / 1e3;
    }
    bt_report_add(report,
                  &(bt_report_row){.name = name, .value = bt_report_median(us, n), .unit = "us"});
}

static bt_status measure_rounds(bench *b, size_t n_rounds, bt_report *report, bt_error *err)
{
    static const double none = 0;
    double(*ns)[ROUNDS_MAX] = calloc(N_KINDS, sizeof *ns);
    if (!ns) {
        return bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    bt_status status = BT_OK;
    for (size_t r = 0; r <= n_rounds && status == BT_OK; r++) { /* the first one warms up */
        for (int kind = 0; kind < N_KINDS && status == BT_OK; kind++) {
            const double took = (double)measure_one(b, kind);
            if (took <= none) {
                status = bt_error_set(err, BT_EIO, "measurement %d of a round failed", kind);
            } else if (r > 0) {
                ns[kind][r - 1] = took;
            }
        }
    }
    if (status == BT_OK) {
        report_rates(report, (const double(*)[ROUNDS_MAX])ns, n_rounds,
                     (double)window_bytes(&b->pools));
        report_latency(report, "shm, complete to done", ns[SHM_COMPLETE], n_rounds);
        report_latency(report, "tcp, complete to done", ns[TCP_COMPLETE], n_rounds);
    }
    free(ns);
    return status;
}

static bt_status create_pools(pools *p, const transfer_options *o, bt_error *err)
{
    if (!bt_kv_layout_init(&p->terms.layout, (uint32_t)o->n_layers, (uint32_t)o->n_kv_heads,
                           (uint32_t)o->head_dim, BT_KV_FORMAT_BF16)) {
        return bt_error_set(err, BT_EINVAL, "no such block");
    }
    p->n_blocks = (uint32_t)o->n_blocks;
    p->n_pool_blocks = (uint32_t)o->n_pool_blocks;
    if (p->n_pool_blocks < p->n_blocks) {
        return bt_error_set(err, BT_EINVAL, "a transfer does not fit into its pool");
    }
    const bt_memfd_options memfd = {.name = "bench-transfer",
                                    .bytes = p->n_pool_blocks * p->terms.layout.block_bytes,
                                    .touch = true};
    bt_status status = bt_alloc_map_memfd(&memfd, &p->source, err);
    if (status == BT_OK) {
        memset(p->source.base, 0x5A, p->source.bytes);
        status = bt_alloc_map_memfd(&memfd, &p->target, err);
    }
    return status;
}

static bt_status start_child(bench *b, bt_error *err)
{
    int fds[2];
    int listen_fd = -1;
    char shm_address[64];
    char raw_address[64];
    (void)snprintf(shm_address, sizeof shm_address, "@baton-bench-%d", (int)getpid());
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) != 0 ||
        bt_socket_listen("127.0.0.1:0", &listen_fd, err) != BT_OK) {
        return bt_error_set(err, BT_EIO, "cannot make sockets: %s", strerror(errno));
    }
    (void)snprintf(raw_address, sizeof raw_address, "127.0.0.1:%d", bt_socket_port(listen_fd));
    (void)fcntl(listen_fd, F_SETFL, 0); /* blocking */
    b->child = fork();
    if (b->child == 0) {
        bt_socket_close(fds[0]);
        child c = {.pools = &b->pools, .fd = fds[1], .raw_fd = listen_fd};
        _exit(run_child(&c, shm_address) ? 0 : 1);
    }
    bt_socket_close(fds[1]);
    bt_socket_close(listen_fd);
    b->fd = fds[0];
    bt_socket_address address;
    if (b->child < 0 || read(b->fd, &b->peer, sizeof b->peer) != (ssize_t)sizeof b->peer ||
        bt_socket_resolve(raw_address, false, &address, err) != BT_OK ||
        bt_socket_connect(&address, &b->raw_fd, err) != BT_OK) {
        return bt_error_set(err, BT_EIO, "the other process did not start");
    }
    (void)fcntl(b->raw_fd, F_SETFL, 0);
    return BT_OK;
}

static bt_status measure(void *ctx, bt_report *report, bt_error *err)
{
    const transfer_options *o = ctx;
    bench b = {.fd = -1,
               .raw_fd = -1,
               .child = -1,
               .pools = {.source = BT_MAPPING_NONE, .target = BT_MAPPING_NONE}};
    char text[96];
    (void)snprintf(text, sizeof text, "%" PRId64 " blocks, %" PRId64 " x %" PRId64 " x %" PRId64,
                   o->n_blocks, o->n_layers, o->n_kv_heads, o->head_dim);
    bt_report_fact(report, "transfer", text);
    bt_report_fact(report, "crc32c", bt_crc32c_path());
    bt_status status = create_pools(&b.pools, o, err);
    if (status == BT_OK) {
        status = start_child(&b, err);
    }
    if (status == BT_OK && (bt_loop_create(&b.loop) != BT_OK ||
                            bt_timer_create(b.loop, stop_loop, &b, &b.timer) != BT_OK)) {
        status = bt_error_set(err, BT_ENOMEM, "out of memory");
    }
    if (status == BT_OK) {
        status = measure_rounds(&b, (size_t)o->n_rounds, report, err);
    }
    if (b.fd >= 0) {
        (void)send_command(&b, COMMAND_STOP, 0);
    }
    bt_timer_destroy(b.timer);
    bt_loop_destroy(b.loop);
    bt_socket_close(b.raw_fd);
    bt_socket_close(b.fd);
    if (b.child > 0) {
        (void)waitpid(b.child, NULL, 0);
    }
    bt_alloc_unmap(&b.pools.source);
    bt_alloc_unmap(&b.pools.target);
    return status;
}

int main(int argc, char **argv)
{
    transfer_options options = {
        .n_rounds = 9,
        .n_blocks = 128,
        .n_pool_blocks = 1024,
        .n_layers = 30,
        .n_kv_heads = 3,
        .head_dim = 64,
    };
    const bt_program program = {"transfer", &SPEC, &options, &options.json, measure};
    return bt_program_main(&program, argc, argv);
}
