/* SPDX-License-Identifier: Apache-2.0 */
/* config.h - one table of options that feeds flags, environment, YAML, --help and --print-config.
 *
 * An option "kv-pool-bytes" is the flag --kv-pool-bytes VALUE (or --kv-pool-bytes=VALUE),
 * the variable BATON_KV_POOL_BYTES and the YAML key kv-pool-bytes (kv_pool_bytes works
 * too); booleans are --name and --no-name. A flag beats the environment, that beats the
 * file, that beats the default. Every parser has --help (-h), --config FILE (BATON_CONFIG)
 * and --print-config besides.
 *
 *   struct options { const char *listen; int64_t n_threads; uint64_t pool_bytes; };
 *   static const bt_config_option options[] = {
 *       {.name = "listen", .type = BT_CONFIG_STRING, .group = "Network",
 *        .fallback = "127.0.0.1:7000", .placeholder = "HOST:PORT",
 *        .help = "Where clients connect.", .offset = offsetof(struct options, listen)},
 *       {.name = "threads", .type = BT_CONFIG_INT, .group = "Compute", .unit = "threads",
 *        .min = 1, .max = 1024, .help = "Threads of the model; the number of cores if not given.",
 *        .offset = offsetof(struct options, n_threads)},
 *       ...
 *
 * YAML files: keys at the top are for every command that reads the file; a mapping under
 * the name of a command (spec.section, like "worker:") is for that one alone and beats the
 * top. A key that the command does not know is an error with its line and a near name.
 * An empty variable counts as not set.
 *
 * Threading: the thread that created it.
 * Memory:    strings and lists written to the target live until bt_config_destroy().
 */
#ifndef BT_COMMON_CONFIG_H
#define BT_COMMON_CONFIG_H

#include <stdio.h>

#include "common/status.h"

typedef enum bt_config_type {
    BT_CONFIG_STRING,   /* const char *, NULL without value and fallback */
    BT_CONFIG_BOOL,     /* bool; flags --name and --no-name; true/false, yes/no, on/off, 1/0 */
    BT_CONFIG_INT,      /* int64_t */
    BT_CONFIG_FLOAT,    /* double */
    BT_CONFIG_BYTES,    /* uint64_t; 4096, 16K, 16M, 2GiB (all of 1,024), 2GB (of 1,000) */
    BT_CONFIG_DURATION, /* int64_t ns; 250ms, 10s, 1.5s, 2m, 1h, 100us; 0 alone needs no unit */
    BT_CONFIG_ENUM,     /* int: index into choices */
    BT_CONFIG_STRINGS,  /* bt_config_list; the flag again adds one; in variables split at ',' */
} bt_config_type;

typedef struct bt_config_list {
    const char *const *items; /* NULL when n is 0 */
    size_t n;
} bt_config_list;

typedef struct bt_config_option {
    const char *name; /* "kv-pool-bytes": lower case, digits, hyphens */
    bt_config_type type;
    const char *group;          /* heading in --help; options of one group stand together */
    const char *help;           /* sentences: what it does, when to change it */
    const char *unit;           /* of INT and FLOAT: "tokens", "threads"; NULL for none */
    const char *placeholder;    /* in --help instead of the type's own: "FILE", "HOST:PORT" */
    const char *fallback;       /* the default as a user would write it; NULL: the field stays as
                                   the caller set it, and --help shows no default */
    const char *const *choices; /* ENUM: NULL-terminated */
    int64_t min, max; /* INT; BYTES; DURATION in ns. Both 0: any (BYTES, DURATION: 0 or more) */
    double float_min, float_max; /* FLOAT; both 0: any finite number */
    bool secret;                 /* --print-config says that it is set, not what it is */
    size_t offset;               /* of the field in the target struct */
} bt_config_option;

typedef struct bt_config_spec {
    const char *command;   /* "baton worker": in --help */
    const char *section;   /* "worker": its mapping in YAML files; NULL: none */
    const char *summary;   /* first lines of --help */
    const char *arguments; /* "[PROMPT]": in --help; NULL: positional arguments are refused */
    const char *examples;  /* last lines of --help, NULL for none */
    const bt_config_option *options;
    size_t n_options;
    const char *const *other_sections; /* NULL-terminated names of further commands' mappings, which
                                          are skipped; NULL: every mapping may stand there */
} bt_config_spec;

typedef struct bt_config bt_config;

typedef enum bt_config_action {
    BT_CONFIG_RUN,   /* go on */
    BT_CONFIG_HELP,  /* --help was given: print it, exit with 0 */
    BT_CONFIG_PRINT, /* --print-config was given: print it, exit with 0 */
} bt_config_action;

/* Reads argv[1..argc-1], the environment and the file, and fills the struct at `target`
 * (zeroed or pre-set by the caller; fields without value and fallback are left alone).
 * "--" ends the flags. With --help nothing else is checked and the target is untouched.
 * BT_EINVAL: *err names the source ("--x", "BATON_X", "baton.yaml:12") and what to write;
 * BT_ENOTFOUND: no such file; BT_ENOMEM. The target may be partly filled then. */
BT_MUST_CHECK bt_status bt_config_parse(const bt_config_spec *spec, int argc, char *const argv[],
                                        void *target, bt_config **out, bt_error *err);
void bt_config_destroy(bt_config *config);

bt_config_action bt_config_wanted(const bt_config *config);

/* Words that are no flags, in order. */
bt_config_list bt_config_arguments(const bt_config *config);

/* True when flag, environment or file gave it: "default" can mean "choose for me". */
bool bt_config_is_set(const bt_config *config, const char *name);

/* "--threads", "BATON_THREADS", "baton.yaml:12", "default": for later checks' texts. */
const char *bt_config_source(const bt_config *config, const char *name);

/* Help for `spec`, wrapped at 80 columns. */
void bt_config_print_help(const bt_config_spec *spec, FILE *to);

/* The effective settings as YAML that --config reads, each with its source. */
void bt_config_print(const bt_config *config, FILE *to);

/* ---- parsing of single values, for what stands outside the table ---- */
BT_MUST_CHECK bt_status bt_config_parse_bytes(const char *text, uint64_t *bytes);
BT_MUST_CHECK bt_status bt_config_parse_duration(const char *text, int64_t *ns);

/* "512MiB", "1.5s" style: the shortest text that parses back to the value. */
void bt_config_format_bytes(uint64_t bytes, char out[32]);
void bt_config_format_duration(int64_t ns, char out[32]);

#endif /* BT_COMMON_CONFIG_H */
