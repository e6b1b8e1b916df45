/* SPDX-License-Identifier: Apache-2.0 */
/* reflection.h - gRPC server reflection, v1 and v1alpha, over embedded descriptors.
 *
 * Tells clients which services a server has and what their messages look like. Descriptor sets
 * are made by protoc at build time; bt_reflection_front is that of generation.proto, health and
 * reflection, bt_reflection_worker that of worker.proto, health and reflection.
 *
 * Threading: loop thread only.
 * Memory:    create, and one object for each open stream.
 */
#ifndef BT_PROTO_REFLECTION_H
#define BT_PROTO_REFLECTION_H

#include "common/rpc.h"

typedef struct bt_reflection bt_reflection;

/* An encoded google.protobuf.FileDescriptorSet, with all that its files import. */
typedef struct bt_descriptor_set {
    const uint8_t *bytes;
    size_t len;
} bt_descriptor_set;

extern const bt_descriptor_set bt_reflection_front;
extern const bt_descriptor_set bt_reflection_worker;

/* Registers both versions; before bt_rpc_server_start(). `set` must outlive the server; all
 * of its services are listed. BT_ECORRUPT: it is no descriptor set. */
BT_MUST_CHECK bt_status bt_reflection_create(bt_rpc_server *server, const bt_descriptor_set *set,
                                             bt_reflection **out);

/* Ends open streams, for shutdown. */
void bt_reflection_stop(bt_reflection *reflection);

/* After the server was destroyed. */
void bt_reflection_destroy(bt_reflection *reflection);

#endif /* BT_PROTO_REFLECTION_H */
