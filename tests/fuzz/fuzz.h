/* SPDX-License-Identifier: Apache-2.0 */
/* fuzz.h - what every fuzz target is, and the little that they share.
 *
 * A target takes any bytes and must come back: no crash, no leak, no hang, and each answer of
 * the code under test as its header promises. Built by tools/fuzz it runs under libFuzzer; built
 * as a plain test (replay.c) it runs over its seeds and a few mutations of each.
 *
 * Threading: one thread. Memory: what a call takes it gives back.
 */
#ifndef BT_TESTS_FUZZ_FUZZ_H
#define BT_TESTS_FUZZ_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/status.h"

/* The target: always returns 0. Its name is libFuzzer's. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* Ends the process, visibly, unless `condition` holds: a promise was broken. */
#define FUZZ_EXPECT(condition) bt_fuzz_expect((condition), #condition, __FILE__, __LINE__)
void bt_fuzz_expect(bool condition, const char *text, const char *file, int line);

/* A failure has a text of its own, which is one line without control bytes. */
void bt_fuzz_expect_told(bt_status status, const bt_error *err);

enum { BT_FUZZ_PATH_BYTES = 64 };

/* Input as a file: `path` names it until bt_fuzz_file_close(). */
int bt_fuzz_file_open(const uint8_t *data, size_t size, char path[BT_FUZZ_PATH_BYTES]);
void bt_fuzz_file_close(int fd);

/* Input piece by piece. Past the end: zeros, and empty pieces. */
typedef struct bt_fuzz_input {
    const uint8_t *bytes;
    size_t len;
} bt_fuzz_input;

uint8_t bt_fuzz_u8(bt_fuzz_input *in);
uint16_t bt_fuzz_u16(bt_fuzz_input *in);
uint32_t bt_fuzz_u32(bt_fuzz_input *in);

/* What stands before the next byte `end`, which is skipped, or all that is left. */
bt_fuzz_input bt_fuzz_until(bt_fuzz_input *in, uint8_t end);

/* The next `len` bytes, or what is left of them. */
bt_fuzz_input bt_fuzz_piece(bt_fuzz_input *in, size_t len);

#endif /* BT_TESTS_FUZZ_FUZZ_H */
