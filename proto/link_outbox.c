/* SPDX-License-Identifier: Apache-2.0 */
/* An outbox is a list of messages in the making. Both FromWorker and ToWorker are
 * `repeated X = 1`, so a message grows by "tag 1, length, event" without being decoded, and
 * what one step makes, or what piled up while a send was under way, leaves as one message.
 * A message is closed before it would exceed BT_LINK_MESSAGE_BYTES; one event is never cut. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "proto/link_int.h"

enum {
    CHUNK_BYTES_FIRST = 4096,
    FRAME_TAG = 0x0a, /* field 1, length-delimited */
    FRAME_BYTES_MAX = 6,
    SLAB_BYTES = 64 * 1024,
    ARENA_BYTES_MAX = 128 * 1024 * 1024, /* a message that unpacks to more is hostile */
    ALIGNMENT = 16,
};

static size_t put_frame(uint8_t *out, size_t len)
{
    size_t n = 0;
    out[n++] = FRAME_TAG;
    while (len >= 0x80) {
        out[n++] = (uint8_t)(len | 0x80);
        len >>= 7;
    }
    out[n++] = (uint8_t)len;
    return n;
}

static bt_link_chunk *make_chunk(bt_link_outbox *outbox, size_t need)
{
    bt_link_chunk *chunk = outbox->spare;
    if (chunk != NULL && chunk->capacity >= need) {
        outbox->spare = NULL;
    } else {
        const size_t capacity = bt_size_max(need, CHUNK_BYTES_FIRST);
        chunk = malloc(sizeof *chunk + capacity);
        if (chunk == NULL) {
            return NULL;
        }
        chunk->capacity = capacity;
    }
    chunk->next = NULL;
    chunk->len = 0;
    return chunk;
}

/* The last chunk with room for `need` more bytes, grown or followed by a new one. */
static bt_link_chunk *reserve(bt_link_outbox *outbox, size_t need)
{
    bt_link_chunk *last = outbox->last;
    if (last == NULL || last->len + need > BT_LINK_MESSAGE_BYTES) {
        bt_link_chunk *chunk = make_chunk(outbox, need);
        if (chunk == NULL) {
            return NULL;
        }
        if (last == NULL) {
            outbox->first = chunk;
        } else {
            last->next = chunk;
        }
        outbox->last = chunk;
        return chunk;
    }
    if (last->len + need <= last->capacity) {
        return last;
    }
    const size_t capacity = bt_size_max(2 * last->capacity, last->len + need);
    bt_link_chunk *grown = realloc(last, sizeof *grown + capacity);
    if (grown == NULL) {
        return NULL;
    }
    grown->capacity = capacity;
    if (outbox->first == last) {
        outbox->first = grown;
    } else {
        bt_link_chunk *before = outbox->first;
        while (before->next != last) {
            before = before->next;
        }
        before->next = grown;
    }
    outbox->last = grown;
    return grown;
}

bool bt_link_outbox_add(bt_link_outbox *outbox, const ProtobufCMessage *event, bool force)
{
    const size_t len = protobuf_c_message_get_packed_size(event);
    const size_t need = len + FRAME_BYTES_MAX;
    BT_ASSERT(len <= UINT32_MAX);
    if (!force && outbox->n_bytes + need > outbox->max_bytes) {
        return false;
    }
    bt_link_chunk *chunk = reserve(outbox, need);
    if (chunk == NULL) {
        return false;
    }
    const size_t before = chunk->len;
    chunk->len += put_frame(chunk->bytes + chunk->len, len);
    chunk->len += protobuf_c_message_pack(event, chunk->bytes + chunk->len);
    BT_ASSERT(chunk->len <= chunk->capacity);
    outbox->n_bytes += chunk->len - before;
    return true;
}

bool bt_link_outbox_send(bt_link_outbox *outbox, bt_rpc_call *call)
{
    bt_link_chunk *chunk = outbox->first;
    if (chunk == NULL || !bt_rpc_call_can_send(call)) {
        return false;
    }
    bt_rpc_call_send(call, chunk->bytes, chunk->len);
    BT_ASSERT(outbox->n_bytes >= chunk->len);
    outbox->n_bytes -= chunk->len;
    outbox->first = chunk->next;
    if (outbox->first == NULL) {
        outbox->last = NULL;
    }
    free(outbox->spare);
    outbox->spare = chunk;
    return true;
}

void bt_link_outbox_clear(bt_link_outbox *outbox)
{
    while (outbox->first != NULL) {
        bt_link_chunk *chunk = outbox->first;
        outbox->first = chunk->next;
        free(chunk);
    }
    free(outbox->spare);
    outbox->last = NULL;
    outbox->spare = NULL;
    outbox->n_bytes = 0;
}

/* ---- arena ---- */

typedef struct bt_link_slab {
    struct bt_link_slab *next;
    size_t used;
    size_t capacity;
    BT_ALIGNED(ALIGNMENT) uint8_t bytes[];
} bt_link_slab;

static void *arena_alloc(void *ctx, size_t n)
{
    bt_link_arena *arena = ctx;
    n = bt_align_up(n, ALIGNMENT);
    bt_link_slab *slab = arena->slabs;
    if (slab == NULL || slab->capacity - slab->used < n) {
        const size_t capacity = bt_size_max(n, SLAB_BYTES);
        if (capacity > ARENA_BYTES_MAX - arena->n_bytes) {
            return NULL;
        }
        slab = aligned_alloc(ALIGNMENT, bt_align_up(sizeof *slab + capacity, ALIGNMENT));
        if (slab == NULL) {
            return NULL;
        }
        slab->next = arena->slabs;
        slab->used = 0;
        slab->capacity = capacity;
        arena->slabs = slab;
        arena->n_bytes += capacity;
    }
    void *p = slab->bytes + slab->used;
    slab->used += n;
    return p;
}

static void arena_free(void *ctx, void *p)
{
    (void)ctx;
    (void)p;
}

void bt_link_arena_init(bt_link_arena *arena)
{
    *arena = (bt_link_arena){
        .allocator = {.alloc = arena_alloc, .free = arena_free, .allocator_data = arena},
    };
}

void bt_link_arena_reset(bt_link_arena *arena)
{
    while (arena->slabs != NULL) {
        bt_link_slab *slab = arena->slabs;
        arena->slabs = slab->next;
        free(slab);
    }
    arena->n_bytes = 0;
}
