/* SPDX-License-Identifier: Apache-2.0 */
/* Proves the option table: all types from all sources, who beats whom, texts of errors, and
 * that what --print-config prints is read back as the same settings. */
#include "common/config.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "tests/support/fault.h"

typedef struct settings {
    const char *listen;
    bool local_prefill;
    bool verbose;
    int64_t threads;
    double rate;
    uint64_t pool_bytes;
    int64_t timeout_ns;
    int role;
    bt_config_list routers;
    const char *cluster_key;
} settings;

static const char *const roles[] = {"prefill", "decode", "both", NULL};

static const bt_config_option options[] = {
    {.name = "listen",
     .type = BT_CONFIG_STRING,
     .group = "Network",
     .fallback = "127.0.0.1:0",
     .placeholder = "HOST:PORT",
     .help = "Where clients connect.",
     .offset = offsetof(settings, listen)},
    {.name = "local-prefill",
     .type = BT_CONFIG_BOOL,
     .group = "Compute",
     .fallback = "true",
     .help = "Decode workers prefill short rests.",
     .offset = offsetof(settings, local_prefill)},
    {.name = "verbose",
     .type = BT_CONFIG_BOOL,
     .group = "Compute",
     .fallback = "false",
     .help = "Says more.",
     .offset = offsetof(settings, verbose)},
    {.name = "threads",
     .type = BT_CONFIG_INT,
     .group = "Compute",
     .unit = "threads",
     .min = 1,
     .max = 1024,
     .help = "Threads of the model.",
     .offset = offsetof(settings, threads)},
    {.name = "rate",
     .type = BT_CONFIG_FLOAT,
     .group = "Compute",
     .float_min = 0,
     .float_max = 1,
     .fallback = "0.9",
     .help = "A share.",
     .offset = offsetof(settings, rate)},
    {.name = "kv-pool-bytes",
     .type = BT_CONFIG_BYTES,
     .group = "Memory",
     .fallback = "512M",
     .min = 1 << 20,
     .max = INT64_MAX,
     .help = "Size of the pool.",
     .offset = offsetof(settings, pool_bytes)},
    {.name = "max-request-time",
     .type = BT_CONFIG_DURATION,
     .group = "Limits",
     .fallback = "600s",
     .min = 1000000,
     .max = INT64_C(86400000000000),
     .help = "Deadline of requests without one.",
     .offset = offsetof(settings, timeout_ns)},
    {.name = "role",
     .type = BT_CONFIG_ENUM,
     .group = "Compute",
     .choices = roles,
     .fallback = "both",
     .help = "What this worker does.",
     .offset = offsetof(settings, role)},
    {.name = "router",
     .type = BT_CONFIG_STRINGS,
     .group = "Network",
     .placeholder = "HOST:PORT",
     .help = "A router to attach to.",
     .offset = offsetof(settings, routers)},
    {.name = "cluster-key",
     .type = BT_CONFIG_STRING,
     .group = "Network",
     .secret = true,
     .help = "Shared secret.",
     .offset = offsetof(settings, cluster_key)},
};

static const bt_config_spec spec = {
    .command = "baton worker",
    .section = "worker",
    .summary = "Runs one worker with words enough that they have to be broken into lines that the source\n"
               "breaks elsewhere.\n\nAnd a second paragraph.",
    .arguments = "[WORD...]",
    .examples = "Examples\n  baton worker --role prefill\n",
    .options = options,
    .n_options = BT_ARRAY_LEN(options),
};

static char file_path[128];

static const char *const variables[] = {
    "BATON_CONFIG",        "BATON_THREADS",     "BATON_RATE", "BATON_ROUTER",
    "BATON_KV_POOL_BYTES", "BATON_CLUSTER_KEY", "BATON_ROLE", "BATON_LISTEN",
};

static int clear_environment(void **state)
{
    (void)state;
    for (size_t i = 0; i < BT_ARRAY_LEN(variables); i++) {
        (void)unsetenv(variables[i]);
    }
    if (file_path[0]) {
        (void)unlink(file_path);
    }
    const char *folder = getenv("TEST_TMPDIR");
    (void)snprintf(file_path, sizeof file_path, "%.80s/c%d.yaml",
                   folder && strlen(folder) <= 80 ? folder : "/tmp", (int)getpid());
    return 0;
}

