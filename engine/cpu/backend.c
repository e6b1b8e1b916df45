/* SPDX-License-Identifier: Apache-2.0 */
/* Cuts operations into parts, one or more for each thread, for the kernels of one path.
 *
 *   matmul      a grid of row groups x panel groups: rows are divided only where each thread
 *               still has enough of them to reuse a panel from its cache, else panels
 *   attention   (span, kv head, tile of query vectors), taken from a counter, the longest first; if
 *               there are too few for the threads, each is cut by segments as well
 *   the others  rows
 *
 * An operation too small to share runs on the caller alone. Which thread computes what
 * never shows in a result.
 */
#include "engine/backend.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/check.h"
#include "engine/cpu/backend_int.h"
#include "engine/cpu/kernels.h"
#include "engine/cpu/paths.h"
#include "engine/cpu/round.h"
#include "engine/cpu/team.h"

enum {
    ALONE_ELEMENTS = 8192,      /* elementwise operations below this are not shared */
    ALONE_PRODUCTS = 64 * 1024, /* nor matrix products and attention below this */
    GROUP_ROWS_MIN = 24,        /* rows that a thread should have before rows are divided */
    PARTS_PER_THREAD = 4,       /* fewer attention parts than this are cut by segments */
    HUGE_PAGE_BYTES = 2 * 1024 * 1024,
};

typedef struct cpu_backend {
    bt_backend base;
    const bt_cpu_kernels *kernels;
    bt_team *team;
    bt_backend_limits limits;
    uint8_t *scratch; /* [n_threads][scratch_bytes] */
    size_t scratch_bytes;
    uint32_t *tile_first;     /* [n_spans + 1] tiles of query vectors before each span */
    bt_segment_state *states; /* [segment parts][query] */
    float *accs;              /* [segment parts][query][head_dim] */
    uint32_t segment_parts_max;
    _Atomic uint32_t next_part; /* attention: parts taken so far */
} cpu_backend;

static cpu_backend *cpu_of(bt_backend *be)
{
    return bt_container_of(be, cpu_backend, base);
}

static uint32_t share(uint32_t n, uint32_t member, uint32_t n_members)
{
    return (uint32_t)((uint64_t)n * member / n_members);
}

static void *scratch_of(const cpu_backend *cpu, uint32_t member)
{
    return cpu->scratch + member * cpu->scratch_bytes;
}

static void run(cpu_backend *cpu, bool alone, bt_team_fn fn, void *ctx)
{
    if (alone) {
        fn(ctx, 0, 1);
    } else {
        bt_team_run(cpu->team, fn, ctx);
    }
}

/* ---- matrices -------------------------------------------------------------------------- */

static size_t matrix_bytes(const bt_matrix *m)
{
    return bt_align_up((size_t)m->n_panels * m->k_pairs * 32 * sizeof(uint16_t), 4096);
}

typedef struct pack_job {
    bt_matrix *matrix;
    bt_row_fn row_fn;
    void *ctx;
    float *rows; /* [n_members][k] */
} pack_job;

static void pack_panels(void *ctx, uint32_t member, uint32_t n_members)
{
    const pack_job *job = ctx;
    bt_matrix *m = job->matrix;
    float *row = job->rows + (size_t)member * m->k;
    const size_t panel_elements = (size_t)m->k_pairs * 32;
    const uint32_t end = share(m->n_panels, member + 1, n_members);
    for (uint32_t p = share(m->n_panels, member, n_members); p < end; p++) {
        uint16_t *panel = m->panels + p * panel_elements; /* zero from the kernel */
        for (uint32_t j = 0; j < 16 && p * 16 + j < m->n; j++) {
            job->row_fn(job->ctx, p * 16 + j, row);
            for (uint32_t i = 0; i < m->k; i++) {
                panel[(size_t)(i / 2) * 32 + j * 2 + i % 2] = bt_bf16_round(row[i]);
            }
        }
    }
}

