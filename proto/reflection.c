/* SPDX-License-Identifier: Apache-2.0 */
/* The descriptor set is not decoded but walked: of google.protobuf.FileDescriptorProto and what
 * it holds only names and nesting are needed, and a file is answered with its own bytes.
 *
 *   FileDescriptorSet   { file = 1 }
 *   FileDescriptorProto { name = 1, package = 2, message_type = 4, enum_type = 5, service = 6 }
 *   DescriptorProto     { name = 1, nested_type = 3, enum_type = 4 }
 *   ServiceDescriptor   { name = 1, method = 2 }    EnumDescriptor, MethodDescriptor { name = 1 }
 *
 * v1 and v1alpha differ in nothing but the package's name, so one code answers both. */
#include "proto/reflection.h"

#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "proto/reflection.pb-c.h"

enum {
    SERVICES_MAX = 16,
    STREAMS_MAX = 64,
    NAME_BYTES = 256,
    /* field numbers */
    NAME = 1,
    SET_FILE = 1,
    FILE_PACKAGE = 2,
    FILE_MESSAGE = 4,
    FILE_ENUM = 5,
    FILE_SERVICE = 6,
    MESSAGE_NESTED = 3,
    MESSAGE_ENUM = 4,
    SERVICE_METHOD = 2,
};

typedef struct span {
    const uint8_t *at;
    size_t len;
} span;

typedef struct stream {
    bt_reflection *reflection;
    bt_rpc_call *call;
    struct stream *prev;
    struct stream *next;
} stream;

struct bt_reflection {
    span set;
    char services[SERVICES_MAX][NAME_BYTES];
    size_t n_services;
    stream *streams;
    size_t n_streams;
};

/* ---- walking ---- */

static bool read_varint(span *in, uint64_t *out)
{
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64; shift += 7) {
        if (in->len == 0) {
            return false;
        }
        const uint8_t byte = *in->at;
        in->at++;
        in->len--;
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *out = value;
            return true;
        }
    }
    return false;
}

static bool skip(span *in, uint64_t n)
{
    if (n > in->len) {
        return false;
    }
    in->at += n;
    in->len -= (size_t)n;
    return true;
}

/* Takes one field off *in; `value` is empty unless it has a length. false: end or nonsense. */
static bool next_field(span *in, uint64_t *number, span *value)
{
    uint64_t key;
    uint64_t n;
    *value = (span){0};
    if (in->len == 0 || !read_varint(in, &key)) {
        return false;
    }
    *number = key >> 3;
    switch (key & 7) {
    case 0:
        return read_varint(in, &n);
    case 1:
        return skip(in, 8);
    case 2:
        if (!read_varint(in, &n) || n > in->len) {
            return false;
        }
        *value = (span){.at = in->at, .len = (size_t)n};
        return skip(in, n);
    case 5:
        return skip(in, 4);
    default:
        return false;
    }
}

static span find_field(span message, uint64_t wanted)
{
    uint64_t number;
    span value;
    while (next_field(&message, &number, &value)) {
        if (number == wanted) {
            return value;
        }
    }
    return (span){0};
}

static bool span_is(span s, const char *text, size_t len)
{
    return s.len == len && (len == 0 || memcmp(s.at, text, len) == 0);
}

/* The entry of `message` under one of two field numbers that has this name. */
static bool find_named(span message, uint64_t number_a, uint64_t number_b, span name, span *found,
                       uint64_t *found_number)
{
    uint64_t number;
    span value;
    while (next_field(&message, &number, &value)) {
        if ((number == number_a || number == number_b) &&
            span_is(find_field(value, NAME), (const char *)name.at, name.len)) {
            *found = value;
            *found_number = number;
            return true;
        }
    }
    return false;
}

/* Cuts the first dotted part off *path. */
static span cut_part(span *path)
{
    const uint8_t *dot = path->len > 0 ? memchr(path->at, '.', path->len) : NULL;
    span part = *path;
    if (dot == NULL) {
        *path = (span){0};
        return part;
    }
    part.len = (size_t)(dot - path->at);
    *path = (span){.at = dot + 1, .len = path->len - part.len - 1};
    return part;
}

/* Does the file declare the message, enumeration, service or method at `path`? */
static bool declares(span file, span path)
{
    span at;
    uint64_t kind;
    span part = cut_part(&path);
    if (find_named(file, FILE_SERVICE, FILE_SERVICE, part, &at, &kind)) {
        if (path.len == 0) {
            return true;
        }
        part = cut_part(&path);
        return path.len == 0 && find_named(at, SERVICE_METHOD, SERVICE_METHOD, part, &at, &kind);
    }
    if (!find_named(file, FILE_MESSAGE, FILE_ENUM, part, &at, &kind)) {
        return false;
    }
    bool is_message = kind == FILE_MESSAGE;
    while (path.len > 0) {
        part = cut_part(&path);
        if (!is_message || !find_named(at, MESSAGE_NESTED, MESSAGE_ENUM, part, &at, &kind)) {
            return false;
        }
        is_message = kind == MESSAGE_NESTED;
    }
    return true;
}