static void put_file(const char *text)
{
    FILE *to = fopen(file_path, "w");
    assert_non_null(to);
    assert_true(fputs(text, to) >= 0);
    assert_int_equal(fclose(to), 0);
}

/* Parses the words of a command line that are divided by single spaces. */
static bt_status parse(const char *line, settings *s, bt_config **config, bt_error *err)
{
    static char copy[1024];
    char *argv[64] = {(char[]){"baton"}};
    int argc = 1;
    char *save = NULL;
    (void)snprintf(copy, sizeof copy, "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word; word = strtok_r(NULL, " ", &save)) {
        argv[argc++] = word;
    }
    memset(s, 0, sizeof *s);
    return bt_config_parse(&spec, argc, argv, s, config, err);
}

static bt_config *must_parse(const char *line, settings *s)
{
    bt_config *config = NULL;
    bt_error err = {.text = ""};
    const bt_status status = parse(line, s, &config, &err);
    if (status != BT_OK) {
        print_error("%s\n", err.text);
    }
    assert_int_equal(status, BT_OK);
    return config;
}

static void assert_refused(const char *line, const char *text)
{
    settings s;
    bt_config *config = NULL;
    bt_error err = {.text = ""};
    assert_int_not_equal(parse(line, &s, &config, &err), BT_OK);
    assert_null(config);
    if (!strstr(err.text, text)) {
        assert_string_equal(err.text, text);
    }
}

static void defaults_fill_what_nobody_set(void **state)
{
    (void)state;
    settings s;
    bt_config *config = must_parse("", &s);
    assert_string_equal(s.listen, "127.0.0.1:0");
    assert_true(s.local_prefill);
    assert_false(s.verbose);
    assert_int_equal(s.threads, 0); /* no default: the field is left alone */
    assert_true(s.rate == 0.9);
    assert_int_equal(s.pool_bytes, 512 << 20);
    assert_int_equal(s.timeout_ns, INT64_C(600000000000));
    assert_int_equal(s.role, 2);
    assert_int_equal(s.routers.n, 0);
    assert_null(s.cluster_key);
    assert_false(bt_config_is_set(config, "rate"));
    assert_string_equal(bt_config_source(config, "rate"), "default");
    assert_int_equal(bt_config_wanted(config), BT_CONFIG_RUN);
    bt_config_destroy(config);
    bt_config_destroy(NULL);
}

static void flags_take_every_form(void **state)
{
    (void)state;
    settings s;
    bt_config *config = must_parse("--listen=:1 a --threads 7 --no-local-prefill --verbose "
                                   "--rate=0.25 --kv-pool-bytes 2GB --max-request-time 1.5s "
                                   "--role decode --router r1:1 --router r2:2 - b -- --threads",
                                   &s);
    assert_string_equal(s.listen, ":1");
    assert_int_equal(s.threads, 7);
    assert_false(s.local_prefill);
    assert_true(s.verbose);
    assert_true(s.rate == 0.25);
    assert_int_equal(s.pool_bytes, 2000000000);
    assert_int_equal(s.timeout_ns, 1500000000);
    assert_int_equal(s.role, 1);
    assert_int_equal(s.routers.n, 2);
    assert_string_equal(s.routers.items[0], "r1:1");
    assert_string_equal(s.routers.items[1], "r2:2");
    const bt_config_list words = bt_config_arguments(config);
    assert_int_equal(words.n, 4);
    assert_string_equal(words.items[0], "a");
    assert_string_equal(words.items[1], "-");
    assert_string_equal(words.items[2], "b");
    assert_string_equal(words.items[3], "--threads");
    bt_config_destroy(config);
    config = must_parse("--threads 1 --threads 2 --verbose=no", &s); /* the last one counts */
    assert_int_equal(s.threads, 2);
    assert_false(s.verbose);
    bt_config_destroy(config);
}

