/* SPDX-License-Identifier: Apache-2.0 */
/* admin.h - what the operator's commands (drain, explain) share: the way to a router's Admin
 * service, which is on its attach address and asks for the cluster key.
 *
 * Threading: one thread. Memory: the heap.
 */
#ifndef BT_CLI_ADMIN_H
#define BT_CLI_ADMIN_H

#include "cli/client.h"
#include "cli/security.h"

typedef struct bt_admin_options {
    const char *attach;
    const char *cluster_key_file;
    bt_rpc_tls tls;
} bt_admin_options;

/* Rows of the above; `group` "Request". */
#define BT_ADMIN_CONFIG_ROWS(target, member)                                                       \
    {.name = "attach",                                                                             \
     .type = BT_CONFIG_STRING,                                                                     \
     .group = "Request",                                                                           \
     .fallback = "127.0.0.1:7071",                                                                 \
     .placeholder = "HOST:PORT",                                                                   \
     .help = "Attach address of a router that the workers are attached to; one is enough.",        \
     .offset = offsetof(target, member.attach)},                                                   \
        {.name = "cluster-key-file",                                                               \
         .type = BT_CONFIG_STRING,                                                                 \
         .group = "Request",                                                                       \
         .placeholder = "FILE",                                                                    \
         .help = "Secret of the cluster, as the router has it; BATON_CLUSTER_KEY holds it too.",   \
         .offset = offsetof(target, member.cluster_key_file)},                                     \
        BT_CLI_TLS_CONFIG_ROWS(target, member.tls, "Request", "the router")

/* A client that shows the token which is derived from the cluster key. Warns where that crosses the
 * network in plain text: whoever reads it there can drain and explain from then on. */
BT_MUST_CHECK bt_status bt_admin_open(const bt_admin_options *options, bt_client **out,
                                      bt_error *err);

#endif /* BT_CLI_ADMIN_H */
