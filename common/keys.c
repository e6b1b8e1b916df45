/* SPDX-License-Identifier: Apache-2.0 */
/* A set of keys is an array that is read, checked whole and then put in the old one's place, under
 * the one lock. Secrets have many bits (16 characters at least), so their plain BLAKE2b-256 is all
 * that has to be kept; a hash can't be guessed back, and comparing two takes the same time wherever
 * they differ.
 */
#include "common/keys.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "common/check.h"
#include "common/file.h"
#include "common/hash.h"
#include "common/log.h"
#include "common/name.h"

enum {
    FILE_BYTES_MAX = 2 << 20,
    WORDS_MAX = 4, /* of a line: name, secret, role, and one too many */
};

static const char HASH_PREFIX[] = "blake2b:";
static const char BEARER[] = "bearer";
static const char SPACE[] = " \t\r\n";
static const char REFUSAL[] = "this API key is not known here, or not for this";

typedef enum key_role {
    ROLE_CLIENT,
    ROLE_SHARE,
    ROLE_METRICS,
} key_role;

static const char *const role_names[] = {"client", "share", "metrics"};

typedef struct entry {
    char name[BT_KEYS_NAME_MAX];
    key_role role;
    bt_hash256 hash; /* of the secret */
} entry;

/* One reading of the file. */
typedef struct key_set {
    entry *items;
    size_t n;
} key_set;

struct bt_keys {
    char *path;
    bt_file_stamp seen; /* of the last reading, good or bad */
    bool warned;        /* of the file's mode */
    pthread_mutex_t lock;
    key_set set; /* under the lock */
};

/* ---- parsing ---- */

static bool is_secret(const char *text)
{
    const size_t len = strlen(text);
    for (size_t i = 0; i < len; i++) {
        if (text[i] <= ' ' || text[i] > '~') {
            return false;
        }
    }
    return len >= BT_KEYS_SECRET_MIN && len <= BT_KEYS_SECRET_MAX;
}

static bt_status parse_secret(const char *text, bt_hash256 *out, bt_error *err)
{
    const size_t prefix = sizeof HASH_PREFIX - 1;
    if (strncmp(text, HASH_PREFIX, prefix) == 0) {
        if (bt_hash_unhex(text + prefix, out->bytes, sizeof out->bytes) != BT_OK) {
            return bt_error_set(err, BT_EINVAL,
                                "after '%s' come 64 hex digits, as `b2sum -l 256` prints them",
                                HASH_PREFIX);
        }
        return BT_OK;
    }
    if (!is_secret(text)) {
        return bt_error_set(err, BT_EINVAL,
                            "the secret must be %d to %d visible ASCII characters. Make one with "
                            "`openssl rand -base64 32`",
                            BT_KEYS_SECRET_MIN, BT_KEYS_SECRET_MAX);
    }
    *out = bt_hash256_of(NULL, text, strlen(text));
    return BT_OK;
}

static bt_status parse_role(const char *text, key_role *out, bt_error *err)
{
    for (size_t i = 0; i < BT_ARRAY_LEN(role_names); i++) {
        if (strcmp(text, role_names[i]) == 0) {
            *out = (key_role)i;
            return BT_OK;
        }
    }
    /* Not shown: it may be a second secret. */
    return bt_error_set(err, BT_EINVAL, "the third word is no role: use share, metrics or nothing");
}

/* Cuts the line into words; returns how many, WORDS_MAX at most. */
static size_t split_words(char *line, char *words[WORDS_MAX])
{
    char *rest = NULL;
    size_t n = 0;
    for (char *w = strtok_r(line, SPACE, &rest); w != NULL && w[0] != '#' && n < WORDS_MAX;
         w = strtok_r(NULL, SPACE, &rest)) {
        words[n++] = w;
    }
    return n;
}