static void flag_beats_environment_beats_section_beats_file(void **state)
{
    (void)state;
    settings s;
    put_file("threads: 1\n"
             "rate: 0.1\n"
             "kv_pool_bytes: 1MiB\n"
             "role: prefill\n"
             "listen: file:1\n"
             "router: [a, 'b c']\n"
             "other:\n"
             "  what: ever\n"
             "worker:\n"
             "  threads: 2\n"
             "  rate: 0.2\n"
             "  kv-pool-bytes: 2MiB\n"
             "  router:\n"
             "    - d\n");
    setenv("BATON_CONFIG", file_path, 1);
    setenv("BATON_THREADS", "3", 1);
    setenv("BATON_RATE", "0.3", 1);
    setenv("BATON_ROLE", "", 1); /* counts as not set */
    bt_config *config = must_parse("--threads 4", &s);
    assert_int_equal(s.threads, 4);
    assert_true(s.rate == 0.3);
    assert_int_equal(s.pool_bytes, 2 << 20);
    assert_int_equal(s.role, 0);
    assert_string_equal(s.listen, "file:1");
    assert_int_equal(s.routers.n, 1);
    assert_string_equal(s.routers.items[0], "d");
    assert_string_equal(bt_config_source(config, "threads"), "--threads");
    assert_string_equal(bt_config_source(config, "rate"), "BATON_RATE");
    assert_non_null(strstr(bt_config_source(config, "kv-pool-bytes"), ".yaml:12"));
    assert_non_null(strstr(bt_config_source(config, "listen"), ".yaml:5"));
    assert_true(bt_config_is_set(config, "listen"));
    bt_config_destroy(config);
}

static void lists_come_from_variables_too(void **state)
{
    (void)state;
    settings s;
    setenv("BATON_ROUTER", "a:1,b:2", 1);
    bt_config *config = must_parse("", &s);
    assert_int_equal(s.routers.n, 2);
    assert_string_equal(s.routers.items[1], "b:2");
    bt_config_destroy(config);
    config = must_parse("--router c:3", &s); /* flags replace, they do not add */
    assert_int_equal(s.routers.n, 1);
    bt_config_destroy(config);
}

static void wrong_flags_are_named_with_advice(void **state)
{
    (void)state;
    assert_refused("--kv-pool-bytes 12Q", "--kv-pool-bytes: '12Q' is no size; write e.g. 512M");
    assert_refused("--kv-pool-bytes 1K",
                   "--kv-pool-bytes: '1K' is out of range; it must be 1MiB or "
                   "more");
    assert_refused("--kv-pol-bytes 1", "unknown option --kv-pol-bytes; did you mean "
                                       "--kv-pool-bytes?");
    assert_refused("--frobnicate", "unknown option --frobnicate. 'baton worker --help'");
    assert_refused("-x", "unknown option -x");
    assert_refused("--threads", "--threads needs a value");
    assert_refused("--threads --verbose", "--threads needs a value");
    assert_refused("--threads 0", "out of range; it must be 1 to 1024 threads");
    assert_refused("--threads 99999999999999999999", "out of range");
    assert_refused("--threads 7x", "'7x' is no whole number");
    assert_refused("--threads= ", "is no whole number");
    assert_refused("--no-threads", "unknown option --no-threads");
    assert_refused("--no-verbose=1", "--no-verbose takes no value");
    assert_refused("--verbose=maybe", "'maybe' is neither true nor false");
    assert_refused("--rate 1.01", "it must be 0 to 1");
    assert_refused("--rate nan", "is no number");
    assert_refused("--max-request-time 10", "'10' is no time; write e.g. 250ms, 10s or 5m");
    assert_refused("--role prefil", "choose from prefill, decode, both");
    assert_refused("--config", "--config needs a value");
    assert_refused("--config /no/such/file", "cannot read settings from '/no/such/file'");
    setenv("BATON_THREADS", "many", 1);
    assert_refused("--threads 1", "BATON_THREADS: 'many' is no whole number");
}

static void wrong_files_are_named_with_their_line(void **state)
{
    (void)state;
    const char *const cases[][2] = {
        {"threads: 2\nthreds: 3\n", ":2: unknown key 'threds'; did you mean 'threads'?"},
        {"\n\nthreads: 0\n", ":3: threads: '0' is out of range"},
        {"worker:\n  threads: x\n", ":2: threads: 'x' is no whole number"},
        {"threads: [1]\n", ":1: threads has one value"},
        {"router: [[a]]\n", ":1: router is a list of plain values"},
        {"threads: 1\nthreads: 2\n", ":2: 'threads' stands here for the second time"},
        {"threads: 1\n  bad: : :\n", ":2: "},
        {"- a\n- b\n", "must be made of lines like 'key: value'"},
        {"[a]: 1\n", "a key is a name"},
        {"threads: \"\xFF\"\n", ": "},
    };
    setenv("BATON_CONFIG", file_path, 1);
    for (size_t i = 0; i < BT_ARRAY_LEN(cases); i++) {
        put_file(cases[i][0]);
        assert_refused("", cases[i][1]);
    }
}

