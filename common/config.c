/* SPDX-License-Identifier: Apache-2.0 */
/* Sources are applied from the weakest to the strongest: default, file, the command's
 * section of the file, environment, flags. Each value is checked even if a stronger one
 * follows: a wrong line in a file should not wait for the day when a flag is dropped.
 *
 * Each option has one entry with the text as it was written and its source; the target's
 * strings and lists point into it. */
#include "common/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <yaml.h>

#include "common/check.h"
#include "common/config_int.h"

enum {
    FILE_BYTES_MAX = 1 << 20,
    NAME_BYTES_MAX = 64, /* of names that are compared for nearness */
    WHERE_BYTES = 256,
};

/* What the flags said, before any is applied. */
typedef struct flag_use {
    size_t option;
    const char *text;
} flag_use;

typedef struct command_line {
    flag_use *uses; /* [argc] */
    size_t n_uses;
    const char *file;
    bool print;
} command_line;

/* ---- names ---- */

#define NOT_FOUND SIZE_MAX

/* The option of that name ('_' counts as '-'); n bytes of it. */
static size_t find_option(const bt_config_spec *spec, const char *name, size_t n)
{
    for (size_t i = 0; i < spec->n_options; i++) {
        const char *known = spec->options[i].name;
        size_t at = 0;
        while (at < n && known[at] && known[at] == (name[at] == '_' ? '-' : name[at])) {
            at++;
        }
        if (at == n && !known[at]) {
            return i;
        }
    }
    return NOT_FOUND;
}

static size_t must_find(const bt_config *config, const char *name)
{
    const size_t i = find_option(config->spec, name, strlen(name));
    BT_ASSERT(i != NOT_FOUND);
    return i;
}

/* Levenshtein's distance, row by row; large for long names. */
static size_t distance(const char *a, size_t a_len, const char *b)
{
    size_t row[NAME_BYTES_MAX + 1];
    const size_t b_len = strlen(b);
    if (a_len > NAME_BYTES_MAX || b_len > NAME_BYTES_MAX) {
        return NAME_BYTES_MAX;
    }
    for (size_t j = 0; j <= b_len; j++) {
        row[j] = j;
    }
    for (size_t i = 1; i <= a_len; i++) {
        size_t diagonal = row[0];
        row[0] = i;
        for (size_t j = 1; j <= b_len; j++) {
            const size_t replaced = diagonal + (a[i - 1] != b[j - 1]);
            diagonal = row[j];
            row[j] = bt_size_min(replaced, bt_size_min(row[j], row[j - 1]) + 1);
        }
    }
    return row[b_len];
}

/* A name so near that it was probably meant, or NULL. */
static const char *near_name(const bt_config_spec *spec, const char *name, size_t n)
{
    const char *best = NULL;
    size_t best_distance = bt_size_max(2, n / 3) + 1;
    for (size_t i = 0; i < spec->n_options; i++) {
        const size_t d = distance(name, n, spec->options[i].name);
        if (d < best_distance) {
            best_distance = d;
            best = spec->options[i].name;
        }
    }
    return best;
}

static bt_status unknown_flag(const bt_config_spec *spec, const char *flag, bt_error *err)
{
    const size_t n = strcspn(flag, "=");
    const char *near = n > 2 ? near_name(spec, flag + 2, n - 2) : NULL;
    if (near) {
        return bt_error_set(err, BT_EINVAL, "unknown option %.*s; did you mean --%s?",
                            (int)bt_size_min(n, NAME_BYTES_MAX), flag, near);
    }
    return bt_error_set(err, BT_EINVAL, "unknown option %.*s. '%s --help' lists them all.",
                        (int)bt_size_min(n, NAME_BYTES_MAX), flag, spec->command);
}

/* ---- one value ---- */

static bt_status no_memory(bt_error *err)
{
    return bt_error_set(err, BT_ENOMEM, "out of memory while reading the settings");
}