static bt_status matrix_create(bt_backend *be, uint32_t n, uint32_t k, bt_row_fn row_fn, void *ctx,
                               bt_matrix **out)
{
    cpu_backend *cpu = cpu_of(be);
    BT_ASSERT(n > 0 && k > 0 && k <= cpu->limits.k);
    const uint32_t step = cpu->kernels->k_pairs_step;
    bt_matrix *m = calloc(1, sizeof(*m));
    float *rows = calloc((size_t)bt_team_size(cpu->team) * k, sizeof(float));
    if (m == NULL || rows == NULL) {
        goto fail_memory;
    }
    *m = (bt_matrix){
        .n = n,
        .k = k,
        .n_panels = (uint32_t)bt_div_ceil(n, 16),
        .k_pairs = (uint32_t)bt_div_ceil(bt_div_ceil(k, 2), step) * step,
    };
    void *panels =
        mmap(NULL, matrix_bytes(m), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (panels == MAP_FAILED) {
        goto fail_memory;
    }
    /* A hint: fewer address translations for weights read once a step. */
    (void)madvise(panels, matrix_bytes(m), MADV_HUGEPAGE);
    m->panels = panels;
    pack_job job = {.matrix = m, .row_fn = row_fn, .ctx = ctx, .rows = rows};
    bt_team_run(cpu->team, pack_panels, &job);
    free(rows);
    *out = m;
    return BT_OK;

fail_memory:
    free(rows);
    free(m);
    return BT_ENOMEM;
}

static void matrix_destroy(bt_backend *be, bt_matrix *matrix)
{
    (void)be;
    if (matrix != NULL) {
        (void)munmap(matrix->panels, matrix_bytes(matrix));
        free(matrix);
    }
}

static void embed(bt_backend *be, const bt_matrix *matrix, const int32_t *tokens, uint32_t n_rows,
                  float *out)
{
    (void)be;
    for (uint32_t r = 0; r < n_rows; r++) {
        BT_ASSERT(tokens[r] >= 0 && (uint32_t)tokens[r] < matrix->n);
        const uint32_t token = (uint32_t)tokens[r];
        const uint16_t *from =
            matrix->panels + (size_t)(token / 16) * matrix->k_pairs * 32 + (size_t)(token % 16) * 2;
        float *to = out + (size_t)r * matrix->k;
        for (uint32_t i = 0; i < matrix->k; i++) {
            to[i] = bt_bf16_widen(from[(size_t)(i / 2) * 32 + i % 2]);
        }
    }
}

typedef struct matmul_job {
    const cpu_backend *cpu;
    const bt_matrix *matrix;
    const float *x;
    float *y;
    uint32_t n_rows;
    uint32_t y_stride;
    bool add;
} matmul_job;

/* Row groups for n_members threads: a divisor of n_members. */
static uint32_t row_groups(uint32_t n_rows, uint32_t n_members)
{
    uint32_t groups = n_members;
    while (groups > 1 && (n_members % groups != 0 || n_rows / groups < GROUP_ROWS_MIN)) {
        groups--;
    }
    return groups;
}

static void matmul_part(void *ctx, uint32_t member, uint32_t n_members)
{
    const matmul_job *job = ctx;
    const bt_matrix *m = job->matrix;
    const uint32_t n_row_groups = row_groups(job->n_rows, n_members);
    const uint32_t n_panel_groups = n_members / n_row_groups;
    const uint32_t row_group = member / n_panel_groups;
    const uint32_t panel_group = member % n_panel_groups;
    const uint32_t row_first = share(job->n_rows, row_group, n_row_groups);
    const bt_matmul_part part = {
        .matrix = m,
        .x = job->x + (size_t)row_first * m->k,
        .y = job->y + (size_t)row_first * job->y_stride,
        .y_stride = job->y_stride,
        .n_rows = share(job->n_rows, row_group + 1, n_row_groups) - row_first,
        .panel_first = share(m->n_panels, panel_group, n_panel_groups),
        .panel_end = share(m->n_panels, panel_group + 1, n_panel_groups),
        .add = job->add,
        .scratch = scratch_of(job->cpu, member),
    };
    job->cpu->kernels->matmul(&part);
}

static void matmul(bt_backend *be, const bt_matrix *matrix, const float *x, uint32_t n_rows,
                   float *y, uint32_t y_stride, bool add)
{
    cpu_backend *cpu = cpu_of(be);
    BT_ASSERT(n_rows <= cpu->limits.n_rows);
    BT_ASSERT(y_stride >= matrix->n);
    matmul_job job = {
        .cpu = cpu,
        .matrix = matrix,
        .x = x,
        .y = y,
        .n_rows = n_rows,
        .y_stride = y_stride,
        .add = add,
    };
    const uint64_t products = (uint64_t)n_rows * matrix->n * matrix->k;
    run(cpu, products < ALONE_PRODUCTS, matmul_part, &job);
}

/* ---- rows ------------------------------------------------------------------------------ */

typedef struct rows_job {
    const cpu_backend *cpu;
    const float *x;
    const float *weight;
    float *out;
    float eps;
    uint32_t n_rows;
    uint32_t dim;
} rows_job;

static void rms_norm_part(void *ctx, uint32_t member, uint32_t n_members)
{
    const rows_job *job = ctx;
    job->cpu->kernels->rms_norm(job->x, job->weight, job->eps,
                                share(job->n_rows, member, n_members),
                                share(job->n_rows, member + 1, n_members), job->dim, job->out);
}

static void rms_norm(bt_backend *be, const float *x, const float *weight, float eps,
                     uint32_t n_rows, uint32_t dim, float *out)
{
    cpu_backend *cpu = cpu_of(be);
    rows_job job = {
        .cpu = cpu,
        .x = x,
        .weight = weight,
        .out = out,
        .eps = eps,
        .n_rows = n_rows,
        .dim = dim,
    };
    run(cpu, (uint64_t)n_rows * dim < ALONE_ELEMENTS, rms_norm_part, &job);
}

static void silu_mul_part(void *ctx, uint32_t member, uint32_t n_members)
{
    const rows_job *job = ctx;
    job->cpu->kernels->silu_mul(job->x, share(job->n_rows, member, n_members),
                                share(job->n_rows, member + 1, n_members), job->dim, job->out);
}

static void silu_mul(bt_backend *be, const float *x, uint32_t n_rows, uint32_t n, float *out)
{
    cpu_backend *cpu = cpu_of(be);
    rows_job job = {.cpu = cpu, .x = x, .out = out, .n_rows = n_rows, .dim = n};
    run(cpu, (uint64_t)n_rows * n < ALONE_ELEMENTS, silu_mul_part, &job);
}

typedef struct rope_job {
    const cpu_backend *cpu;
    const bt_attention_args *args;
    float *qkv;
} rope_job;

static void rope_store_part(void *ctx, uint32_t member, uint32_t n_members)
{
    const rope_job *job = ctx;
    const bt_attention_args *args = job->args;
    const uint32_t first = share(args->n_rows, member, n_members);
    const uint32_t end = share(args->n_rows, member + 1, n_members);
    for (uint32_t s = 0; s < args->n_spans; s++) {
        const bt_kv_span *span = &args->spans[s];
        const uint32_t span_end = span->row_first + span->n_rows;
        const uint32_t from = first > span->row_first ? first : span->row_first;
        const uint32_t to = end < span_end ? end : span_end;
        if (from < to) {
            job->cpu->kernels->rope_store(args, span, from - span->row_first, to - span->row_first,
                                          job->qkv);
        }
    }
}

static void check_args(const cpu_backend *cpu, const bt_attention_args *args)
{
    BT_ASSERT(args->n_spans <= cpu->limits.n_spans);
    BT_ASSERT(args->n_rows <= cpu->limits.n_rows);
    BT_ASSERT(args->layout->head_dim <= cpu->limits.head_dim);
    BT_ASSERT(args->n_heads % args->layout->n_kv_heads == 0);
    BT_ASSERT(args->n_heads <= cpu->limits.n_heads);
    BT_ASSERT(args->n_rope % 2 == 0 && args->n_rope <= args->layout->head_dim);
}

static void rope_store(bt_backend *be, const bt_attention_args *args, float *qkv)
{
    cpu_backend *cpu = cpu_of(be);
    check_args(cpu, args);
    rope_job job = {.cpu = cpu, .args = args, .qkv = qkv};
    const uint64_t elements = (uint64_t)args->n_rows *
                              (args->n_heads + 2 * args->layout->n_kv_heads) *
                              args->layout->head_dim;
    run(cpu, elements < ALONE_ELEMENTS, rope_store_part, &job);
}

/* ---- attention ------------------------------------------------------------------------- */

typedef struct attention_job {
    cpu_backend *cpu;
    const bt_attention_args *args;
    const float *qkv;
    float *out;
    uint32_t n_parts;
    uint32_t n_segments; /* 0: parts are not cut by segments; else the most that one has */
} attention_job;

static uint32_t group_of(const bt_attention_args *args)
{
    return args->n_heads / args->layout->n_kv_heads;
}

/* The part of a (tile, kv head) index; tiles are numbered through all spans. */
static bt_attention_part part_at(const attention_job *job, uint32_t idx, uint32_t member)
{
    const bt_attention_args *args = job->args;
    const cpu_backend *cpu = job->cpu;
    const uint32_t tile = idx / args->layout->n_kv_heads;
    uint32_t lo = 0;
    uint32_t hi = args->n_spans;
    while (hi - lo > 1) { /* the last span with tile_first <= tile */
        const uint32_t mid = lo + (hi - lo) / 2;
        if (cpu->tile_first[mid] <= tile) {
            lo = mid;
        } else {
            hi = mid;
        }
    }
    const bt_kv_span *span = &args->spans[lo];
    const uint32_t first = (tile - cpu->tile_first[lo]) * cpu->kernels->n_queries;
    const uint32_t n_left = span->n_rows * group_of(args) - first;
    return (bt_attention_part){
        .args = args,
        .qkv = job->qkv,
        .out = job->out,
        .span = span,
        .kv_head = idx % args->layout->n_kv_heads,
        .query_first = first,
        .n_queries = n_left < cpu->kernels->n_queries ? n_left : cpu->kernels->n_queries,
        .scratch = scratch_of(cpu, member),
    };
}

/* Position after the last one that query vector `query` of the span sees. */
static uint32_t query_end(const bt_attention_part *part, uint32_t query)
{
    return part->span->pos_first + (part->query_first + query) / group_of(part->args) + 1;
}

static uint32_t n_segments_of(const bt_attention_part *part, uint32_t query)
{
    return (uint32_t)bt_div_ceil(query_end(part, query), BT_SEGMENT_TOKENS);
}

static void attention_parts(void *ctx, uint32_t member, uint32_t n_members)
{
    (void)n_members;
    const attention_job *job = ctx;
    cpu_backend *cpu = job->cpu;
    const uint32_t n_queries = cpu->kernels->n_queries;
    const uint32_t n_segments = job->n_segments > 0 ? job->n_segments : 1;
    for (;;) {
        /* Only shares out numbers; results are published by the team's end of round. */
        const uint32_t taken = atomic_fetch_add_explicit(&cpu->next_part, 1, memory_order_relaxed);
        if (taken >= job->n_parts) {
            return;
        }
        const uint32_t idx = job->n_parts - 1 - taken; /* later rows see more: longest first */
        bt_attention_part part = part_at(job, idx / n_segments, member);
        if (job->n_segments > 0) {
            part.segment = idx % n_segments;
            if (part.segment >= n_segments_of(&part, part.n_queries - 1)) {
                continue;
            }
            part.states = cpu->states + (size_t)idx * n_queries;
            part.accs = cpu->accs + (size_t)idx * n_queries * job->args->layout->head_dim;
        }
        cpu->kernels->attention(&part);
    }
}

static void combine_segments(const attention_job *job)
{
    cpu_backend *cpu = job->cpu;
    const bt_attention_args *args = job->args;
    const uint32_t head_dim = args->layout->head_dim;
    const uint32_t group = group_of(args);
    const size_t n_queries = cpu->kernels->n_queries;
    for (uint32_t i = 0; i < job->n_parts / job->n_segments; i++) {
        const bt_attention_part part = part_at(job, i, 0);
        const size_t first = (size_t)i * job->n_segments * n_queries;
        for (uint32_t q = 0; q < part.n_queries; q++) {
            const uint32_t query = part.query_first + q;
            const size_t row = part.span->row_first + (size_t)(query / group);
            const size_t head = (size_t)part.kv_head * group + query % group;
            cpu->kernels->attention_combine(cpu->states + first + q, n_queries,
                                            cpu->accs + (first + q) * head_dim,
                                            n_queries * head_dim, n_segments_of(&part, q), head_dim,
                                            job->out + (row * args->n_heads + head) * head_dim);
        }
    }
}

static void attention(bt_backend *be, const bt_attention_args *args, const float *qkv, float *out)
{
    cpu_backend *cpu = cpu_of(be);
    check_args(cpu, args);
    uint32_t n_tiles = 0;
    uint32_t end_max = 0;
    uint64_t products = 0;
    for (uint32_t s = 0; s < args->n_spans; s++) {
        const bt_kv_span *span = &args->spans[s];
        const uint32_t end = span->pos_first + span->n_rows;
        cpu->tile_first[s] = n_tiles;
        n_tiles +=
            (uint32_t)bt_div_ceil((size_t)span->n_rows * group_of(args), cpu->kernels->n_queries);
        end_max = end > end_max ? end : end_max;
        products += (uint64_t)span->n_rows * end * args->n_heads * args->layout->head_dim;
    }
    cpu->tile_first[args->n_spans] = n_tiles;
    BT_ASSERT(end_max <= cpu->limits.n_positions);

    attention_job job = {
        .cpu = cpu,
        .args = args,
        .qkv = qkv,
        .out = out,
        .n_parts = n_tiles * args->layout->n_kv_heads,
    };
    const uint32_t n_threads = bt_team_size(cpu->team);
    const uint32_t n_segments = (uint32_t)bt_div_ceil(end_max, BT_SEGMENT_TOKENS);
    const bool alone = n_threads == 1 || products < ALONE_PRODUCTS;
    if (!alone && n_segments > 1 && job.n_parts < PARTS_PER_THREAD * n_threads) {
        job.n_segments = n_segments;
        job.n_parts *= n_segments;
        BT_ASSERT(job.n_parts <= cpu->segment_parts_max);
    }
    atomic_store_explicit(&cpu->next_part, 0, memory_order_relaxed);
    run(cpu, alone, attention_parts, &job);
    if (job.n_segments > 0) {
        combine_segments(&job);
    }
}

/* ---- life ------------------------------------------------------------------------------ */

static void destroy(bt_backend *be)
{
    if (be == NULL) {
        return;
    }
    cpu_backend *cpu = cpu_of(be);
    bt_team_destroy(cpu->team);
    free(cpu->scratch);
    free(cpu->tile_first);
    free(cpu->states);
    free(cpu->accs);
    free(cpu);
}

static const bt_backend_ops ops = {
    .matrix_create = matrix_create,
    .matrix_destroy = matrix_destroy,
    .embed = embed,
    .matmul = matmul,
    .rms_norm = rms_norm,
    .rope_store = rope_store,
    .attention = attention,
    .silu_mul = silu_mul,
    .destroy = destroy,
};

static bt_status allocate(cpu_backend *cpu)
{
    const bt_backend_limits *l = &cpu->limits;
    const uint32_t step = cpu->kernels->k_pairs_step;
    const uint32_t k_pairs = (uint32_t)bt_div_ceil(bt_div_ceil(l->k, 2), step) * step;
    const size_t matmul_bytes = cpu->kernels->matmul_scratch_bytes(k_pairs, l->n_rows);
    const size_t bytes = bt_size_max(matmul_bytes, cpu->kernels->attention_scratch_bytes());
    /* A page between the threads' parts, so that no prefetcher shares lines between them. */
    cpu->scratch_bytes = bt_align_up(bytes, 4096) + 4096;
    cpu->segment_parts_max =
        PARTS_PER_THREAD * l->n_threads * (uint32_t)bt_div_ceil(l->n_positions, BT_SEGMENT_TOKENS);
    const size_t n_vectors = (size_t)cpu->segment_parts_max * cpu->kernels->n_queries;
    cpu->scratch = aligned_alloc(4096, cpu->scratch_bytes * l->n_threads);
    cpu->tile_first = calloc((size_t)l->n_spans + 1, sizeof(*cpu->tile_first));
    cpu->states = calloc(n_vectors, sizeof(*cpu->states));
    cpu->accs = calloc(n_vectors * l->head_dim, sizeof(*cpu->accs));
    if (cpu->scratch == NULL || cpu->tile_first == NULL || cpu->states == NULL ||
        cpu->accs == NULL) {
        return BT_ENOMEM;
    }
    memset(cpu->scratch, 0, cpu->scratch_bytes * l->n_threads); /* touched at start */
    return bt_team_create(l->n_threads, &cpu->team);
}

size_t bt_cpu_backend_paths(const char **names, size_t max)
{
    size_t n_paths;
    size_t n = 0;
    const bt_cpu_path *paths = bt_cpu_paths(&n_paths);
    for (size_t i = 0; i < n_paths && n < max; i++) {
        if (paths[i].is_supported()) {
            names[n++] = paths[i].name;
        }
    }
    return n;
}

/* "avx512, avx2, ..." of what this CPU can run. */
static void list_paths(char *text, size_t size)
{
    const char *names[16];
    const size_t n = bt_cpu_backend_paths(names, BT_ARRAY_LEN(names));
    size_t len = 0;
    text[0] = '\0';
    for (size_t i = 0; i < n && len < size; i++) {
        len += (size_t)snprintf(text + len, size - len, "%s%s", i > 0 ? ", " : "", names[i]);
    }
}

static bt_status check_limits(const bt_backend_limits *l, bt_error *err)
{
    if (l->n_threads == 0 || l->n_threads > 1024) {
        return bt_error_set(err, BT_EINVAL, "cannot use %u compute threads. Use 1 to 1024.",
                            l->n_threads);
    }
    if (l->head_dim == 0 || l->head_dim > BT_HEAD_DIM_MAX || l->head_dim % 2 != 0) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "cannot run heads of %u channels: the CPU kernels take even numbers "
                            "up to %d",
                            l->head_dim, BT_HEAD_DIM_MAX);
    }
    if (l->n_rows == 0 || l->n_spans == 0 || l->k == 0 || l->n_heads == 0 || l->n_positions == 0) {
        return bt_error_set(err, BT_EINVAL, "cannot make a backend for steps of no rows");
    }
    return BT_OK;
}

