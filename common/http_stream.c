/* SPDX-License-Identifier: Apache-2.0 */
/* A stream has two sides: the owner, who puts records into its buffer, and the server's thread,
 * which gives them to libmicrohttpd when that asks. Invariants:
 *   1. a connection that is not suspended asks by itself, so who adds something only has to see to
 *      it that a suspended one is resumed: the stream joins `awake` and the bell is rung;
 *   2. the server's thread suspends only inside libmicrohttpd's callbacks, after it found nothing;
 *      what is added after that look rings the bell again;
 *   3. the stream is freed when the request is over and the owner has taken it, whichever is last.
 *
 * Records keep the owner's pieces whole: each chunk on the wire is one piece or several, and a
 * piece is cut only when it is longer than libmicrohttpd's buffer. Naive clients that look for
 * lines in a chunked body live from that. */
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/http_int.h"

enum {
    RECORD_HEAD = sizeof(uint32_t),
    BUFFER_BYTES = 1024, /* at first */
    BLOCK_BYTES = 8 << 10,
};

/* ---------------------------------------------------------------------- both sides, locked ---- */

/* false: still in use. Mutex held. */
static bool free_if_over(bt_http_stream *stream)
{
    if (!stream->is_taken || stream->connection != NULL) {
        return false;
    }
    stream->server->n_streams--;
    bt_http_link_remove(&stream->awake);
    bt_http_link_remove(&stream->news_link);
    if (stream->response != NULL) {
        MHD_destroy_response(stream->response);
    }
    free(stream->bytes);
    free(stream);
    return true;
}

/* Something for the server's thread. */
static void mark_awake(bt_http_stream *stream)
{
    if (stream->connection != NULL && bt_http_link_is_alone(&stream->awake)) {
        bt_http_link_add(&stream->server->awake, &stream->awake);
        bt_http_server_wake(stream->server);
    }
}

/* Something for the owner. true: on_news() is to be called, without the mutex. */
static bool mark_news(bt_http_stream *stream, unsigned news)
{
    if (stream->is_taken) {
        return false;
    }
    stream->news |= news;
    if (bt_http_link_is_alone(&stream->news_link)) {
        bt_http_link_add(&stream->server->news, &stream->news_link);
    }
    return true;
}

static void tell(bt_http_server *server, bool is_news)
{
    if (is_news && server->options.hooks.on_news != NULL) {
        server->options.hooks.on_news(server->options.hooks.ctx);
    }
}

/* ------------------------------------------------------------------------- server's thread ---- */

bt_status bt_http_defer(bt_http_request *request, void *ctx)
{
    BT_ASSERT(!request->answered);
    BT_ASSERT(request->connection->stream == NULL);
    bt_http_server *server = request->server;
    bt_http_stream *stream = calloc(1, sizeof *stream);
    if (stream == NULL) {
        return BT_ENOMEM;
    }
    stream->server = server;
    stream->ctx = ctx;
    stream->connection = request->connection;
    bt_http_link_init(&stream->awake);
    bt_http_link_init(&stream->news_link);
    request->answered = true;
    request->connection->stream = stream;
    server->n_deferred++;
    pthread_mutex_lock(&server->mutex);
    server->n_streams++;
    const bool is_news = mark_news(stream, BT_HTTP_BEGAN);
    pthread_mutex_unlock(&server->mutex);
    tell(server, is_news);
    return BT_OK;
}

static void suspend(bt_http_connection *connection)
{
    BT_ASSERT(!connection->suspended);
    connection->suspended = true;
    MHD_suspend_connection(connection->mhd);
}

void bt_http_connection_resume(bt_http_connection *connection)
{
    if (connection->suspended) {
        connection->suspended = false;
        MHD_resume_connection(connection->mhd);
    }
}

void bt_http_streams_resume(bt_http_server *server)
{
    while (!bt_http_link_is_alone(&server->awake)) {
        bt_http_stream *stream = bt_container_of(server->awake.next, bt_http_stream, awake);
        bt_http_link_remove(&stream->awake);
        bt_http_connection_resume(stream->connection);
    }
}