static void clear_entry(bt_config_entry *entry)
{
    for (size_t i = 0; i < entry->n_items; i++) {
        free(entry->items[i]);
    }
    free(entry->items);
    free(entry->source);
    *entry = (bt_config_entry){.level = BT_CONFIG_LEVEL_NONE};
}

static bool add_item(bt_config_entry *entry, const char *text)
{
    char **grown = realloc(entry->items, (entry->n_items + 1) * sizeof *grown);
    if (!grown) {
        return false;
    }
    entry->items = grown;
    entry->items[entry->n_items] = strdup(text);
    if (!entry->items[entry->n_items]) {
        return false;
    }
    entry->n_items++;
    return true;
}

typedef struct place {
    bt_config_level level;
    const char *source; /* for bt_config_source: "--x", "baton.yaml:12" */
    const char *where;  /* for errors: the same, with the key for files */
} place;

static void store_list(const bt_config_option *option, const bt_config_entry *entry, void *target)
{
    bt_config_list *field = (void *)((char *)target + option->offset);
    *field = (bt_config_list){.items = (const char *const *)entry->items, .n = entry->n_items};
}

/* Takes `text` as the option's value, or as one more item of a list from the same level. */
static bt_status apply(bt_config *config, size_t option_idx, const place *from, const char *text,
                       void *target, bt_error *err)
{
    const bt_config_option *option = &config->spec->options[option_idx];
    bt_config_entry *entry = &config->entries[option_idx];
    const bool list = option->type == BT_CONFIG_STRINGS;
    if (!list) {
        const bt_status status = bt_config_convert(option, text, NULL, err);
        if (status != BT_OK) {
            bt_error_prefix(err, "%s", from->where);
            return status;
        }
    }
    BT_ASSERT(from->level >= entry->level);
    if (!list || from->level > entry->level) {
        clear_entry(entry);
    }
    if (!entry->source) {
        entry->source = strdup(from->source);
    }
    entry->level = from->level;
    if (!entry->source || !add_item(entry, text)) {
        return no_memory(err);
    }
    if (list) {
        store_list(option, entry, target);
        return BT_OK;
    }
    return bt_config_convert(option, entry->items[0], (char *)target + option->offset, err);
}

/* Takes the empty list. */
static bt_status apply_empty(bt_config *config, size_t option_idx, const place *from, void *target,
                             bt_error *err)
{
    bt_config_entry *entry = &config->entries[option_idx];
    clear_entry(entry);
    entry->source = strdup(from->source);
    entry->level = from->level;
    store_list(&config->spec->options[option_idx], entry, target);
    return entry->source ? BT_OK : no_memory(err);
}

/* Takes each part between commas. */
static bt_status apply_split(bt_config *config, size_t option_idx, const place *from,
                             const char *text, void *target, bt_error *err)
{
    char *copy = strdup(text);
    if (!copy) {
        return no_memory(err);
    }
    bt_status status = BT_OK;
    char *save = NULL;
    for (char *part = strtok_r(copy, ",", &save); part && status == BT_OK;
         part = strtok_r(NULL, ",", &save)) {
        status = apply(config, option_idx, from, part, target, err);
    }
    free(copy);
    return status;
}

/* ---- defaults and environment ---- */

static bt_status apply_defaults(bt_config *config, void *target, bt_error *err)
{
    const bt_config_spec *spec = config->spec;
    for (size_t i = 0; i < spec->n_options; i++) {
        const bt_config_option *option = &spec->options[i];
        const place from = {BT_CONFIG_LEVEL_DEFAULT, "default", option->name};
        if (!option->fallback) {
            continue;
        }
        const bool list = option->type == BT_CONFIG_STRINGS;
        const bt_status status =
            (list ? apply_split : apply)(config, i, &from, option->fallback, target, err);
        if (status != BT_OK) {
            BT_ASSERT(status == BT_ENOMEM); /* else the table has a wrong default */
            return status;
        }
    }
    return BT_OK;
}

