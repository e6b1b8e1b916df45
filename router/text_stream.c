/* SPDX-License-Identifier: Apache-2.0 */
/* How it works. For each stop string the longest of its prefixes that is a suffix of the text
 * so far is tracked (KMP), so a byte costs amortized O(stop strings). Invariants:
 *   1. held = the last max(matched) bytes of the text, where `matched` is the length of that
 *      prefix, and everything before them has been given out;
 *   2. the held bytes are kept in no buffer of their own: they are the prefix of the stop
 *      string with the longest match, so they are read from there;
 *   3. stop strings are whole UTF-8, and so are pieces: a held prefix begins at a character's
 *      first byte, hence what is given out ends at a whole character.
 * With the stop string included nothing needs to be held: what comes out is the text up to
 * the stop string's end in either case.
 *
 * Aho-Corasick would cost one step a byte for all strings at once, but its table is 256
 * entries for each byte of stop strings; 16 strings are too few to pay for that. */
#include "router/text_stream.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"

typedef struct stop_state {
    size_t offset; /* of the string in bytes[], and of its failures in failures[] */
    uint32_t len;
    uint32_t matched; /* < len until it is found */
} stop_state;

struct bt_router_text_stream {
    /* fixed after create */
    bool include_stop;
    size_t n_stops;
    char *bytes;        /* all stop strings, one after the other */
    uint32_t *failures; /* failures[offset + i]: longest border of the first i + 1 bytes */
    /* moving */
    int stop_idx; /* -1: none found yet */
    stop_state stops[BT_ROUTER_STOP_STRINGS_MAX];
};

static void fill_failures(const char *stop, uint32_t len, uint32_t *failures)
{
    uint32_t border = 0;
    failures[0] = 0;
    for (uint32_t i = 1; i < len; i++) {
        while (border > 0 && stop[i] != stop[border]) {
            border = failures[border - 1];
        }
        border += stop[i] == stop[border];
        failures[i] = border;
    }
}

static bt_status check_stops(const size_t *stop_lens, size_t n_stops, size_t *total, bt_error *err)
{
    if (n_stops > BT_ROUTER_STOP_STRINGS_MAX) {
        return bt_error_set(err, BT_EINVAL, "%zu stop strings are too many: at most %d", n_stops,
                            (int)BT_ROUTER_STOP_STRINGS_MAX);
    }
    *total = 0;
    for (size_t i = 0; i < n_stops; i++) {
        if (stop_lens[i] == 0 || stop_lens[i] > BT_ROUTER_STOP_STRING_BYTES_MAX) {
            return bt_error_set(err, BT_EINVAL, "stop string %zu has %zu bytes: must be 1 to %d", i,
                                stop_lens[i], (int)BT_ROUTER_STOP_STRING_BYTES_MAX);
        }
        *total += stop_lens[i];
    }
    return BT_OK;
}

bt_status bt_router_text_stream_create(const char *const *stops, const size_t *stop_lens,
                                       size_t n_stops, bool include_stop,
                                       bt_router_text_stream **out, bt_error *err)
{
    size_t total = 0;
    const bt_status status = check_stops(stop_lens, n_stops, &total, err);
    if (status != BT_OK) {
        return status;
    }
    bt_router_text_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return BT_ENOMEM;
    }
    stream->include_stop = include_stop;
    stream->n_stops = n_stops;
    stream->stop_idx = -1;
    if (total > 0) {
        stream->bytes = malloc(total);
        stream->failures = malloc(total * sizeof *stream->failures);
        if (stream->bytes == NULL || stream->failures == NULL) {
            bt_router_text_stream_destroy(stream);
            return BT_ENOMEM;
        }
    }
    size_t offset = 0;
    for (size_t i = 0; i < n_stops; i++) {
        const uint32_t len = (uint32_t)stop_lens[i];
        memcpy(stream->bytes + offset, stops[i], len);
        fill_failures(stream->bytes + offset, len, stream->failures + offset);
        stream->stops[i] = (stop_state){.offset = offset, .len = len};
        offset += len;
    }
    *out = stream;
    return BT_OK;
}

