/* SPDX-License-Identifier: Apache-2.0 */
/* What events and commands have in common on their way to worker.proto's messages and back. */
#include "proto/link_wire_int.h"

#include <string.h>

#include "common/name.h"

bt_link_pb_id bt_link_make_id(bt_request_id id, uint32_t attempt)
{
    bt_link_pb_id out = BATON__WORKER__V1__REQUEST_ID__INIT;
    out.hi = id.hi;
    out.lo = id.lo;
    out.attempt = attempt;
    return out;
}

ProtobufCBinaryData bt_link_make_bytes(const void *bytes, size_t len)
{
    return (ProtobufCBinaryData){.len = len, .data = (uint8_t *)(uintptr_t)bytes};
}

char *bt_link_make_text(const char *text)
{
    return (char *)(uintptr_t)text;
}

bool bt_link_get_text(const char *in, char *out, size_t capacity)
{
    const size_t len = strlen(in);
    if (len >= capacity) {
        return false;
    }
    memcpy(out, in, len + 1);
    return true;
}

bool bt_link_get_name(const char *in, char *out, size_t capacity)
{
    return bt_name_is_valid(in, capacity) && bt_link_get_text(in, out, capacity);
}

bool bt_link_get_exactly(ProtobufCBinaryData in, uint8_t *out, size_t n)
{
    if (in.len != n) {
        return false;
    }
    memcpy(out, in.data, n);
    return true;
}

bool bt_link_get_bytes(ProtobufCBinaryData in, uint8_t out[BT_LINK_ID_BYTES])
{
    return bt_link_get_exactly(in, out, BT_LINK_ID_BYTES);
}

/* Token ids are never negative, so one array serves both signs. */
bool bt_link_tokens_in_range(const uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        if (tokens[i] > INT32_MAX) {
            return false;
        }
    }
    return true;
}

bool bt_link_get_id(const bt_link_pb_id *in, bt_request_id *id, uint32_t *attempt)
{
    if (in == NULL) {
        return false;
    }
    *id = (bt_request_id){.hi = in->hi, .lo = in->lo};
    *attempt = in->attempt;
    return true;
}