static const char *env_value(const char *name, char env[BT_CONFIG_NAME_BYTES])
{
    bt_config_env_name(name, env);
    const char *text = getenv(env);
    return text && text[0] ? text : NULL;
}

static bt_status apply_env(bt_config *config, void *target, bt_error *err)
{
    const bt_config_spec *spec = config->spec;
    for (size_t i = 0; i < spec->n_options; i++) {
        char env[BT_CONFIG_NAME_BYTES];
        const char *text = env_value(spec->options[i].name, env);
        if (!text) {
            continue;
        }
        const place from = {BT_CONFIG_LEVEL_ENV, env, env};
        const bool list = spec->options[i].type == BT_CONFIG_STRINGS;
        const bt_status status = (list ? apply_split : apply)(config, i, &from, text, target, err);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

/* ---- file ---- */

typedef struct yaml_file {
    bt_config *config;
    const char *path;
    yaml_document_t document;
    void *target;
    bt_error *err;
} yaml_file;

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

static bt_status file_error(const yaml_file *file, const yaml_node_t *node, const char *text)
{
    return bt_error_set(file->err, BT_EINVAL, "%s:%d: %s", file->path, line_of(node), text);
}

static const char *scalar_text(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE ? (const char *)node->data.scalar.value : NULL;
}

/* An empty plain value: "key:" or "key: null" say nothing. */
static bool is_nothing(const yaml_node_t *node)
{
    const char *text = scalar_text(node);
    return text && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE &&
           (!text[0] || strcmp(text, "~") == 0 || strcmp(text, "null") == 0);
}

static bt_status apply_node(yaml_file *file, size_t option_idx, const char *key,
                            const yaml_node_t *value, bt_config_level level)
{
    char source[WHERE_BYTES];
    char where[WHERE_BYTES];
    const bt_config_option *option = &file->config->spec->options[option_idx];
    (void)snprintf(source, sizeof source, "%.120s:%d", file->path, line_of(value));
    (void)snprintf(where, sizeof where, "%.120s:%d: %.*s", file->path, line_of(value),
                   NAME_BYTES_MAX, key);
    const place from = {level, source, where};
    if (is_nothing(value)) {
        return BT_OK;
    }
    if (scalar_text(value)) {
        return apply(file->config, option_idx, &from, scalar_text(value), file->target, file->err);
    }
    if (value->type != YAML_SEQUENCE_NODE || option->type != BT_CONFIG_STRINGS) {
        return bt_error_set(file->err, BT_EINVAL, "%s has one value, no list or mapping", where);
    }
    const yaml_node_item_t *top = value->data.sequence.items.top;
    if (top == value->data.sequence.items.start) {
        return apply_empty(file->config, option_idx, &from, file->target, file->err);
    }
    for (const yaml_node_item_t *at = value->data.sequence.items.start; at < top; at++) {
        const char *text = scalar_text(yaml_document_get_node(&file->document, *at));
        if (!text) {
            return bt_error_set(file->err, BT_EINVAL, "%s is a list of plain values", where);
        }
        const bt_status status =
            apply(file->config, option_idx, &from, text, file->target, file->err);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

static bool section_is_known(const bt_config_spec *spec, const char *key)
{
    for (size_t i = 0; spec->other_sections && spec->other_sections[i]; i++) {
        if (strcmp(spec->other_sections[i], key) == 0) {
            return true;
        }
    }
    return !spec->other_sections || (spec->section && strcmp(spec->section, key) == 0);
}

/* One "key: value" that is no section. A list from this level must not go on from an
 * earlier line, so a key that stands twice is refused. */
static bt_status apply_pair(yaml_file *file, const yaml_node_t *key, const yaml_node_t *value,
                            bt_config_level level, bool *seen)
{
    const bt_config_spec *spec = file->config->spec;
    char text[WHERE_BYTES];
    const char *name = scalar_text(key);
    const size_t i = find_option(spec, name, strlen(name));
    if (i == NOT_FOUND) {
        const char *near = near_name(spec, name, strlen(name));
        (void)snprintf(text, sizeof text, "unknown key '%.60s'%s%s%s", name,
                       near ? "; did you mean '" : "", near ? near : "", near ? "'?" : "");
        return file_error(file, key, text);
    }
    if (seen[i]) {
        (void)snprintf(text, sizeof text, "'%.60s' stands here for the second time", name);
        return file_error(file, key, text);
    }
    seen[i] = true;
    return apply_node(file, i, spec->options[i].name, value, level);
}

/* The pairs of one mapping. At the top: first all plain keys; `section` gets the node of
 * this command's mapping. */
static bt_status apply_mapping(yaml_file *file, const yaml_node_t *mapping, bt_config_level level,
                               const yaml_node_t **section)
{
    const bt_config_spec *spec = file->config->spec;
    bool *seen = calloc(spec->n_options + 1, sizeof *seen);
    if (!seen) {
        return no_memory(file->err);
    }
    bt_status status = BT_OK;
    const yaml_node_pair_t *top = mapping->data.mapping.pairs.top;
    for (const yaml_node_pair_t *at = mapping->data.mapping.pairs.start;
         at < top && status == BT_OK; at++) {
        const yaml_node_t *key = yaml_document_get_node(&file->document, at->key);
        const yaml_node_t *value = yaml_document_get_node(&file->document, at->value);
        const char *name = scalar_text(key);
        if (!name) {
            status = file_error(file, key, "a key is a name");
        } else if (section && value->type == YAML_MAPPING_NODE && section_is_known(spec, name)) {
            if (spec->section && strcmp(spec->section, name) == 0) {
                *section = value;
            }
        } else if (section && is_nothing(value) && spec->section &&
                   strcmp(spec->section, name) == 0) {
            continue; /* an empty section */
        } else {
            status = apply_pair(file, key, value, level, seen);
        }
    }
    free(seen);
    return status;
}

static bt_status apply_document(yaml_file *file)
{
    const yaml_node_t *root = yaml_document_get_root_node(&file->document);
    if (!root || is_nothing(root)) {
        return BT_OK; /* an empty file */
    }
    if (root->type != YAML_MAPPING_NODE) {
        return file_error(file, root, "the file must be made of lines like 'key: value'");
    }
    const yaml_node_t *section = NULL;
    const bt_status status = apply_mapping(file, root, BT_CONFIG_LEVEL_FILE, &section);
    if (status != BT_OK || !section) {
        return status;
    }
    return apply_mapping(file, section, BT_CONFIG_LEVEL_SECTION, NULL);
}

/* The whole file as heap bytes. */
static bt_status read_whole(const char *path, unsigned char **bytes, size_t *len, bt_error *err)
{
    FILE *from = fopen(path, "re");
    if (!from) {
        return bt_error_set(err, errno == ENOENT ? BT_ENOTFOUND : BT_EIO,
                            "cannot read settings from '%.120s': %s", path, strerror(errno));
    }
    unsigned char *text = malloc(FILE_BYTES_MAX + 1);
    const size_t n = text ? fread(text, 1, FILE_BYTES_MAX + 1, from) : 0;
    const bool failed = ferror(from) != 0;
    (void)fclose(from);
    if (!text) {
        return no_memory(err);
    }
    if (failed || n > FILE_BYTES_MAX) {
        free(text);
        return bt_error_set(err, failed ? BT_EIO : BT_EINVAL,
                            "cannot read settings from '%.120s': %s", path,
                            failed ? "input/output error" : "it has more than 1 MiB");
    }
    *bytes = text;
    *len = n;
    return BT_OK;
}

static bt_status apply_file(bt_config *config, const char *path, void *target, bt_error *err)
{
    unsigned char *bytes = NULL;
    size_t len = 0;
    bt_status status = read_whole(path, &bytes, &len, err);
    if (status != BT_OK) {
        return status;
    }
    yaml_parser_t parser;
    if (!yaml_parser_initialize(&parser)) {
        free(bytes);
        return no_memory(err);
    }
    yaml_parser_set_input_string(&parser, bytes, len);
    yaml_file file = {.config = config, .path = path, .target = target, .err = err};
    if (!yaml_parser_load(&parser, &file.document)) {
        const char *problem = parser.problem ? parser.problem : "not YAML";
        status = parser.error == YAML_MEMORY_ERROR
                     ? no_memory(err)
                     : bt_error_set(err, BT_EINVAL, "%.120s:%zu: %s", path,
                                    parser.problem_mark.line + 1, problem);
    } else {
        status = apply_document(&file);
        yaml_document_delete(&file.document);
    }
    yaml_parser_delete(&parser);
    free(bytes);
    return status;
}

/* ---- flags ---- */

static bool wants_help(int argc, char *const argv[])
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            return true;
        }
    }
    return false;
}

/* The value of the flag argv[*i]: behind '=', or the next word. */
static const char *flag_value(int argc, char *const argv[], int *i, bt_error *err)
{
    const char *equals = strchr(argv[*i], '=');
    if (equals) {
        return equals + 1;
    }
    if (*i + 1 < argc && strncmp(argv[*i + 1], "--", 2) != 0) {
        return argv[++*i];
    }
    (void)bt_error_set(err, BT_EINVAL, "%s needs a value", argv[*i]);
    return NULL;
}

/* A flag of the table at argv[*i]. */
static bt_status scan_option(const bt_config_spec *spec, int argc, char *const argv[], int *i,
                             flag_use *use, bt_error *err)
{
    const char *flag = argv[*i];
    const char *name = flag + 2;
    const size_t n = strcspn(name, "=");
    const bool with_value = name[n] == '=';
    size_t option = find_option(spec, name, n);
    if (option == NOT_FOUND && strncmp(name, "no-", 3) == 0) {
        option = find_option(spec, name + 3, n - 3);
        if (option == NOT_FOUND || spec->options[option].type != BT_CONFIG_BOOL) {
            return unknown_flag(spec, flag, err);
        }
        if (with_value) {
            return bt_error_set(err, BT_EINVAL, "--%.*s takes no value", (int)n, name);
        }
        *use = (flag_use){.option = option, .text = "false"};
        return BT_OK;
    }
    if (option == NOT_FOUND) {
        return unknown_flag(spec, flag, err);
    }
    const char *text = "true";
    if (spec->options[option].type != BT_CONFIG_BOOL || with_value) {
        text = flag_value(argc, argv, i, err);
        if (!text) {
            return BT_EINVAL;
        }
    }
    *use = (flag_use){.option = option, .text = text};
    return BT_OK;
}

static bt_status add_argument(bt_config *config, const char *word, bt_error *err)
{
    const bt_config_spec *spec = config->spec;
    if (!spec->arguments) {
        return bt_error_set(err, BT_EINVAL,
                            "unexpected argument '%.60s'. '%s --help' shows how to "
                            "call it.",
                            word, spec->command);
    }
    config->arguments[config->n_arguments] = strdup(word);
    if (!config->arguments[config->n_arguments]) {
        return no_memory(err);
    }
    config->n_arguments++;
    return BT_OK;
}

static bt_status scan_flags(bt_config *config, int argc, char *const argv[], command_line *line,
                            bt_error *err)
{
    bool only_arguments = false;
    for (int i = 1; i < argc; i++) {
        const char *word = argv[i];
        bt_status status = BT_OK;
        if (only_arguments || word[0] != '-' || word[1] == '\0') {
            status = add_argument(config, word, err);
        } else if (strcmp(word, "--") == 0) {
            only_arguments = true;
        } else if (strcmp(word, "--print-config") == 0) {
            line->print = true;
        } else if (strcmp(word, "--config") == 0 || strncmp(word, "--config=", 9) == 0) {
            line->file = flag_value(argc, argv, &i, err);
            status = line->file ? BT_OK : BT_EINVAL;
        } else if (word[1] == '-') {
            status = scan_option(config->spec, argc, argv, &i, &line->uses[line->n_uses], err);
            line->n_uses++;
        } else {
            status = unknown_flag(config->spec, word, err);
        }
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

static bt_status apply_flags(bt_config *config, const command_line *line, void *target,
                             bt_error *err)
{
    for (size_t i = 0; i < line->n_uses; i++) {
        char flag[BT_CONFIG_NAME_BYTES];
        const flag_use *use = &line->uses[i];
        (void)snprintf(flag, sizeof flag, "--%s", config->spec->options[use->option].name);
        const place from = {BT_CONFIG_LEVEL_FLAG, flag, flag};
        const bt_status status = apply(config, use->option, &from, use->text, target, err);
        if (status != BT_OK) {
            return status;
        }
    }
    return BT_OK;
}

/* ---- public ---- */

static bt_status apply_all(bt_config *config, int argc, char *const argv[], command_line *line,
                           void *target, bt_error *err)
{
    char env[BT_CONFIG_NAME_BYTES];
    bt_status status = scan_flags(config, argc, argv, line, err);
    if (status == BT_OK) {
        config->wanted = line->print ? BT_CONFIG_PRINT : BT_CONFIG_RUN;
        status = apply_defaults(config, target, err);
    }
    const char *file = line->file ? line->file : env_value("config", env);
    if (status == BT_OK && file) {
        status = apply_file(config, file, target, err);
    }
    if (status == BT_OK) {
        status = apply_env(config, target, err);
    }
    return status == BT_OK ? apply_flags(config, line, target, err) : status;
}

bt_status bt_config_parse(const bt_config_spec *spec, int argc, char *const argv[], void *target,
                          bt_config **out, bt_error *err)
{
    const size_t n_words = argc > 0 ? (size_t)argc : 1;
    bt_config *config = calloc(1, sizeof *config);
    command_line line = {.uses = calloc(n_words, sizeof *line.uses)};
    if (!config || !line.uses) {
        free(config);
        free(line.uses);
        return no_memory(err);
    }
    config->spec = spec;
    config->entries = calloc(spec->n_options + 1, sizeof *config->entries);
    config->arguments = calloc(n_words, sizeof *config->arguments);
    bt_status status = BT_OK;
    if (!config->entries || !config->arguments) {
        status = no_memory(err);
    } else if (wants_help(argc, argv)) {
        config->wanted = BT_CONFIG_HELP;
    } else {
        status = apply_all(config, argc, argv, &line, target, err);
    }
    free(line.uses);
    if (status != BT_OK) {
        bt_config_destroy(config);
        return status;
    }
    *out = config;
    return BT_OK;
}

void bt_config_destroy(bt_config *config)
{
    if (!config) {
        return;
    }
    for (size_t i = 0; config->entries && i < config->spec->n_options; i++) {
        clear_entry(&config->entries[i]);
    }
    for (size_t i = 0; i < config->n_arguments; i++) {
        free(config->arguments[i]);
    }
    free(config->entries);
    free(config->arguments);
    free(config);
}

bt_config_action bt_config_wanted(const bt_config *config)
{
    return config->wanted;
}

bt_config_list bt_config_arguments(const bt_config *config)
{
    return (bt_config_list){.items = (const char *const *)config->arguments,
                            .n = config->n_arguments};
}

bool bt_config_is_set(const bt_config *config, const char *name)
{
    return config->entries[must_find(config, name)].level > BT_CONFIG_LEVEL_DEFAULT;
}

const char *bt_config_source(const bt_config *config, const char *name)
{
    const bt_config_entry *entry = &config->entries[must_find(config, name)];
    return entry->source ? entry->source : "default";
}
