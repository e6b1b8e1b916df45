/* SPDX-License-Identifier: Apache-2.0 */
/* run_table.h - the fixed set of runs that a worker has open, each with its sequence.
 *
 * A run is one attempt of one request on this worker. Its slot is free, or open from open() to
 * close(); open runs are kept in order of arrival. Each has a deadline, and what is due comes
 * back from expired().
 *
 * Threading: loop thread only; a run's sequence belongs to whoever sequence.h says.
 * Memory:    all of it is taken in create.
 */
#ifndef BT_WORKER_RUN_TABLE_H
#define BT_WORKER_RUN_TABLE_H

#include "engine/sequence.h"
#include "proto/link.h"

typedef struct bt_run_table bt_run_table;

typedef struct bt_worker_run {
    /* Set by open(), fixed until close(). */
    bt_request_id id;
    uint32_t attempt;
    bt_link_mode mode;
    bt_sequence *seq;  /* reset by open(); its user points back here */
    uint32_t n_tokens; /* known at arrival: prompt, and on a retry what was generated */
    uint32_t n_prompt;
    uint32_t n_blocks; /* of the known tokens */
    uint32_t max_tokens;
    int64_t arrived_ns;
    char label[BT_LINK_LABEL_MAX]; /* what the client calls the request; "" when nobody says */
    int64_t deadline_ns;           /* INT64_MAX: none */
    bt_link_kv_peer peer;          /* with has_peer */
    bool has_peer;

    /* The role's (prefill/worker.c, decode/worker.c draw how these change). */
    bool in_engine;   /* posted, DONE has not come */
    bool in_transfer; /* source or sink has it, its last callback has not come */
    bool started;     /* STARTED or PULL came, or the first token of a whole run */
    bool lent;        /* prefill: STARTED came, RELEASE is owed. decode: PULLED or PULL_DROPPED
                       * is owed, or with `parked` RELEASE or RESUME */
    bool cancelled;   /* CANCEL was posted */
    bool ends;        /* the request ended with its first token */
    bool parking;     /* decode: PARK was posted, PARKED has not come */
    bool parked;      /* decode: offered to another worker, which pulls it; `lent` until then */
    bool resuming;    /* decode: parked, and wanted back by the router */
    uint32_t next_attempt;       /* with parking, parked: the attempt that pulls it */
    bt_token_result last_result; /* decode: of the newest token, which goes along when parked */
    bool stopping;               /* its end is decided: status and error say why */
    bt_status status;
    bt_error error;
    bt_finish_reason reason;
    int32_t last_token;        /* decode, with ends: the one that ended it */
    uint32_t generated_before; /* of n_tokens: n_tokens - n_prompt */
    int64_t computed_ns;       /* prefill: first token; decode: transfer done. 0: not yet */
    int64_t started_ns;        /* STARTED or PULL came; 0: not yet */
    int64_t first_token_ns;    /* passed on to the router; 0: not yet */
    uint32_t n_passed_on;      /* generated tokens passed on */
    uint64_t transfer_ns;
    uint64_t bytes_moved;
    uint32_t blocks_moved;
    uint32_t blocks_skipped;
    uint32_t parts_left;   /* decode: (layer, block) parts still to move when the prompt was done */
    const char *transport; /* "" before it is known; a constant */

    /* The table's. */
    struct bt_worker_run *next;
    struct bt_worker_run *prev;
    bool open;
} bt_worker_run;

/* `n` slots with sequences of `context` tokens. BT_EINVAL: n is 0. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_run_table_create(uint32_t n, uint32_t context, bt_run_table **out);

/* Every run must have been closed. NULL is allowed. */
void bt_run_table_destroy(bt_run_table *table);

/* Fills a free slot and its sequence from a request; deadlines are anchored on now_ns. The
 * request has been checked: its tokens fit the context. BT_AGAIN: no slot is free. BT_EEXISTS:
 * (id, attempt) is open. */
BT_MUST_CHECK bt_status bt_run_table_open(bt_run_table *table, const bt_link_run *request,
                                          int64_t now_ns, bt_worker_run **out);

/* The run is gone; its sequence is reset and must hold no blocks. */
void bt_run_table_close(bt_run_table *table, bt_worker_run *run);

/* NULL: not open. */
bt_worker_run *bt_run_table_find(const bt_run_table *table, bt_request_id id, uint32_t attempt);

/* Open runs in order of arrival: NULL begins, NULL ends. The present one may be closed only
 * after its successor was asked for. */
bt_worker_run *bt_run_table_next(const bt_run_table *table, const bt_worker_run *run);

uint32_t bt_run_table_n_open(const bt_run_table *table);

/* The earliest deadline among open runs that are not stopping; INT64_MAX: none. O(open). */
int64_t bt_run_table_deadline(const bt_run_table *table);

#endif /* BT_WORKER_RUN_TABLE_H */
