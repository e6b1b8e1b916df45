/* SPDX-License-Identifier: Apache-2.0 */
/* make_hostile_gguf FOLDER STEP - writes the right model and every STEP-th file of hostile_gguf.h,
 * and prints a line for each, for tests in Python: path, tab, name, tab, what must be said (or "-":
 * it may load). */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/hostile_gguf.h"

static void write_file(const char *folder, const char *name, const uint8_t *bytes, size_t len,
                       const char *title, const char *says)
{
    char path[512];
    (void)snprintf(path, sizeof path, "%s/%s.gguf", folder, name);
    FILE *file = fopen(path, "wb");
    if (!file || fwrite(bytes, 1, len, file) != len || fclose(file) != 0) {
        fprintf(stderr, "make_hostile_gguf: cannot write '%s'\n", path);
        exit(1);
    }
    printf("%s\t%s\t%s\n", path, title, says ? says : "-");
}

int main(int argc, char **argv)
{
    const unsigned long step = argc == 3 ? strtoul(argv[2], NULL, 10) : 0;
    if (step == 0) {
        fprintf(stderr, "usage: make_hostile_gguf FOLDER STEP\n");
        return 2;
    }
    uint8_t *bytes;
    size_t len;
    if (bt_hostile_gguf_make_right(&bytes, &len) != BT_OK) {
        return 1;
    }
    write_file(argv[1], "right", bytes, len, "right", NULL);
    free(bytes);
    for (size_t i = 0; i < bt_hostile_gguf_count(); i += step) {
        bt_hostile_gguf file;
        if (bt_hostile_gguf_make(i, &file) != BT_OK) {
            return 1;
        }
        char name[32];
        (void)snprintf(name, sizeof name, "%zu", i);
        write_file(argv[1], name, file.bytes, file.len, file.name, file.says);
        free(file.bytes);
    }
    return 0;
}