static void empty_files_and_values_set_nothing(void **state)
{
    (void)state;
    settings s;
    const char *const texts[] = {"", "# only a comment\n", "~\n", "threads:\nworker:\n",
                                 "threads: null\nrouter: []\n"};
    setenv("BATON_CONFIG", file_path, 1);
    for (size_t i = 0; i < BT_ARRAY_LEN(texts); i++) {
        put_file(texts[i]);
        bt_config *config = must_parse("", &s);
        assert_int_equal(s.threads, 0);
        assert_int_equal(s.routers.n, 0);
        assert_true(s.rate == 0.9);
        bt_config_destroy(config);
    }
}

/* What `print` writes. */
static char *printed(void (*print)(const void *what, FILE *to), const void *what)
{
    char *text = NULL;
    size_t len = 0;
    FILE *to = open_memstream(&text, &len);
    assert_non_null(to);
    print(what, to);
    assert_int_equal(fclose(to), 0);
    return text;
}

static void print_settings(const void *config, FILE *to)
{
    bt_config_print(config, to);
}

static void print_help(const void *of, FILE *to)
{
    bt_config_print_help(of, to);
}

static void printed_settings_read_back_the_same(void **state)
{
    (void)state;
    settings s;
    settings again;
    setenv("BATON_CLUSTER_KEY", "tell-nobody", 1);
    bt_config *config = must_parse("--print-config --listen=x\"y\\z:#1 --threads 3 --router a,b "
                                   "--router c --no-local-prefill --rate 0.5",
                                   &s);
    assert_int_equal(bt_config_wanted(config), BT_CONFIG_PRINT);
    char *text = printed(print_settings, config);
    assert_non_null(strstr(text, "threads: 3  # --threads\n"));
    assert_non_null(strstr(text, "kv-pool-bytes: 512M  # default\n"));
    assert_non_null(strstr(text, "# cluster-key: (not shown)  # BATON_CLUSTER_KEY\n"));
    assert_null(strstr(text, "tell-nobody"));
    put_file(text);
    char line[200];
    (void)snprintf(line, sizeof line, "--config %s", file_path);
    bt_config *second = must_parse(line, &again);
    assert_string_equal(again.listen, "x\"y\\z:#1");
    assert_int_equal(again.threads, 3);
    assert_int_equal(again.routers.n, 2);
    assert_string_equal(again.routers.items[0], "a,b");
    assert_false(again.local_prefill);
    assert_true(again.rate == 0.5);
    free(text);
    bt_config_destroy(second);
    bt_config_destroy(config);
}

static void help_teaches_every_option_in_80_columns(void **state)
{
    (void)state;
    settings s;
    bt_config *config = must_parse("--threads wrong --help", &s); /* nothing else is checked */
    assert_int_equal(bt_config_wanted(config), BT_CONFIG_HELP);
    bt_config_destroy(config);
    char *text = printed(print_help, &spec);
    const char *const parts[] = {
        "Runs one worker with words enough that they have to be broken into lines that\n"
        "the source breaks elsewhere.\n\nAnd a second paragraph.\n",
        "Usage: baton worker [OPTIONS] [WORD...]\n",
        "\nNetwork\n  --listen HOST:PORT\n",
        "Default: 127.0.0.1:0; $BATON_LISTEN\n",
        "--no-local-prefill, --local-prefill\n",
        "Range: 1 to 1024 threads; $BATON_THREADS\n",
        "--role prefill|decode|both\n",
        "--router HOST:PORT (repeatable)\n",
        "Default: 600s; range: 1ms to 24h",
        "--print-config\n",
        "Examples\n  baton worker --role prefill\n",
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(parts); i++) {
        if (!strstr(text, parts[i])) {
            assert_string_equal(text, parts[i]);
        }
    }
    for (const char *line = text; line && *line; line = strchr(line, '\n')) {
        line += *line == '\n';
        assert_true(strcspn(line, "\n") <= 80);
    }
    free(text);
}

