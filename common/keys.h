/* SPDX-License-Identifier: Apache-2.0 */
/* keys.h - who may come in: API keys from a file that is read again when it changes.
 *
 * One key a line, '#' begins a comment:
 *
 *   NAME  SECRET                              a client
 *   NAME  SECRET                       share  its cached prefixes are shared with others that share
 *   NAME  blake2b:HEX of the secret           the same without the secret in the file
 *   NAME  SECRET                     metrics  may read /metrics, and nothing else
 *
 * NAME: 1-63 letters, digits, '-', '_', '.'; it shows in logs and limits. Two lines may have one
 * name (the old and the new secret while it is changed) if their roles agree. SECRET: 16-256
 * visible characters; `openssl rand -base64 32` makes one, `printf %s SECRET | b2sum -l 256` its
 * hash. In memory are hashes alone. A new set takes the old one's place whole; a broken file
 * changes nothing, and the log says why. Requests that were let in go on when their key is gone.
 *
 * Threading: check() any thread; everything else the thread that created it.
 * Memory:    taken at create and on each reload; bounded by BT_KEYS_MAX.
 */
#ifndef BT_COMMON_KEYS_H
#define BT_COMMON_KEYS_H

#include "common/status.h"

enum {
    BT_KEYS_MAX = 4096,
    BT_KEYS_NAME_MAX = 64, /* with the NUL */
    BT_KEYS_SECRET_MIN = 16,
    BT_KEYS_SECRET_MAX = 256,
};

typedef struct bt_keys bt_keys;

/* Whose key it was. */
typedef struct bt_keys_client {
    char name[BT_KEYS_NAME_MAX];
    bool shares; /* prefix cache, with all others that share */
} bt_keys_client;

typedef enum bt_keys_use {
    BT_KEYS_API,     /* requests of clients, by gRPC or HTTP */
    BT_KEYS_METRICS, /* GET /metrics */
} bt_keys_use;

/* Reads the file. BT_ENOTFOUND, BT_EPERMISSION, BT_EINVAL: *err says which line and what is wrong
 * with it. A file that others than its owner can read is warned about once. */
BT_MUST_CHECK bt_status bt_keys_create(const char *path, bt_keys **out, bt_error *err);

/* NULL is allowed. */
void bt_keys_destroy(bt_keys *keys);

/* Reads the file again if it is another one or has changed: to be called each second. */
void bt_keys_refresh(bt_keys *keys);

/* Is `authorization` ("Bearer SECRET"; NULL: the client sent none) a key for this use? On BT_OK
 * *client says whose (NULL allowed). BT_EPERMISSION: none, unknown, or for something else; *err
 * has a text for the client that is the same for all of these but none. Looks at every key, in
 * constant time each. */
BT_MUST_CHECK bt_status bt_keys_check(bt_keys *keys, const char *authorization, bt_keys_use use,
                                      bt_keys_client *client, bt_error *err);

size_t bt_keys_count(bt_keys *keys);

#endif /* BT_COMMON_KEYS_H */
