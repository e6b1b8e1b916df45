/* SPDX-License-Identifier: Apache-2.0 */
/* link_wire_int.h - fields of worker.proto's messages, for link_events.c, link_commands.c
 * and link_session.c.
 *
 * What is made borrows from its argument; what is got is copied.
 *
 * Threading: loop thread only.
 */
#ifndef BT_PROTO_LINK_WIRE_INT_H
#define BT_PROTO_LINK_WIRE_INT_H

#include "proto/link_int.h"

typedef Baton__Worker__V1__RequestId bt_link_pb_id;

bt_link_pb_id bt_link_make_id(bt_request_id id, uint32_t attempt);
ProtobufCBinaryData bt_link_make_bytes(const void *bytes, size_t len);
char *bt_link_make_text(const char *text);

/* false: it does not fit, or is not exactly so long. */
bool bt_link_get_text(const char *in, char *out, size_t capacity);
bool bt_link_get_name(const char *in, char *out, size_t capacity); /* or it is no name (name.h) */
bool bt_link_get_exactly(ProtobufCBinaryData in, uint8_t *out, size_t n);
bool bt_link_get_bytes(ProtobufCBinaryData in, uint8_t out[BT_LINK_ID_BYTES]);

bool bt_link_tokens_in_range(const uint32_t *tokens, size_t n);

#endif /* BT_PROTO_LINK_WIRE_INT_H */
