/* SPDX-License-Identifier: Apache-2.0 */
/* What a person sees of the table: --help and --print-config. */
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "common/check.h"
#include "common/config_int.h"
#include "common/utf8.h"

enum {
    WIDTH = 80,
    INDENT = 8,
    FACTS_BYTES = 512,
};

void bt_config_env_name(const char *name, char out[BT_CONFIG_NAME_BYTES])
{
    const int n = snprintf(out, BT_CONFIG_NAME_BYTES, "BATON_%s", name);
    BT_ASSERT(n > 0 && n < BT_CONFIG_NAME_BYTES);
    for (char *c = out; *c; c++) {
        *c = *c == '-' ? '_' : (char)toupper((unsigned char)*c);
    }
}

/* Words of `text` in lines of at most WIDTH columns behind `indent` spaces; of its own line breaks
 * only a double one stays, as an empty line. */
static void print_wrapped(const char *text, int indent, FILE *to)
{
    while (*text) {
        int column = indent;
        fprintf(to, "%*s", indent, "");
        const char *separator = "";
        while (*text && !(text[0] == '\n' && text[1] == '\n')) {
            const int len = (int)strcspn(text, " \n");
            if (len == 0) {
                text++;
                continue;
            }
            if (column + (int)strlen(separator) + len > WIDTH && column > indent) {
                break;
            }
            fprintf(to, "%s%.*s", separator, len, text);
            column += (int)strlen(separator) + len;
            separator = " ";
            text += len;
        }
        fputc('\n', to);
        text += strspn(text, " ");
        if (text[0] == '\n' && text[1] == '\n') {
            fputc('\n', to);
            text += 2;
        }
    }
}

static void print_placeholder(const bt_config_option *option, FILE *to)
{
    static const char *const by_type[] = {
        [BT_CONFIG_STRING] = "TEXT", [BT_CONFIG_BOOL] = "",        [BT_CONFIG_INT] = "N",
        [BT_CONFIG_FLOAT] = "X",     [BT_CONFIG_BYTES] = "SIZE",   [BT_CONFIG_DURATION] = "TIME",
        [BT_CONFIG_ENUM] = "NAME",   [BT_CONFIG_STRINGS] = "TEXT",
    };
    if (option->placeholder) {
        fprintf(to, " %s", option->placeholder);
    } else if (option->type == BT_CONFIG_ENUM) {
        for (size_t i = 0; option->choices[i]; i++) {
            fprintf(to, "%c%s", i == 0 ? ' ' : '|', option->choices[i]);
        }
    } else if (by_type[option->type][0]) {
        fprintf(to, " %s", by_type[option->type]);
    }
}

static void print_option(const bt_config_option *option, FILE *to)
{
    const bool on_by_default =
        option->type == BT_CONFIG_BOOL && option->fallback && strcmp(option->fallback, "true") == 0;
    if (option->type == BT_CONFIG_BOOL) {
        fprintf(to, on_by_default ? "  --no-%s, --%s" : "  --%s, --no-%s", option->name,
                option->name);
    } else {
        fprintf(to, "  --%s", option->name);
    }
    print_placeholder(option, to);
    fputs(option->type == BT_CONFIG_STRINGS ? " (repeatable)\n" : "\n", to);
    print_wrapped(option->help, INDENT, to);

    char range[128];
    char env[BT_CONFIG_NAME_BYTES];
    char facts[FACTS_BYTES];
    bt_config_range_text(option, range, sizeof range);
    bt_config_env_name(option->name, env);
    const bool unit_alone = !range[0] && option->unit;
    const char *fallback =
        option->type == BT_CONFIG_BOOL ? (on_by_default ? "on" : "off") : option->fallback;
    (void)snprintf(facts, sizeof facts, "%s%s%s%s%s%s%s%s%s$%s", fallback ? "Default: " : "",
                   fallback ? (fallback[0] ? fallback : "\"\"") : "", fallback ? "; " : "",
                   range[0] ? "range: " : "", range, range[0] ? "; " : "",
                   unit_alone ? "unit: " : "", unit_alone ? option->unit : "",
                   unit_alone ? "; " : "", env);
    facts[0] = (char)toupper((unsigned char)facts[0]);
    print_wrapped(facts, INDENT, to);
}