void bt_router_text_stream_destroy(bt_router_text_stream *stream)
{
    if (stream == NULL) {
        return;
    }
    free(stream->bytes);
    free(stream->failures);
    free(stream);
}

/* One byte of text for one stop string; true: the string is complete. */
static bool advance(const bt_router_text_stream *stream, stop_state *stop, char byte)
{
    const char *bytes = stream->bytes + stop->offset;
    const uint32_t *failures = stream->failures + stop->offset;
    while (stop->matched > 0 && bytes[stop->matched] != byte) {
        stop->matched = failures[stop->matched - 1];
    }
    stop->matched += bytes[stop->matched] == byte;
    return stop->matched == stop->len;
}

/* The stop string with the longest match so far, or NULL. */
static const stop_state *longest_match(const bt_router_text_stream *stream)
{
    const stop_state *longest = NULL;
    for (size_t i = 0; i < stream->n_stops; i++) {
        const stop_state *stop = &stream->stops[i];
        if (stop->matched > 0 && (longest == NULL || stop->matched > longest->matched)) {
            longest = stop;
        }
    }
    return longest;
}

/* Takes one byte; the index of the longest stop string that it completes, or -1. */
static int advance_all(bt_router_text_stream *stream, char byte)
{
    int found = -1;
    for (size_t i = 0; i < stream->n_stops; i++) {
        if (advance(stream, &stream->stops[i], byte) &&
            (found < 0 || stream->stops[i].len > stream->stops[found].len)) {
            found = (int)i;
        }
    }
    return found;
}

/* Gives out the text from its held part up to `end` bytes of the piece, less `keep`: the held
 * bytes come from the stop string `held` (invariant 2), the rest from the piece. */
static bt_status give_out(bt_text *out, const char *held, size_t n_held, const char *piece,
                          size_t end, size_t keep)
{
    const size_t n = n_held + end - keep;
    const size_t from_held = bt_size_min(n, n_held);
    const size_t before = out->len;
    bt_status status = bt_text_append(out, held, from_held);
    if (status == BT_OK) {
        status = bt_text_append(out, piece, n - from_held);
    }
    if (status != BT_OK) {
        out->len = before;
    }
    return status;
}

bt_status bt_router_text_stream_push(bt_router_text_stream *stream, const char *piece, size_t len,
                                     bt_text *out, bool *stopped)
{
    if (stream->stop_idx >= 0) {
        *stopped = true;
        return BT_OK;
    }
    const stop_state *before = longest_match(stream);
    const char *held = before == NULL ? "" : stream->bytes + before->offset;
    const size_t n_held = before == NULL || stream->include_stop ? 0 : before->matched;

    size_t end = 0;
    int found = -1;
    while (end < len && found < 0) {
        found = advance_all(stream, piece[end++]);
    }
    size_t keep = 0;
    if (!stream->include_stop) {
        const stop_state *after = longest_match(stream);
        keep = after == NULL ? 0 : after->matched;
        if (found >= 0) {
            keep = stream->stops[found].len;
        }
    }
    BT_ASSERT(keep <= n_held + end);
    stream->stop_idx = found;
    *stopped = found >= 0;
    return give_out(out, held, n_held, piece, end, keep);
}

bt_status bt_router_text_stream_finish(bt_router_text_stream *stream, bt_text *out)
{
    const size_t n_held = bt_router_text_stream_held(stream);
    if (n_held == 0) {
        return BT_OK;
    }
    const stop_state *longest = longest_match(stream);
    const bt_status status = bt_text_append(out, stream->bytes + longest->offset, n_held);
    if (status == BT_OK) {
        for (size_t i = 0; i < stream->n_stops; i++) {
            stream->stops[i].matched = 0;
        }
    }
    return status;
}

int bt_router_text_stream_stop_idx(const bt_router_text_stream *stream)
{
    return stream->stop_idx;
}

size_t bt_router_text_stream_held(const bt_router_text_stream *stream)
{
    const stop_state *longest = longest_match(stream);
    if (longest == NULL || stream->stop_idx >= 0 || stream->include_stop) {
        return 0;
    }
    return longest->matched;
}
