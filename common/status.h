/* SPDX-License-Identifier: Apache-2.0 */
/* status.h - the one status code of the project, and the text for a person.
 *
 * Codes are grouped by what is lost, since recovery looks at the group: nothing
 * (BT_OK, BT_AGAIN), the request, the peer, the worker. Whoever first decides a
 * code logs it once; everybody above passes it on.
 *
 * Threading: any thread (no state).
 * Memory:    none; bt_error holds its text.
 */
#ifndef BT_COMMON_STATUS_H
#define BT_COMMON_STATUS_H

#include <stdarg.h>

#include "common/base.h"

/* X(name, value, scope, text) */
#define BT_STATUS_LIST(X)                                                                          \
    X(OK, 0, NONE, "ok")                                                                           \
    X(AGAIN, 1, NONE, "no room now, try again")                                                    \
    /* the request is lost */                                                                      \
    X(EINVAL, -1, REQUEST, "invalid argument")                                                     \
    X(ENOTFOUND, -2, REQUEST, "not found")                                                         \
    X(ECANCELLED, -3, REQUEST, "cancelled")                                                        \
    X(EDEADLINE, -4, REQUEST, "deadline exceeded")                                                 \
    X(EEXHAUSTED, -5, REQUEST, "resource exhausted")                                               \
    X(ERANGE, -6, REQUEST, "out of range")                                                         \
    X(EUNSUPPORTED, -7, REQUEST, "not supported")                                                  \
    X(ECORRUPT, -8, REQUEST, "corrupt data")                                                       \
    X(EABORTED, -9, REQUEST, "aborted")                                                            \
    X(EEXISTS, -10, REQUEST, "exists already")                                                     \
    X(EPERMISSION, -11, REQUEST, "permission denied")                                              \
    /* the peer is lost */                                                                         \
    X(EPEER, -20, PEER, "peer unavailable")                                                        \
    X(EPROTOCOL, -21, PEER, "protocol violation")                                                  \
    X(EMISMATCH, -22, PEER, "peer does not match")                                                 \
    /* the worker is lost */                                                                       \
    X(ENOMEM, -40, WORKER, "out of memory")                                                        \
    X(EIO, -41, WORKER, "input/output error")                                                      \
    X(EINTERNAL, -42, WORKER, "internal error")

typedef enum bt_status {
#define BT_STATUS_ENUM(name, value, scope, text) BT_##name = (value),
    BT_STATUS_LIST(BT_STATUS_ENUM)
#undef BT_STATUS_ENUM
} bt_status;

typedef enum bt_status_scope {
    BT_STATUS_SCOPE_NONE,
    BT_STATUS_SCOPE_REQUEST,
    BT_STATUS_SCOPE_PEER,
    BT_STATUS_SCOPE_WORKER,
} bt_status_scope;

/* "EINVAL"; "?" for a number that is no code. */
const char *bt_status_name(bt_status status);

/* "invalid argument": the code in words, for logs and as the last resort for users. */
const char *bt_status_text(bt_status status);

/* What is lost with `status`. */
bt_status_scope bt_status_scope_of(bt_status status);

/* One line for a person: what could not be done and why; advice is a second
 * sentence. Always NUL-terminated; cut at its end, never inside a UTF-8 character; control
 * bytes, which a file or a peer may have put into its parts, become '?'. */
typedef struct bt_error {
    char text[256];
} bt_error;

/* Fills *err (NULL is allowed) and returns `status`, so that the place which
 * decides can write `return bt_error_set(err, BT_EINVAL, "...", ...)`. */
BT_PRINTF(3, 4)
bt_status bt_error_set(bt_error *err, bt_status status, const char *fmt, ...);

/* Puts "prefix: " before a text that a lower floor wrote. NULL is allowed. */
BT_PRINTF(2, 3)
void bt_error_prefix(bt_error *err, const char *fmt, ...);

#endif /* BT_COMMON_STATUS_H */