bt_status bt_cpu_backend_create(const char *path, const bt_backend_limits *limits, bt_backend **out,
                                bt_error *err)
{
    char names[128];
    list_paths(names, sizeof(names));
    const bt_cpu_path *p =
        strcmp(path, "auto") == 0 ? bt_cpu_path_choose() : bt_cpu_path_find(path);
    if (p == NULL) {
        return bt_error_set(err, BT_EINVAL, "no kernel path '%.32s'. This CPU can run: auto, %s.",
                            path, names);
    }
    if (!p->is_supported()) {
        return bt_error_set(err, BT_EUNSUPPORTED,
                            "kernel path '%s' needs %s. This CPU can run: auto, %s.", p->name,
                            p->needs, names);
    }
    const bt_status limits_status = check_limits(limits, err);
    if (limits_status != BT_OK) {
        return limits_status;
    }
    if (p->kernels == NULL) {
        return bt_reference_backend_create(limits, out);
    }
    cpu_backend *cpu = calloc(1, sizeof(*cpu));
    if (cpu == NULL) {
        return BT_ENOMEM;
    }
    cpu->kernels = p->kernels();
    cpu->limits = *limits;
    cpu->base = (bt_backend){.ops = &ops, .name = p->name, .numerics = cpu->kernels->numerics};
    const bt_status status = allocate(cpu);
    if (status != BT_OK) {
        destroy(&cpu->base);
        return bt_error_set(err, status, "not enough memory for the kernels' scratch");
    }
    *out = &cpu->base;
    return BT_OK;
}