bool bt_http_stream_is_taken(bt_http_connection *connection)
{
    bt_http_stream *stream = connection->stream;
    pthread_mutex_lock(&stream->server->mutex);
    const bool is_taken = stream->is_taken;
    pthread_mutex_unlock(&stream->server->mutex);
    return is_taken;
}

bool bt_http_stream_go_on(bt_http_connection *connection)
{
    bt_http_stream *stream = connection->stream;
    pthread_mutex_lock(&stream->server->mutex);
    struct MHD_Response *response = stream->response;
    stream->response = NULL;
    const bool is_cut = stream->is_cut || connection->lost;
    pthread_mutex_unlock(&stream->server->mutex);
    bool good = !is_cut;
    if (good && response != NULL) {
        good = MHD_queue_response(connection->mhd, stream->code, response) == MHD_YES;
    } else if (good) {
        suspend(connection);
    }
    if (response != NULL) {
        MHD_destroy_response(response); /* the queue holds its own reference */
    }
    return good;
}

void bt_http_stream_over(bt_http_connection *connection)
{
    bt_http_stream *stream = connection->stream;
    bt_http_server *server = stream->server;
    connection->stream = NULL;
    server->n_deferred--;
    pthread_mutex_lock(&server->mutex);
    stream->connection = NULL;
    bt_http_link_remove(&stream->awake);
    const bool is_news = !free_if_over(stream) && mark_news(stream, BT_HTTP_GONE);
    pthread_mutex_unlock(&server->mutex);
    tell(server, is_news);
}

/* Whole records as far as they fit; of one that alone does not, a part. */
static size_t copy_records(bt_http_stream *stream, char *to, size_t room)
{
    size_t n = 0;
    while (stream->begin < stream->end && n < room) {
        size_t left = stream->record_left;
        if (left == 0) {
            uint32_t len;
            memcpy(&len, stream->bytes + stream->begin, RECORD_HEAD);
            if (n > 0 && len > room - n) {
                break;
            }
            left = len;
            stream->begin += RECORD_HEAD;
        }
        const size_t part = bt_size_min(left, room - n);
        memcpy(to + n, stream->bytes + stream->begin, part);
        stream->begin += part;
        stream->record_left = left - part;
        n += part;
    }
    stream->unsent -= n;
    return n;
}

static ssize_t on_read(void *ctx, uint64_t at, char *to, size_t room)
{
    (void)at;
    bt_http_stream *stream = ctx;
    bt_http_server *server = stream->server;
    bt_http_connection *connection = stream->connection; /* this thread alone clears it */
    bool is_news = false;
    pthread_mutex_lock(&server->mutex);
    const bool is_cut = stream->is_cut || connection->lost;
    const bool is_end = stream->is_taken;
    const size_t n = is_cut ? 0 : copy_records(stream, to, room);
    if (stream->wants_room && stream->unsent < server->options.unsent_bytes_max) {
        stream->wants_room = false;
        is_news = mark_news(stream, BT_HTTP_ROOM);
    }
    pthread_mutex_unlock(&server->mutex);
    tell(server, is_news);
    if (is_cut) {
        return MHD_CONTENT_READER_END_WITH_ERROR;
    }
    if (n > 0) {
        return (ssize_t)n;
    }
    if (is_end) {
        return MHD_CONTENT_READER_END_OF_STREAM;
    }
    suspend(connection);
    return 0;
}

/* ------------------------------------------------------------------------- owner's thread ---- */

bt_http_stream *bt_http_server_next(bt_http_server *server, unsigned *news, void **ctx)
{
    bt_http_stream *stream = NULL;
    pthread_mutex_lock(&server->mutex);
    if (!bt_http_link_is_alone(&server->news)) {
        stream = bt_container_of(server->news.next, bt_http_stream, news_link);
        bt_http_link_remove(&stream->news_link);
        *news = stream->news;
        *ctx = stream->ctx;
        stream->news = 0;
    }
    pthread_mutex_unlock(&server->mutex);
    return stream;
}

