/* SPDX-License-Identifier: Apache-2.0 */
/* security.h - the secrets that commands show, and what an open address has to ask for.
 *
 * An address that only this host reaches (loopback, a unix socket) may be open. Any other one
 * asks for something: clients for an API key or a certificate, members of the cluster for the
 * cluster key. Without it the process does not start, unless the operator says --insecure.
 *
 * Threading: the main thread. Memory: none.
 */
#ifndef BT_CLI_SECURITY_H
#define BT_CLI_SECURITY_H

#include "common/config.h"
#include "common/rpc.h"
#include "proto/block_id.h"

/* Reads the cluster key from the file, or from BATON_CLUSTER_KEY if `path` is NULL or "". Without
 * either *is_given is false, and *key the one that all clusters without a key have. BT_EINVAL,
 * BT_ENOTFOUND, BT_EPERMISSION: *err says which and why. */
BT_MUST_CHECK bt_status bt_cli_read_cluster_key(const char *path, bt_cluster_key *key,
                                                bool *is_given, bt_error *err);

typedef enum bt_cli_door {
    BT_CLI_DOOR_CLIENTS, /* --listen, --http */
    BT_CLI_DOOR_METRICS, /* --admin */
    BT_CLI_DOOR_CLUSTER, /* --attach, --kv-address */
} bt_cli_door;

/* What a process has to ask with. */
typedef struct bt_cli_guards {
    bool has_keys;        /* --api-keys */
    bool has_client_ca;   /* --tls-client-ca */
    bool has_cluster_key; /* --cluster-key-file, BATON_CLUSTER_KEY */
    bool insecure;        /* --insecure */
} bt_cli_guards;

/* May this process listen on `address` (NULL, "", "none": it does not)? BT_EINVAL: nobody would
 * have to show anything there, and others reach it; *err names `flag` and what to give. Also
 * BT_EINVAL, BT_ENOTFOUND: it is no address, as bt_socket_resolve() has it. */
BT_MUST_CHECK bt_status bt_cli_check_door(bt_cli_door door, const char *flag, const char *address,
                                          const bt_cli_guards *guards, bt_error *err);

/* Rows of a client's side of TLS, into a bt_rpc_tls; `whom` is "the router". */
#define BT_CLI_TLS_CONFIG_ROWS(target, member, group_name, whom)                                   \
    {.name = "tls-ca",                                                                             \
     .type = BT_CONFIG_STRING,                                                                     \
     .group = group_name,                                                                          \
     .placeholder = "FILE",                                                                        \
     .help = "Uses TLS and trusts " whom " by a certificate of this authority (PEM); 'system': "   \
             "of this system's.",                                                                  \
     .offset = offsetof(target, member.ca)},                                                       \
        {.name = "tls-cert",                                                                       \
         .type = BT_CONFIG_STRING,                                                                 \
         .group = group_name,                                                                      \
         .placeholder = "FILE",                                                                    \
         .help = "Certificate to show where one is asked for; with --tls-ca.",                     \
         .offset = offsetof(target, member.cert)},                                                 \
        {.name = "tls-key",                                                                        \
         .type = BT_CONFIG_STRING,                                                                 \
         .group = group_name,                                                                      \
         .placeholder = "FILE",                                                                    \
         .help = "Its private key.",                                                               \
         .offset = offsetof(target, member.key)},                                                  \
    {                                                                                              \
        .name = "tls-name", .type = BT_CONFIG_STRING, .group = group_name, .placeholder = "NAME",  \
        .help = "Name that the certificate must have; the host of the address if not given.",      \
        .offset = offsetof(target, member.server_name)                                             \
    }

/* `tls` if any of it is given, else NULL: plain text. bt_rpc_tls_check() then says what is missing:
 * who gives a certificate or a name means TLS, and must not show keys in plain text. */
const bt_rpc_tls *bt_cli_tls(const bt_rpc_tls *tls);

#endif /* BT_CLI_SECURITY_H */
