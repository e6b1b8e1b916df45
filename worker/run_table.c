/* SPDX-License-Identifier: Apache-2.0 */
/* Slots lie in one array with their sequences; free ones form a stack through `next`, open ones
 * a list in order of arrival. A map finds an open run by (id, attempt): its 128-bit key is the
 * id with the attempt mixed in, so a found slot is compared with what was asked for.
 */
#include "worker/run_table.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/map.h"

struct bt_run_table {
    /* fixed after create */
    bt_worker_run *runs; /* [n] */
    uint32_t n;

    bt_map128 *by_id;
    bt_worker_run *free_first;
    bt_worker_run *first; /* open */
    bt_worker_run *last;
    uint32_t n_open;
};

static bt_hash128 key_of(bt_request_id id, uint32_t attempt)
{
    return (bt_hash128){.w = {id.hi ^ (attempt * UINT64_C(0x9e3779b97f4a7c15)), id.lo}};
}

static void push_free(bt_run_table *table, bt_worker_run *run)
{
    run->next = table->free_first;
    table->free_first = run;
}

static void append_open(bt_run_table *table, bt_worker_run *run)
{
    run->next = NULL;
    run->prev = table->last;
    if (table->last != NULL) {
        table->last->next = run;
    } else {
        table->first = run;
    }
    table->last = run;
    table->n_open++;
}

static void remove_open(bt_run_table *table, bt_worker_run *run)
{
    if (run->prev != NULL) {
        run->prev->next = run->next;
    } else {
        table->first = run->next;
    }
    if (run->next != NULL) {
        run->next->prev = run->prev;
    } else {
        table->last = run->prev;
    }
    table->n_open--;
}

/* The run's sequence as the scheduler wants it. Scores of a prompt (echo) come from whoever
 * computes it, so a decode run that pulls has none; and a scored prompt must be computed, so
 * it takes no cached prefix. */
static void fill_sequence(bt_sequence *seq, const bt_link_run *request, bt_worker_run *run,
                          int64_t now_ns)
{
    bt_sequence_reset(seq);
    seq->id = request->id;
    seq->attempt = request->attempt;
    seq->sampling = *request->sampling;
    memcpy(seq->tokens, request->tokens, request->n_tokens * sizeof request->tokens[0]);
    seq->n_prompt = request->n_prompt;
    seq->n_tokens = request->n_tokens;
    seq->root = request->chain_root;
    seq->use_cache = !(request->sampling->echo && request->sampling->logprobs);
    seq->sampling.echo = request->sampling->echo && request->mode != BT_LINK_MODE_DECODE;
    seq->arrived_ns = now_ns;
    seq->user = run;
}

bt_status bt_run_table_create(uint32_t n, uint32_t context, bt_run_table **out)
{
    if (n == 0) {
        return BT_EINVAL;
    }
    bt_run_table *table = calloc(1, sizeof *table);
    if (table == NULL) {
        return BT_ENOMEM;
    }
    table->n = n;
    table->runs = calloc(n, sizeof *table->runs);
    if (table->runs == NULL || bt_map128_create(n, &table->by_id) != BT_OK) {
        goto fail;
    }
    for (uint32_t i = n; i-- > 0;) {
        if (bt_sequence_create(context, &table->runs[i].seq) != BT_OK) {
            goto fail;
        }
        push_free(table, &table->runs[i]);
    }
    *out = table;
    return BT_OK;
fail:
    bt_run_table_destroy(table);
    return BT_ENOMEM;
}

void bt_run_table_destroy(bt_run_table *table)
{
    if (table == NULL) {
        return;
    }
    BT_ASSERT(table->n_open == 0);
    for (uint32_t i = 0; table->runs != NULL && i < table->n; i++) {
        bt_sequence_destroy(table->runs[i].seq);
    }
    free(table->runs);
    bt_map128_destroy(table->by_id);
    free(table);
}

bt_status bt_run_table_open(bt_run_table *table, const bt_link_run *request, int64_t now_ns,
                            bt_worker_run **out)
{
    const bt_hash128 key = key_of(request->id, request->attempt);
    if (bt_map128_get(table->by_id, key, NULL)) {
        return BT_EEXISTS;
    }
    bt_worker_run *run = table->free_first;
    if (run == NULL) {
        return BT_AGAIN;
    }
    const bt_status status = bt_map128_put(table->by_id, key, bt_map_of_ptr(run));
    BT_ASSERT(status == BT_OK); /* as much room as slots */
    table->free_first = run->next;

    bt_sequence *seq = run->seq;
    BT_ASSERT(request->n_tokens <= seq->context);
    const bool bounded = request->deadline_left_ns < INT64_MAX - now_ns;
    *run = (bt_worker_run){
        .id = request->id,
        .attempt = request->attempt,
        .mode = request->mode,
        .seq = seq,
        .n_tokens = request->n_tokens,
        .n_prompt = request->n_prompt,
        .n_blocks = (uint32_t)bt_div_ceil(request->n_tokens, BT_KV_BLOCK_TOKENS),
        .max_tokens = request->sampling->max_tokens,
        .arrived_ns = now_ns,
        .deadline_ns = bounded ? now_ns + request->deadline_left_ns : INT64_MAX,
        .peer = request->peer,
        .has_peer = request->has_peer,
        .generated_before = request->n_tokens - request->n_prompt,
        .transport = "",
        .open = true,
    };
    if (request->label != NULL) {
        snprintf(run->label, sizeof run->label, "%s", request->label);
    }
    fill_sequence(seq, request, run, now_ns);
    append_open(table, run);
    *out = run;
    return BT_OK;
}

void bt_run_table_close(bt_run_table *table, bt_worker_run *run)
{
    BT_ASSERT(run->open);
    BT_ASSERT(!run->in_engine);
    BT_ASSERT(!run->in_transfer);
    BT_ASSERT(run->seq->n_blocks == 0);
    const bool removed = bt_map128_remove(table->by_id, key_of(run->id, run->attempt), NULL);
    BT_ASSERT(removed);
    remove_open(table, run);
    run->open = false;
    push_free(table, run);
}

bt_worker_run *bt_run_table_find(const bt_run_table *table, bt_request_id id, uint32_t attempt)
{
    uint64_t value = 0;
    if (!bt_map128_get(table->by_id, key_of(id, attempt), &value)) {
        return NULL;
    }
    bt_worker_run *run = bt_map_to_ptr(value);
    const bool same = run->id.hi == id.hi && run->id.lo == id.lo && run->attempt == attempt;
    return same ? run : NULL;
}

bt_worker_run *bt_run_table_next(const bt_run_table *table, const bt_worker_run *run)
{
    return run == NULL ? table->first : run->next;
}

uint32_t bt_run_table_n_open(const bt_run_table *table)
{
    return table->n_open;
}

int64_t bt_run_table_deadline(const bt_run_table *table)
{
    int64_t earliest = INT64_MAX;
    for (const bt_worker_run *run = table->first; run != NULL; run = run->next) {
        if (!run->stopping && run->deadline_ns < earliest) {
            earliest = run->deadline_ns;
        }
    }
    return earliest;
}