/* What an entry must not have in common with those before it. O(n) */
static bt_status check_against(const key_set *set, const entry *e, bt_error *err)
{
    for (size_t i = 0; i < set->n; i++) {
        const entry *other = &set->items[i];
        /* Not in constant time: both are of one file, and the loop waits for all pairs. */
        if (memcmp(&other->hash, &e->hash, sizeof e->hash) == 0) {
            return bt_error_set(err, BT_EINVAL, "'%s' has the same secret as '%s'", e->name,
                                other->name);
        }
        if (strcmp(other->name, e->name) == 0 && other->role != e->role) {
            return bt_error_set(err, BT_EINVAL, "'%s' has another role in an earlier line",
                                e->name);
        }
    }
    return BT_OK;
}

/* One line into the set; empty ones and comments add nothing. */
static bt_status parse_line(char *line, key_set *set, bt_error *err)
{
    char *words[WORDS_MAX];
    const size_t n = split_words(line, words);
    if (n == 0) {
        return BT_OK;
    }
    if (n == 1 || n == WORDS_MAX) {
        return bt_error_set(err, BT_EINVAL, "a line is: NAME SECRET [share | metrics]");
    }
    bt_status status = bt_name_check("the name", words[0], BT_KEYS_NAME_MAX, err);
    if (status != BT_OK) {
        return status;
    }
    if (set->n == BT_KEYS_MAX) {
        return bt_error_set(err, BT_EINVAL, "there are more than %d keys", BT_KEYS_MAX);
    }
    entry e = {.role = ROLE_CLIENT};
    snprintf(e.name, sizeof e.name, "%s", words[0]);
    status = parse_secret(words[1], &e.hash, err);
    if (status == BT_OK && n == 3) {
        status = parse_role(words[2], &e.role, err);
    }
    if (status == BT_OK) {
        status = check_against(set, &e, err);
    }
    if (status == BT_OK) {
        set->items[set->n++] = e;
    }
    return status;
}

/* ---- reading ---- */

static void free_set(key_set *set)
{
    if (set->items != NULL) {
        bt_hash_wipe(set->items, BT_KEYS_MAX * sizeof *set->items);
    }
    free(set->items);
    *set = (key_set){0};
}

static bt_status parse_text(char *text, const char *path, key_set *set, bt_error *err)
{
    size_t number = 0;
    for (char *line = text; line != NULL;) {
        char *end = strchr(line, '\n');
        if (end != NULL) {
            *end = '\0';
        }
        number++;
        const bt_status status = parse_line(line, set, err);
        if (status != BT_OK) {
            bt_error_prefix(err, "%s:%zu", path, number);
            return status;
        }
        line = end != NULL ? end + 1 : NULL;
    }
    if (set->n == 0) {
        return bt_error_set(err, BT_EINVAL, "%s has no keys: a line is NAME SECRET", path);
    }
    return BT_OK;
}

/* `again`: on a thread that must not wait. */
static bt_status read_set(bt_keys *keys, bool again, key_set *set, bt_error *err)
{
    /* The stamp first: what is written while we read is read again. */
    (void)bt_file_stamp_of(keys->path, &keys->seen);
    char *text = NULL;
    size_t len = 0;
    bt_status status =
        (again ? bt_file_read_regular : bt_file_read)(keys->path, FILE_BYTES_MAX, &text, &len, err);
    if (status != BT_OK) {
        bt_error_prefix(err, "API keys");
        return status;
    }
    set->items = calloc(BT_KEYS_MAX, sizeof *set->items);
    status = set->items == NULL   ? bt_error_set(err, BT_ENOMEM, "no memory for API keys")
             : strlen(text) < len ? bt_error_set(err, BT_EINVAL, "%s is no text file", keys->path)
                                  : parse_text(text, keys->path, set, err);
    bt_file_free(text, len);
    if (status != BT_OK) {
        free_set(set);
        return status;
    }
    if ((keys->seen.mode & 077) != 0 && !keys->warned) {
        keys->warned = true;
        bt_log(BT_WARN, "others may read the API keys: file=%s mode=%04o advice=\"chmod 600\"",
               keys->path, (unsigned)keys->seen.mode);
    }
    return BT_OK;
}