static bool find_file(const bt_reflection *r, const char *name, span *out)
{
    span set = r->set;
    uint64_t number;
    span file;
    while (next_field(&set, &number, &file)) {
        if (number == SET_FILE && span_is(find_field(file, NAME), name, strlen(name))) {
            *out = file;
            return true;
        }
    }
    return false;
}

static bool find_symbol(const bt_reflection *r, const char *symbol, span *out)
{
    span set = r->set;
    uint64_t number;
    span file;
    while (next_field(&set, &number, &file)) {
        const span package = find_field(file, FILE_PACKAGE);
        const size_t len = strlen(symbol);
        if (number != SET_FILE || len <= package.len + 1 || symbol[package.len] != '.' ||
            !span_is(package, symbol, package.len)) {
            continue;
        }
        const span path = {.at = (const uint8_t *)symbol + package.len + 1,
                           .len = len - package.len - 1};
        if (declares(file, path)) {
            *out = file;
            return true;
        }
    }
    return false;
}

static bool add_service(bt_reflection *r, span package, span name)
{
    if (r->n_services == SERVICES_MAX || package.len + name.len + 2 > NAME_BYTES || name.len == 0 ||
        package.len == 0) {
        return false;
    }
    char *out = r->services[r->n_services++];
    memcpy(out, package.at, package.len);
    out[package.len] = '.';
    memcpy(out + package.len + 1, name.at, name.len);
    out[package.len + 1 + name.len] = '\0';
    return true;
}

static bool list_services(bt_reflection *r)
{
    span set = r->set;
    uint64_t number;
    span file;
    while (set.len > 0) {
        if (!next_field(&set, &number, &file) || number != SET_FILE) {
            return false;
        }
        const span package = find_field(file, FILE_PACKAGE);
        span rest = file;
        span value;
        while (next_field(&rest, &number, &value)) {
            if (number == FILE_SERVICE && !add_service(r, package, find_field(value, NAME))) {
                return false;
            }
        }
        if (rest.len > 0) {
            return false;
        }
    }
    return true;
}

/* ---- answers ---- */

typedef Grpc__Reflection__V1__ServerReflectionRequest pb_request;
typedef Grpc__Reflection__V1__ServerReflectionResponse pb_response;

static void send_response(stream *s, pb_request *request, pb_response *response)
{
    response->valid_host = request->host;
    response->original_request = request;
    const size_t len = grpc__reflection__v1__server_reflection_response__get_packed_size(response);
    uint8_t *bytes = malloc(len);
    if (bytes == NULL) {
        bt_rpc_call_finish(s->call, BT_RPC_RESOURCE_EXHAUSTED, "out of memory", NULL, 0);
        return;
    }
    grpc__reflection__v1__server_reflection_response__pack(response, bytes);
    bt_rpc_call_send(s->call, bytes, len);
    free(bytes);
}

static void answer_error(stream *s, pb_request *request, bt_rpc_code code, const char *text)
{
    Grpc__Reflection__V1__ErrorResponse error = GRPC__REFLECTION__V1__ERROR_RESPONSE__INIT;
    error.error_code = (int32_t)code;
    error.error_message = (char *)(uintptr_t)text;
    pb_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_ERROR_RESPONSE;
    response.error_response = &error;
    send_response(s, request, &response);
}

static void answer_file(stream *s, pb_request *request, span file)
{
    ProtobufCBinaryData bytes = {.len = file.len, .data = (uint8_t *)(uintptr_t)file.at};
    Grpc__Reflection__V1__FileDescriptorResponse files =
        GRPC__REFLECTION__V1__FILE_DESCRIPTOR_RESPONSE__INIT;
    files.n_file_descriptor_proto = 1;
    files.file_descriptor_proto = &bytes;
    pb_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_FILE_DESCRIPTOR_RESPONSE;
    response.file_descriptor_response = &files;
    send_response(s, request, &response);
}

static void answer_services(stream *s, pb_request *request)
{
    bt_reflection *r = s->reflection;
    Grpc__Reflection__V1__ServiceResponse items[SERVICES_MAX];
    Grpc__Reflection__V1__ServiceResponse *pointers[SERVICES_MAX];
    for (size_t i = 0; i < r->n_services; i++) {
        grpc__reflection__v1__service_response__init(&items[i]);
        items[i].name = r->services[i];
        pointers[i] = &items[i];
    }
    Grpc__Reflection__V1__ListServiceResponse list =
        GRPC__REFLECTION__V1__LIST_SERVICE_RESPONSE__INIT;
    list.n_service = r->n_services;
    list.service = pointers;
    pb_response response = GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__INIT;
    response.message_response_case =
        GRPC__REFLECTION__V1__SERVER_REFLECTION_RESPONSE__MESSAGE_RESPONSE_LIST_SERVICES_RESPONSE;
    response.list_services_response = &list;
    send_response(s, request, &response);
}

