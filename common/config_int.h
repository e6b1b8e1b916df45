/* SPDX-License-Identifier: Apache-2.0 */
/* config_int.h - what the three sources of config share. */
#ifndef BT_COMMON_CONFIG_INT_H
#define BT_COMMON_CONFIG_INT_H

#include "common/config.h"

enum { BT_CONFIG_NAME_BYTES = 96 };

/* Where a value came from; a higher one beats a lower one. */
typedef enum bt_config_level {
    BT_CONFIG_LEVEL_NONE,
    BT_CONFIG_LEVEL_DEFAULT,
    BT_CONFIG_LEVEL_FILE,
    BT_CONFIG_LEVEL_SECTION,
    BT_CONFIG_LEVEL_ENV,
    BT_CONFIG_LEVEL_FLAG,
} bt_config_level;

/* One option's value as it was written. */
typedef struct bt_config_entry {
    bt_config_level level;
    char *source;
    char **items; /* one, but for BT_CONFIG_STRINGS */
    size_t n_items;
} bt_config_entry;

struct bt_config {
    const bt_config_spec *spec;
    bt_config_entry *entries; /* [spec->n_options] */
    char **arguments;
    size_t n_arguments;
    bt_config_action wanted;
};

/* Checks `text` against the option's type and range and stores it at `field` (NULL: only
 * checks). Strings are borrowed. BT_EINVAL: *err says what is wrong and what to write,
 * without the source. Not for BT_CONFIG_STRINGS, whose items are any text. */
bt_status bt_config_convert(const bt_config_option *option, const char *text, void *field,
                            bt_error *err);

/* "1 to 1024 threads", "4KiB or more"; "" where all values are allowed. */
void bt_config_range_text(const bt_config_option *option, char *out, size_t out_bytes);

/* "BATON_KV_POOL_BYTES". */
void bt_config_env_name(const char *name, char out[BT_CONFIG_NAME_BYTES]);

#endif /* BT_COMMON_CONFIG_INT_H */
