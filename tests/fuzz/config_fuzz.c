/* SPDX-License-Identifier: Apache-2.0 */
/* Options: the input up to a byte 0 is a YAML file, then come the words of the command line, a byte
 * 0 between them. What parses is printed as --print-config does and read again: the same (if the
 * words are UTF-8, which a path need not be but YAML is). */
#include <stdlib.h>
#include <string.h>

#include "common/config.h"
#include "common/utf8.h"
#include "tests/fuzz/fuzz.h"

enum { WORDS_MAX = 32, TEXT_BYTES_MAX = 1 << 16 };

typedef struct target {
    const char *text;
    bool flag;
    int64_t count;
    double ratio;
    uint64_t bytes;
    int64_t pause_ns;
    int kind;
    bt_config_list names;
} target;

static const char *const kinds[] = {"prefill", "decode", "both", NULL};

#define FIELD(field) offsetof(target, field)

static const bt_config_option options[] = {
    {.name = "text",
     .type = BT_CONFIG_STRING,
     .group = "A",
     .help = "A text.",
     .fallback = "127.0.0.1:7000",
     .offset = FIELD(text)},
    {.name = "flag",
     .type = BT_CONFIG_BOOL,
     .group = "A",
     .help = "A flag.",
     .fallback = "true",
     .offset = FIELD(flag)},
    {.name = "count",
     .type = BT_CONFIG_INT,
     .group = "A",
     .help = "A number.",
     .fallback = "3",
     .min = -5,
     .max = 1000000,
     .offset = FIELD(count)},
    {.name = "ratio",
     .type = BT_CONFIG_FLOAT,
     .group = "A",
     .help = "A fraction.",
     .fallback = "0.5",
     .offset = FIELD(ratio)},
    {.name = "pool-bytes",
     .type = BT_CONFIG_BYTES,
     .group = "B",
     .help = "A size.",
     .fallback = "16M",
     .offset = FIELD(bytes)},
    {.name = "pause",
     .type = BT_CONFIG_DURATION,
     .group = "B",
     .help = "A time.",
     .fallback = "1.5s",
     .offset = FIELD(pause_ns)},
    {.name = "kind",
     .type = BT_CONFIG_ENUM,
     .group = "B",
     .help = "A kind.",
     .fallback = "both",
     .choices = kinds,
     .offset = FIELD(kind)},
    {.name = "name",
     .type = BT_CONFIG_STRINGS,
     .group = "B",
     .help = "Names.",
     .offset = FIELD(names)},
};

static const bt_config_spec spec = {
    .command = "baton fuzz",
    .section = "fuzz",
    .summary = "Fuzzes.",
    .arguments = "[WORD...]",
    .options = options,
    .n_options = BT_ARRAY_LEN(options),
};

static bool lists_equal(const bt_config_list *a, const bt_config_list *b)
{
    for (size_t i = 0; i < a->n && a->n == b->n; i++) {
        if (strcmp(a->items[i], b->items[i]) != 0) {
            return false;
        }
    }
    return a->n == b->n;
}

static void expect_same(bool same, const char *printed)
{
    if (!same) {
        fprintf(stderr, "what was printed is read as something else:\n%s", printed);
        FUZZ_EXPECT(same);
    }
}

/* Prints `config` and reads that. */
static void check_print(const bt_config *config, const target *got)
{
    char *text = NULL;
    size_t len = 0;
    FILE *stream = open_memstream(&text, &len);
    FUZZ_EXPECT(stream != NULL);
    bt_config_print(config, stream);
    FUZZ_EXPECT(fclose(stream) == 0);
    char path[BT_FUZZ_PATH_BYTES];
    const int fd = bt_fuzz_file_open((const uint8_t *)text, len, path);
    char *words[] = {(char *)"baton", (char *)"--config", path, NULL};
    target again = {0};
    bt_config *printed = NULL;
    bt_error err = {""};
    if (bt_config_parse(&spec, 3, words, &again, &printed, &err) != BT_OK) {
        fprintf(stderr, "%s\n", err.text);
        expect_same(false, text);
    }
    expect_same(strcmp(again.text, got->text) == 0, text);
    expect_same(again.flag == got->flag && again.count == got->count, text);
    expect_same(again.ratio == got->ratio && again.bytes == got->bytes, text);
    expect_same(again.pause_ns == got->pause_ns && again.kind == got->kind, text);
    expect_same(lists_equal(&again.names, &got->names), text);
    bt_config_destroy(printed);
    bt_fuzz_file_close(fd);
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char room[TEXT_BYTES_MAX];
    bt_fuzz_input in = {data, size < TEXT_BYTES_MAX / 2 ? size : TEXT_BYTES_MAX / 2};
    const bt_fuzz_input file = bt_fuzz_until(&in, 0);
    char path[BT_FUZZ_PATH_BYTES];
    const int fd = bt_fuzz_file_open(file.bytes, file.len, path);
    char *words[WORDS_MAX + 4] = {(char *)"baton", (char *)"--config", path};
    int n = 3;
    size_t used = 0;
    const bool is_text = bt_utf8_valid((const char *)in.bytes, in.len, NULL);
    while (in.len > 0 && n < WORDS_MAX) {
        const bt_fuzz_input word = bt_fuzz_until(&in, 0);
        words[n++] = room + used;
        if (word.len > 0) {
            memcpy(room + used, word.bytes, word.len);
        }
        room[used + word.len] = '\0';
        used += word.len + 1;
    }
    target got = {0};
    bt_config *config = NULL;
    bt_error err = {""};
    const bt_status status = bt_config_parse(&spec, n, words, &got, &config, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
    } else {
        if (bt_config_wanted(config) != BT_CONFIG_HELP && is_text) {
            check_print(config, &got);
        }
        bt_config_destroy(config);
    }
    bt_fuzz_file_close(fd);
    return 0;
}
