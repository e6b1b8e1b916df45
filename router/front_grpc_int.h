/* SPDX-License-Identifier: Apache-2.0 */
/* front_grpc_int.h - the gRPC front's own parts: messages in (front_grpc_parse.c), messages
 * out (front_grpc_pack.c). Protobuf's types stay in these three files.
 *
 * Threading: loop thread only.
 */
#ifndef BT_ROUTER_FRONT_GRPC_INT_H
#define BT_ROUTER_FRONT_GRPC_INT_H

#include "proto/generation.pb-c.h"
#include "router/router_int.h"

/* Unpacks a message; BT_EINVAL: it is malformed, or a string in it is no UTF-8 or has a NUL
 * byte; *err names the field and the byte. Free it with protobuf_c_message_free_unpacked(). */
BT_MUST_CHECK bt_status bt_router_front_grpc_unpack(const ProtobufCMessageDescriptor *descriptor,
                                                    const uint8_t *bytes, size_t len,
                                                    ProtobufCMessage **out, bt_error *err);

/* A chat of a message as plain structs, borrowed from it; the caller frees *out. */
BT_MUST_CHECK bt_status bt_router_front_grpc_chat(const Baton__V1__Chat *chat,
                                                  bt_chat_message **out);

/* What submit() needs, borrowed from `message`; the caller frees *messages. BT_EINVAL: *err
 * names the field. */
BT_MUST_CHECK bt_status bt_router_front_grpc_request(const Baton__V1__GenerateRequest *message,
                                                     bt_router_front_request *out,
                                                     bt_chat_message **messages, bt_error *err);

/* Appends a message's bytes. BT_ENOMEM. */
BT_MUST_CHECK bt_status bt_router_front_grpc_pack(const ProtobufCMessage *message, bt_text *out);

/* Appends a string field, whatever bytes it has (protobuf-c ends strings at a NUL). */
BT_MUST_CHECK bt_status bt_router_front_grpc_pack_string(uint32_t field, const char *text,
                                                         size_t len, bt_text *out);

/* Appends the GenerateReply of a delta. */
BT_MUST_CHECK bt_status bt_router_front_grpc_pack_delta(const bt_tokenizer *tokenizer,
                                                        const bt_router_delta *delta, bt_text *out);

BT_MUST_CHECK bt_status bt_router_front_grpc_pack_models(const bt_router *router, bt_text *out);
BT_MUST_CHECK bt_status bt_router_front_grpc_pack_status(const bt_router *router, bt_text *out);

#endif /* BT_ROUTER_FRONT_GRPC_INT_H */