static bool group_came_before(const bt_config_spec *spec, size_t at)
{
    for (size_t i = 0; i < at; i++) {
        if (strcmp(spec->options[i].group, spec->options[at].group) == 0) {
            return true;
        }
    }
    return false;
}

void bt_config_print_help(const bt_config_spec *spec, FILE *to)
{
    print_wrapped(spec->summary, 0, to);
    fprintf(to, "\nUsage: %s [OPTIONS]%s%s\n", spec->command, spec->arguments ? " " : "",
            spec->arguments ? spec->arguments : "");
    for (size_t g = 0; g < spec->n_options; g++) {
        const char *group = spec->options[g].group;
        if (group_came_before(spec, g)) {
            continue;
        }
        fprintf(to, "\n%s\n", group);
        for (size_t i = g; i < spec->n_options; i++) {
            if (strcmp(spec->options[i].group, group) == 0) {
                print_option(&spec->options[i], to);
            }
        }
    }
    fputs("\nSettings\n"
          "  --config FILE\n"
          "        Read settings from a YAML file; its keys are the names above.\n"
          "        $BATON_CONFIG\n"
          "  --print-config\n"
          "        Print the effective settings and where each came from, and exit.\n"
          "  -h, --help\n"
          "        Print this text and exit.\n"
          "\n"
          "A flag beats the environment, the environment beats the file, the file beats\n"
          "the default. Sizes: 4096, 16K, 512M, 2GiB (K, M, G of 1,024; kB, MB, GB of\n"
          "1,000). Times: 250ms, 10s, 5m, 1h.\n",
          to);
    if (spec->examples) {
        fprintf(to, "\n%s%s", spec->examples,
                spec->examples[strlen(spec->examples) - 1] == '\n' ? "" : "\n");
    }
}

/* A double-quoted YAML scalar. */
static void print_quoted(const char *text, FILE *to)
{
    const size_t n = strlen(text);
    fputc('"', to);
    for (size_t i = 0; i < n;) {
        bool valid;
        const size_t len = bt_utf8_step(text + i, n - i, &valid);
        const unsigned char c = (unsigned char)text[i];
        if (!valid) {
            fputs(BT_UTF8_REPLACEMENT, to);
        } else if (c < 0x20 || c == 0x7F) {
            fprintf(to, "\\x%02x", c);
        } else if (c == '"' || c == '\\') {
            fprintf(to, "\\%c", c);
        } else {
            (void)fwrite(text + i, 1, len, to);
        }
        i += len;
    }
    fputc('"', to);
}

static void print_value(const bt_config_option *option, const bt_config_entry *entry, FILE *to)
{
    if (option->type == BT_CONFIG_STRINGS) {
        fputc('[', to);
        for (size_t i = 0; i < entry->n_items; i++) {
            fputs(i > 0 ? ", " : "", to);
            print_quoted(entry->items[i], to);
        }
        fputc(']', to);
    } else if (option->type == BT_CONFIG_STRING) {
        print_quoted(entry->items[0], to);
    } else {
        fputs(entry->items[0], to); /* checked: nothing in it needs quotes */
    }
}

void bt_config_print(const bt_config *config, FILE *to)
{
    const bt_config_spec *spec = config->spec;
    fprintf(to, "# effective settings of %s\n", spec->command);
    for (size_t g = 0; g < spec->n_options; g++) {
        const char *group = spec->options[g].group;
        if (group_came_before(spec, g)) {
            continue;
        }
        fprintf(to, "\n# %s\n", group);
        for (size_t i = g; i < spec->n_options; i++) {
            const bt_config_option *option = &spec->options[i];
            const bt_config_entry *entry = &config->entries[i];
            if (strcmp(option->group, group) != 0) {
                continue;
            }
            if (entry->level == BT_CONFIG_LEVEL_NONE) {
                fprintf(to, "# %s:  # not set\n", option->name);
            } else if (option->secret && entry->level != BT_CONFIG_LEVEL_DEFAULT) {
                fprintf(to, "# %s: (not shown)  # %s\n", option->name, entry->source);
            } else {
                fprintf(to, "%s: ", option->name);
                print_value(option, entry, to);
                fprintf(to, "  # %s\n", entry->source);
            }
        }
    }
}
