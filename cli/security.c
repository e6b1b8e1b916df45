/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/security.h"

#include <stdlib.h>
#include <string.h>

#include "common/file.h"
#include "common/log.h"
#include "common/socket.h"

static bool is_given(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* ---- cluster key ---- */

static bt_status key_from_file(const char *path, bt_cluster_key *key, bt_error *err)
{
    char *text = NULL;
    size_t len = 0;
    bt_status status = bt_file_read(path, BT_CLUSTER_KEY_BYTES_MAX + 2, &text, &len, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cluster key");
        return status;
    }
    size_t n = len;
    while (n > 0 && (text[n - 1] == '\n' || text[n - 1] == '\r')) {
        n--;
    }
    status = bt_cluster_key_init(key, text, n, err);
    bt_file_free(text, len);
    if (status != BT_OK) {
        bt_error_prefix(err, "cluster key file '%s'", path);
    }
    return status;
}

static void warn_of_mode(const char *path)
{
    bt_file_stamp stamp;
    if (bt_file_stamp_of(path, &stamp) == BT_OK && (stamp.mode & 077) != 0) {
        bt_log(BT_WARN, "others may read the cluster key: file=%s mode=%04o advice=\"chmod 600\"",
               path, (unsigned)stamp.mode);
    }
}

bt_status bt_cli_read_cluster_key(const char *path, bt_cluster_key *key, bool *is_given_out,
                                  bt_error *err)
{
    static const char none[] = "a cluster without a key of its own";
    *is_given_out = true;
    if (is_given(path)) {
        warn_of_mode(path);
        return key_from_file(path, key, err);
    }
    const char *secret = getenv("BATON_CLUSTER_KEY");
    if (is_given(secret)) {
        const bt_status status = bt_cluster_key_init(key, secret, strlen(secret), err);
        if (status != BT_OK) {
            bt_error_prefix(err, "BATON_CLUSTER_KEY");
        }
        return status;
    }
    *is_given_out = false;
    return bt_cluster_key_init(key, none, sizeof none - 1, err);
}

/* ---- doors ---- */

bt_status bt_cli_check_door(bt_cli_door door, const char *flag, const char *address,
                            const bt_cli_guards *guards, bt_error *err)
{
    static const struct {
        const char *who;
        const char *advice;
    } texts[] = {
        [BT_CLI_DOOR_CLIENTS] = {"whoever reaches it could use the models",
                                 "--api-keys FILE (docs/security.md), or --tls-client-ca FILE"},
        [BT_CLI_DOOR_METRICS] = {"whoever reaches it could read /metrics",
                                 "--api-keys FILE with a key for metrics"},
        [BT_CLI_DOOR_CLUSTER] = {"whoever reaches it could join the cluster and read prompts",
                                 "--cluster-key-file FILE or BATON_CLUSTER_KEY"},
    };
    const bool is_guarded =
        door == BT_CLI_DOOR_CLIENTS
            ? guards->has_keys || guards->has_client_ca
            : (door == BT_CLI_DOOR_METRICS ? guards->has_keys : guards->has_cluster_key);
    if (!is_given(address) || strcmp(address, "none") == 0 || guards->insecure || is_guarded ||
        bt_socket_is_local(address)) {
        return BT_OK;
    }
    bt_socket_address resolved;
    const bt_status status = bt_socket_resolve(address, true, &resolved, err);
    if (status != BT_OK) { /* whoever listens could read it as an address all the same */
        bt_error_prefix(err, "%s", flag);
        return status;
    }
    return bt_error_set(err, BT_EINVAL,
                        "%s %.64s is open to other hosts, and %s. Give %s, or say --insecure", flag,
                        address, texts[door].who, texts[door].advice);
}

const bt_rpc_tls *bt_cli_tls(const bt_rpc_tls *tls)
{
    const bool wants = is_given(tls->ca) || is_given(tls->cert) || is_given(tls->key) ||
                       is_given(tls->server_name);
    return wants ? tls : NULL;
}
