/* SPDX-License-Identifier: Apache-2.0 */
/* mutation.h - damages bytes in one of many ways, chosen by a number: the same for ever.
 *
 * Threading: any thread. Memory: the caller's.
 */
#ifndef BT_TESTS_SUPPORT_MUTATION_H
#define BT_TESTS_SUPPORT_MUTATION_H

#include <stddef.h>
#include <stdint.h>

/* Next number of the generator at *state. */
uint64_t bt_mutation_random(uint64_t *state);

/* Damages bytes[0..len-1] in one to four places: flips a bit, overwrites with an extreme number,
 * cuts the end, takes out, doubles or inserts a piece, swaps two. Returns the new length, at
 * most `capacity`. */
size_t bt_mutate(uint8_t *bytes, size_t len, size_t capacity, uint64_t number);

#endif /* BT_TESTS_SUPPORT_MUTATION_H */