/* ---- public ---- */

bt_status bt_keys_create(const char *path, bt_keys **out, bt_error *err)
{
    bt_keys *keys = calloc(1, sizeof *keys);
    if (keys == NULL) {
        return bt_error_set(err, BT_ENOMEM, "no memory for API keys");
    }
    pthread_mutex_init(&keys->lock, NULL);
    keys->path = strdup(path);
    const bt_status status = keys->path == NULL
                                 ? bt_error_set(err, BT_ENOMEM, "no memory for API keys")
                                 : read_set(keys, false, &keys->set, err);
    if (status != BT_OK) {
        bt_keys_destroy(keys);
        return status;
    }
    *out = keys;
    return BT_OK;
}

void bt_keys_destroy(bt_keys *keys)
{
    if (keys == NULL) {
        return;
    }
    free_set(&keys->set);
    pthread_mutex_destroy(&keys->lock);
    free(keys->path);
    free(keys);
}

void bt_keys_refresh(bt_keys *keys)
{
    bt_file_stamp now;
    (void)bt_file_stamp_of(keys->path, &now);
    if (bt_file_stamp_equal(&now, &keys->seen)) {
        return;
    }
    key_set set = {0};
    bt_error err = {{0}};
    if (read_set(keys, true, &set, &err) != BT_OK) {
        /* Said once: until the file changes again, or is there again. */
        bt_log(BT_ERROR, "API keys kept as they were: why=\"%s\"", err.text);
        return;
    }
    pthread_mutex_lock(&keys->lock);
    key_set old = keys->set;
    keys->set = set;
    pthread_mutex_unlock(&keys->lock);
    free_set(&old);
    bt_log(BT_INFO, "API keys read: file=%s keys=%zu", keys->path, set.n);
}

static bool role_allows(key_role role, bt_keys_use use)
{
    return (role == ROLE_METRICS) == (use == BT_KEYS_METRICS);
}

/* The secret in "Bearer SECRET"; NULL: there is none. */
static const char *find_secret(const char *authorization)
{
    const size_t scheme = sizeof BEARER - 1;
    if (authorization == NULL || strncasecmp(authorization, BEARER, scheme) != 0 ||
        authorization[scheme] != ' ') {
        return NULL;
    }
    const char *secret = authorization + scheme;
    secret += strspn(secret, " ");
    return strlen(secret) <= BT_KEYS_SECRET_MAX ? secret : NULL;
}

bt_status bt_keys_check(bt_keys *keys, const char *authorization, bt_keys_use use,
                        bt_keys_client *client, bt_error *err)
{
    if (authorization == NULL) {
        return bt_error_set(err, BT_EPERMISSION,
                            "this needs an API key: 'authorization: Bearer KEY'");
    }
    const char *secret = find_secret(authorization);
    if (secret == NULL) {
        return bt_error_set(err, BT_EPERMISSION, "%s", REFUSAL);
    }
    const bt_hash256 hash = bt_hash256_of(NULL, secret, strlen(secret));
    entry found = {.role = ROLE_CLIENT};
    bool is_found = false;
    pthread_mutex_lock(&keys->lock);
    for (size_t i = 0; i < keys->set.n; i++) {
        const entry *e = &keys->set.items[i];
        if (bt_hash_equal_secret(&e->hash, &hash, sizeof hash)) {
            found = *e;
            is_found = true;
        }
    }
    pthread_mutex_unlock(&keys->lock);
    if (!is_found || !role_allows(found.role, use)) {
        return bt_error_set(err, BT_EPERMISSION, "%s", REFUSAL);
    }
    if (client != NULL) {
        *client = (bt_keys_client){.shares = found.role == ROLE_SHARE};
        memcpy(client->name, found.name, sizeof client->name);
    }
    return BT_OK;
}

size_t bt_keys_count(bt_keys *keys)
{
    pthread_mutex_lock(&keys->lock);
    const size_t n = keys->set.n;
    pthread_mutex_unlock(&keys->lock);
    return n;
}