static void sizes_and_times_parse_and_format(void **state)
{
    (void)state;
    const struct {
        const char *text;
        uint64_t value;
        const char *shown;
    } sizes[] = {{"0", 0, "0"},
                 {"4096", 4096, "4KiB"},
                 {"16M", 16 << 20, "16MiB"},
                 {"2GiB", UINT64_C(2) << 30, "2GiB"},
                 {"1.5k", 1536, "1536"},
                 {"3kB", 3000, "3000"},
                 {"1TB", UINT64_C(1000000000000), "976562500KiB"}};
    char shown[32];
    for (size_t i = 0; i < BT_ARRAY_LEN(sizes); i++) {
        uint64_t bytes = 1;
        assert_int_equal(bt_config_parse_bytes(sizes[i].text, &bytes), BT_OK);
        assert_int_equal(bytes, sizes[i].value);
        bt_config_format_bytes(bytes, shown);
        assert_string_equal(shown, sizes[i].shown);
        assert_int_equal(bt_config_parse_bytes(shown, &bytes), BT_OK);
        assert_int_equal(bytes, sizes[i].value);
    }
    const struct {
        const char *text;
        int64_t ns;
        const char *shown;
    } times[] = {{"0", 0, "0"},
                 {"250ms", 250000000, "250ms"},
                 {"1.5s", 1500000000, "1500ms"},
                 {"90m", INT64_C(5400000000000), "90m"},
                 {"100us", 100000, "100us"},
                 {"7ns", 7, "7ns"}};
    for (size_t i = 0; i < BT_ARRAY_LEN(times); i++) {
        int64_t ns = 1;
        assert_int_equal(bt_config_parse_duration(times[i].text, &ns), BT_OK);
        assert_int_equal(ns, times[i].ns);
        bt_config_format_duration(ns, shown);
        assert_string_equal(shown, times[i].shown);
    }
    const char *const wrong[] = {"",   " 1",  "-1",   "1 K",          "1.",
                                 ".5", "1Kx", "0x10", "99999999999T", "18446744073709551616",
                                 "inf"};
    for (size_t i = 0; i < BT_ARRAY_LEN(wrong); i++) {
        uint64_t bytes;
        int64_t ns;
        assert_int_equal(bt_config_parse_bytes(wrong[i], &bytes), BT_EINVAL);
        assert_int_equal(bt_config_parse_duration(wrong[i], &ns), BT_EINVAL);
    }
}

static void lack_of_memory_ends_the_parse_without_a_leak(void **state)
{
    (void)state;
    if (!bt_fault_available()) {
        skip();
    }
    put_file("threads: 1\nrouter: [a, b]\nworker:\n  rate: 0.5\n");
    char line[200];
    (void)snprintf(line, sizeof line, "--config %s --router c --kv-pool-bytes 2M word", file_path);
    for (size_t n = 1;; n++) {
        settings s;
        bt_error err;
        bt_config *config = NULL;
        bt_fault_fail_nth(n);
        const bt_status status = parse(line, &s, &config, &err);
        if (!bt_fault_disarm()) {
            assert_int_equal(status, BT_OK);
            bt_config_destroy(config);
            assert_true(n > 20);
            break;
        }
        if (status == BT_OK) {
            bt_config_destroy(config); /* stdio and libyaml do without some of theirs */
        }
    }
}

#define config_test(name) cmocka_unit_test_setup(name, clear_environment)

int main(void)
{
    const struct CMUnitTest tests[] = {
        config_test(defaults_fill_what_nobody_set),
        config_test(flags_take_every_form),
        config_test(flag_beats_environment_beats_section_beats_file),
        config_test(lists_come_from_variables_too),
        config_test(wrong_flags_are_named_with_advice),
        config_test(wrong_files_are_named_with_their_line),
        config_test(empty_files_and_values_set_nothing),
        config_test(printed_settings_read_back_the_same),
        config_test(help_teaches_every_option_in_80_columns),
        config_test(sizes_and_times_parse_and_format),
        config_test(lack_of_memory_ends_the_parse_without_a_leak),
    };
    return cmocka_run_group_tests(tests, NULL, clear_environment);
}
