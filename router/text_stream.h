/* SPDX-License-Identifier: Apache-2.0 */
/* text_stream.h - tokens of one reply to text: whole characters, stop strings.
 *
 * Text goes in piece by piece (whole UTF-8 characters, as the streaming detokenizer gives
 * them) and comes out cut at the first stop string. The first one is that whose end comes
 * first in the text; of several that end there, the longest. So the result depends on the
 * text alone, never on how tokens split it. With stop strings left out of the reply, the
 * longest suffix that could still become one is held back until it is decided
 * (Knuth, Morris and Pratt 1977: one failure table for each stop string).
 *
 * Threading: one thread at a time. Memory: create, and the output's growth by the caller.
 */
#ifndef BT_ROUTER_TEXT_STREAM_H
#define BT_ROUTER_TEXT_STREAM_H

#include "common/status.h"
#include "engine/tokenizer.h" /* bt_text */

enum {
    BT_ROUTER_STOP_STRINGS_MAX = 16,
    BT_ROUTER_STOP_STRING_BYTES_MAX = 256, /* each */
};

typedef struct bt_router_text_stream bt_router_text_stream;

/* Follows `n_stops` stop strings (copied). BT_EINVAL: too many, an empty or too long one;
 * *err says which. */
BT_MUST_CHECK bt_status bt_router_text_stream_create(const char *const *stops,
                                                     const size_t *stop_lens, size_t n_stops,
                                                     bool include_stop, bt_router_text_stream **out,
                                                     bt_error *err);
void bt_router_text_stream_destroy(bt_router_text_stream *stream);

/* Takes the next piece; appends to *out what is free to go. *stopped: a stop string is
 * complete; what follows it is dropped, and so is every later piece. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_text_stream_push(bt_router_text_stream *stream, const char *piece,
                                                   size_t len, bt_text *out, bool *stopped);

/* The reply ended for another reason: appends what was held back. */
BT_MUST_CHECK bt_status bt_router_text_stream_finish(bt_router_text_stream *stream, bt_text *out);

/* Index of the stop string that was found, or -1. */
int bt_router_text_stream_stop_idx(const bt_router_text_stream *stream);

/* Bytes held back now. */
size_t bt_router_text_stream_held(const bt_router_text_stream *stream);

#endif /* BT_ROUTER_TEXT_STREAM_H */
