/* SPDX-License-Identifier: Apache-2.0 */
/* Where a source can be reached: its listeners, and what it tells others about them. */
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#include "common/check.h"
#include "common/log.h"
#include "common/socket.h"
#include "kvtransfer/source_int.h"

static bt_status listen_on(bt_kv_source *source, const bt_transport_ops *ops, bt_error *err)
{
    const bt_transport_env env = {.loop = source->loop, .loopback = source->options.loopback};
    const bt_status status = ops->listen(&env, &source->self, bt_source_peer_accept, source,
                                         &source->listeners[source->n_listeners], err);
    if (status == BT_OK) {
        source->n_listeners++;
    } else {
        bt_error_prefix(err, "cannot serve KV blocks over %s", ops->name);
    }
    return status;
}

/* A name becomes the number that it stands for now: sinks connect from their loop threads, which
 * must not wait for a name server. */
static bt_status number_host(char address[BT_KV_ADDRESS_BYTES], bt_error *err)
{
    bt_socket_address resolved;
    char text[BT_SOCKET_TEXT_BYTES];
    if (strchr(":[*", address[0])) { /* none, any, or a number in brackets */
        return BT_OK;
    }
    const bt_status status = bt_socket_resolve(address, false, &resolved, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot advertise '%s' to decode workers", address);
        return status;
    }
    bt_socket_address_text(&resolved, text);
    const size_t len = strlen(text);
    BT_ASSERT(len < BT_KV_ADDRESS_BYTES); /* a number and a port */
    memcpy(address, text, len + 1);
    return BT_OK;
}

/* Puts the advertised host in front of the port that we got. */
static bt_status advertise(bt_kv_source *source, bt_error *err)
{
    const char *host = source->options.advertise_host;
    const char *colon = strrchr(source->self.tcp, ':');
    if (!host || host[0] == '\0' || !colon) {
        return number_host(source->self.tcp, err);
    }
    char tcp[BT_KV_ADDRESS_BYTES];
    const bool is_ipv6 = strchr(host, ':') && host[0] != '[';
    const int n =
        snprintf(tcp, sizeof tcp, "%s%s%s%s", is_ipv6 ? "[" : "", host, is_ipv6 ? "]" : "", colon);
    if (n < 0 || (size_t)n >= sizeof tcp) {
        return bt_error_set(err, BT_EINVAL, "advertised host '%.60s' is too long", host);
    }
    memcpy(source->self.tcp, tcp, sizeof tcp);
    return number_host(source->self.tcp, err);
}

static bt_status copy_address(char out[BT_KV_ADDRESS_BYTES], const char *address, bt_error *err)
{
    if (address && strlen(address) >= BT_KV_ADDRESS_BYTES) {
        return bt_error_set(err, BT_EINVAL, "KV address '%.60s...' is too long", address);
    }
    (void)snprintf(out, BT_KV_ADDRESS_BYTES, "%s", address ? address : "");
    return BT_OK;
}

/* Peers get a descriptor that can't be mapped for writing. */
static void open_read_only(bt_kv_source *source)
{
    char path[64];
    if (source->options.pool_fd >= 0 && source->options.shm_address) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", source->options.pool_fd);
        source->share_fd = open(path, O_RDONLY | O_CLOEXEC);
        if (source->share_fd < 0) {
            bt_log(BT_WARN, "kv over shm is off: the pool can't be opened read-only, path=%s",
                   path);
        }
    }
}

bt_status bt_source_listen(bt_kv_source *source, bt_error *err)
{
    const bt_kv_source_options *o = &source->options;
    open_read_only(source);
    bt_status status = copy_address(source->self.tcp, o->tcp_address, err);
    if (status == BT_OK) {
        status = copy_address(source->self.shm, source->share_fd >= 0 ? o->shm_address : NULL, err);
    }
    if (status == BT_OK && source->self.tcp[0] != '\0') {
        source->options.auth = bt_transport_auth(o->auth, source->self.tcp);
        status = listen_on(source, &bt_transport_tcp, err);
    }
    if (status == BT_OK && source->self.shm[0] != '\0') {
        status = listen_on(source, &bt_transport_shm, err);
    }
    if (status == BT_OK && o->loopback) {
        status = listen_on(source, &bt_transport_loopback, err);
    }
    return status == BT_OK ? advertise(source, err) : status;
}