/* Leaves the head to the server's thread. `response` NULL: out of memory, the stream is cut. */
static void set_head(bt_http_stream *stream, unsigned code, struct MHD_Response *response,
                     const char *content_type, const bt_http_header *headers, size_t n_headers)
{
    const bool good =
        response != NULL && bt_http_add_headers(response, content_type, headers, n_headers);
    pthread_mutex_lock(&stream->server->mutex);
    BT_ASSERT(!stream->has_begun);
    stream->has_begun = true;
    stream->code = code;
    stream->response = response;
    stream->is_cut = stream->is_cut || !good;
    mark_awake(stream);
    pthread_mutex_unlock(&stream->server->mutex);
}

static void take(bt_http_stream **taken, bool is_cut)
{
    bt_http_stream *stream = *taken;
    bt_http_server *server = stream->server;
    *taken = NULL;
    pthread_mutex_lock(&server->mutex);
    BT_ASSERT(!stream->is_taken);
    stream->is_taken = true;
    stream->is_cut = stream->is_cut || is_cut;
    bt_http_link_remove(&stream->news_link);
    mark_awake(stream);
    (void)free_if_over(stream);
    pthread_mutex_unlock(&server->mutex);
}

void bt_http_stream_respond(bt_http_stream **stream, unsigned code, const char *content_type,
                            const bt_http_header *headers, size_t n_headers, const void *body,
                            size_t len)
{
    struct MHD_Response *response =
        MHD_create_response_from_buffer(len, (void *)(uintptr_t)body, MHD_RESPMEM_MUST_COPY);
    set_head(*stream, code, response, content_type, headers, n_headers);
    take(stream, false);
}

void bt_http_stream_begin(bt_http_stream *stream, unsigned code, const char *content_type,
                          const bt_http_header *headers, size_t n_headers)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, BLOCK_BYTES, on_read, stream, NULL);
    set_head(stream, code, response, content_type, headers, n_headers);
}

bool bt_http_stream_has_room(bt_http_stream *stream)
{
    pthread_mutex_lock(&stream->server->mutex);
    const bool has_room = stream->unsent < stream->server->options.unsent_bytes_max;
    stream->wants_room = !has_room;
    pthread_mutex_unlock(&stream->server->mutex);
    return has_room;
}

/* Room for n bytes behind `end`. */
static bool make_room(bt_http_stream *stream, size_t n)
{
    if (stream->begin > 0 && stream->end + n > stream->capacity) {
        memmove(stream->bytes, stream->bytes + stream->begin, stream->end - stream->begin);
        stream->end -= stream->begin;
        stream->begin = 0;
    }
    if (stream->end + n <= stream->capacity) {
        return true;
    }
    const size_t capacity =
        bt_size_max(bt_size_max(2 * stream->capacity, BUFFER_BYTES), stream->end + n);
    char *grown = realloc(stream->bytes, capacity);
    if (grown == NULL) {
        return false;
    }
    stream->bytes = grown;
    stream->capacity = capacity;
    return true;
}

void bt_http_stream_send(bt_http_stream *stream, const void *bytes, size_t len)
{
    BT_ASSERT(len > 0 && len <= UINT32_MAX);
    const uint32_t record = (uint32_t)len;
    pthread_mutex_lock(&stream->server->mutex);
    BT_ASSERT(stream->has_begun);
    if (stream->connection != NULL && !stream->is_cut) {
        if (make_room(stream, RECORD_HEAD + len)) {
            memcpy(stream->bytes + stream->end, &record, RECORD_HEAD);
            memcpy(stream->bytes + stream->end + RECORD_HEAD, bytes, len);
            stream->end += RECORD_HEAD + len;
            stream->unsent += len;
        } else {
            stream->is_cut = true;
        }
        mark_awake(stream);
    }
    pthread_mutex_unlock(&stream->server->mutex);
}

void bt_http_stream_end(bt_http_stream **stream)
{
    take(stream, false);
}

void bt_http_stream_cut(bt_http_stream **stream)
{
    take(stream, true);
}