static void answer(stream *s, pb_request *request)
{
    span file;
    switch (request->message_request_case) {
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_LIST_SERVICES:
        answer_services(s, request);
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_BY_FILENAME:
        if (find_file(s->reflection, request->file_by_filename, &file)) {
            answer_file(s, request, file);
        } else {
            answer_error(s, request, BT_RPC_NOT_FOUND, "no such file");
        }
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_SYMBOL:
        if (find_symbol(s->reflection, request->file_containing_symbol, &file)) {
            answer_file(s, request, file);
        } else {
            answer_error(s, request, BT_RPC_NOT_FOUND, "no such symbol");
        }
        return;
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_FILE_CONTAINING_EXTENSION:
    case GRPC__REFLECTION__V1__SERVER_REFLECTION_REQUEST__MESSAGE_REQUEST_ALL_EXTENSION_NUMBERS_OF_TYPE:
        answer_error(s, request, BT_RPC_NOT_FOUND, "proto3 messages have no extensions");
        return;
    default:
        answer_error(s, request, BT_RPC_INVALID_ARGUMENT, "no question in the request");
        return;
    }
}

/* ---- streams ---- */

static void on_message(bt_rpc_call *call, const uint8_t *data, size_t len, bool end, void *ctx)
{
    if (end) {
        bt_rpc_call_finish(call, BT_RPC_OK, "", NULL, 0);
        return;
    }
    pb_request *request = grpc__reflection__v1__server_reflection_request__unpack(NULL, len, data);
    if (request == NULL) {
        bt_rpc_call_finish(call, BT_RPC_INVALID_ARGUMENT, "no ServerReflectionRequest", NULL, 0);
        return;
    }
    answer(ctx, request);
    grpc__reflection__v1__server_reflection_request__free_unpacked(request, NULL);
}

static void on_sent(bt_rpc_call *call, void *ctx)
{
    (void)ctx;
    bt_rpc_call_recv(call);
}

static void on_done(bt_rpc_call *call, bt_rpc_code code, const char *message, void *ctx)
{
    (void)call;
    (void)code;
    (void)message;
    stream *s = ctx;
    if (s->prev != NULL) {
        s->prev->next = s->next;
    } else {
        s->reflection->streams = s->next;
    }
    if (s->next != NULL) {
        s->next->prev = s->prev;
    }
    s->reflection->n_streams--;
    free(s);
}

static const bt_rpc_callbacks callbacks = {on_message, on_sent, on_done};

static void on_info(bt_rpc_call *call, void *ctx)
{
    bt_reflection *r = ctx;
    stream *s = r->n_streams < STREAMS_MAX ? calloc(1, sizeof *s) : NULL;
    if (s == NULL) {
        bt_rpc_call_finish(call, BT_RPC_RESOURCE_EXHAUSTED, "too many reflection streams", NULL, 0);
        return;
    }
    s->reflection = r;
    s->call = call;
    s->next = r->streams;
    if (s->next != NULL) {
        s->next->prev = s;
    }
    r->streams = s;
    r->n_streams++;
    bt_rpc_call_accept(call, &callbacks, s);
    bt_rpc_call_recv(call);
}

bt_status bt_reflection_create(bt_rpc_server *server, const bt_descriptor_set *set,
                               bt_reflection **out)
{
    static const char *const paths[] = {
        "/grpc.reflection.v1.ServerReflection/ServerReflectionInfo",
        "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo",
    };
    bt_reflection *r = calloc(1, sizeof *r);
    if (r == NULL) {
        return BT_ENOMEM;
    }
    r->set = (span){.at = set->bytes, .len = set->len};
    bt_status status = list_services(r) ? BT_OK : BT_ECORRUPT;
    for (size_t i = 0; status == BT_OK && i < BT_ARRAY_LEN(paths); i++) {
        status = bt_rpc_server_handle(server, paths[i], on_info, r);
    }
    if (status != BT_OK) {
        free(r);
        return status;
    }
    *out = r;
    return BT_OK;
}

void bt_reflection_stop(bt_reflection *reflection)
{
    for (stream *s = reflection->streams; s != NULL; s = s->next) {
        bt_rpc_call_finish(s->call, BT_RPC_UNAVAILABLE, "the server is shutting down", NULL, 0);
    }
}

void bt_reflection_destroy(bt_reflection *reflection)
{
    if (reflection == NULL) {
        return;
    }
    BT_ASSERT(reflection->streams == NULL);
    free(reflection);
}
