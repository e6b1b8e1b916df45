/* SPDX-License-Identifier: Apache-2.0 */
#include "cli/admin.h"

#include "common/hash.h"
#include "common/log.h"
#include "common/socket.h"
#include "proto/block_id.h"

bt_status bt_admin_open(const bt_admin_options *options, bt_client **out, bt_error *err)
{
    bt_cluster_key key;
    bool is_given;
    bt_status status = bt_cli_read_cluster_key(options->cluster_key_file, &key, &is_given, err);
    if (status != BT_OK) {
        return status;
    }
    if (is_given && bt_cli_tls(&options->tls) == NULL && !bt_socket_is_local(options->attach)) {
        bt_log(
            BT_WARN,
            "the operators' token crosses the network in plain text: address=%s "
            "advice=\"--attach-tls-cert at the router and --tls-ca here, or run this beside it\"",
            options->attach);
    }
    char token[BT_CLUSTER_KEY_TOKEN_BYTES];
    bt_cluster_key_admin_token(&key, token);
    bt_hash_wipe(&key, sizeof key);
    const bt_client_options client = {
        .address = options->attach, .api_key = token, .tls = options->tls, .is_operator = true};
    status = bt_client_open(&client, out, err);
    bt_hash_wipe(token, sizeof token);
    return status;
}
