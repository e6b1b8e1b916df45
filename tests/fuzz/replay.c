/* SPDX-License-Identifier: Apache-2.0 */
/* A fuzz target as a plain test: argv[1] is the folder of its seeds. Every seed is taken, and so
 * are mutations of each, drawn by a generator of fixed seed: cut, flipped, filled, doubled,
 * swapped. A target aborts when a promise is broken; an alarm ends one that hangs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "tests/fuzz/fuzz.h"
#include "tests/support/mutation.h"

enum {
    SEEDS_MAX = 256,
    SEED_BYTES_MAX = 1 << 18,
    MUTATIONS = 64, /* of each seed */
    INPUT_SECONDS_MAX = 5,
};

typedef struct seed {
    uint8_t *bytes;
    size_t len;
} seed;

typedef struct fixture {
    const char *folder;
    seed seeds[SEEDS_MAX];
    size_t n;
} fixture;

static void read_seed(fixture *f, const char *name)
{
    char path[512];
    assert_true(snprintf(path, sizeof path, "%s/%s", f->folder, name) < (int)sizeof path);
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    assert_true(f->n < SEEDS_MAX);
    seed *made = &f->seeds[f->n++];
    made->bytes = malloc(SEED_BYTES_MAX);
    assert_non_null(made->bytes);
    made->len = fread(made->bytes, 1, SEED_BYTES_MAX, file);
    assert_int_equal(fclose(file), 0);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static int set_up(void **state)
{
    fixture *f = *state;
    char *names[SEEDS_MAX];
    size_t n = 0;
    DIR *folder = opendir(f->folder);
    assert_non_null(folder);
    for (struct dirent *entry = readdir(folder); entry; entry = readdir(folder)) {
        if (entry->d_name[0] != '.') {
            assert_true(n < SEEDS_MAX);
            names[n] = strdup(entry->d_name);
            assert_non_null(names[n++]);
        }
    }
    closedir(folder);
    qsort(names, n, sizeof *names, compare_names);
    for (size_t i = 0; i < n; i++) {
        read_seed(f, names[i]);
        free(names[i]);
    }
    assert_true(f->n > 0);
    return 0;
}

static int tear_down(void **state)
{
    fixture *f = *state;
    for (size_t i = 0; i < f->n; i++) {
        free(f->seeds[i].bytes);
    }
    return 0;
}

/* A copy without a byte behind it, so that a sanitizer sees the first one read past the end. */
static void take(const uint8_t *bytes, size_t len)
{
    uint8_t *copy = malloc(len > 0 ? len : 1);
    assert_non_null(copy);
    memcpy(copy, bytes, len);
    alarm(INPUT_SECONDS_MAX * 4); /* four times as much under a sanitizer on a busy machine */
    (void)LLVMFuzzerTestOneInput(copy, len);
    alarm(0);
    free(copy);
}

static void every_seed_is_taken(void **state)
{
    const fixture *f = *state;
    take((const uint8_t *)"", 0);
    for (size_t i = 0; i < f->n; i++) {
        take(f->seeds[i].bytes, f->seeds[i].len);
    }
}

static void mutations_of_every_seed_are_taken(void **state)
{
    const fixture *f = *state;
    uint8_t *bytes = malloc(2 * SEED_BYTES_MAX);
    assert_non_null(bytes);
    for (size_t i = 0; i < f->n; i++) {
        for (uint64_t number = 0; number < MUTATIONS; number++) {
            memcpy(bytes, f->seeds[i].bytes, f->seeds[i].len);
            take(bytes, bt_mutate(bytes, f->seeds[i].len, 2 * SEED_BYTES_MAX, number));
        }
    }
    free(bytes);
}

int main(int argc, char **argv)
{
    static fixture f;
    if (argc != 2) {
        fprintf(stderr, "usage: %s FOLDER_OF_SEEDS\n", argv[0]);
        return 2;
    }
    f.folder = argv[1];
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_seed_is_taken, &f),
        cmocka_unit_test_prestate(mutations_of_every_seed_are_taken, &f),
    };
    void *state = &f;
    if (set_up(&state) != 0) {
        return 1;
    }
    const int n_failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)tear_down(&state);
    return n_failed;
}
