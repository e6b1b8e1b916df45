/* SPDX-License-Identifier: Apache-2.0 */
/* crc32c.h - CRC-32C (Castagnoli, RFC 3720 appendix B.4) of KV parts and frames.
 *
 * SSE4.2 where the CPU has it, tables elsewhere; same result. Chosen at each call
 * from a CPU flag, so there is nothing to set up.
 *
 * Threading: any thread (no state).
 * Memory:    none.
 */
#ifndef BT_COMMON_CRC32C_H
#define BT_COMMON_CRC32C_H

#include "common/base.h"

/* CRC of the bytes that gave `crc` followed by these; begin with 0:
 *   bt_crc32c(bt_crc32c(0, a, n), b, m) is the CRC of a then b. */
uint32_t bt_crc32c(uint32_t crc, const void *bytes, size_t n);

/* Copies n bytes (no overlap) and returns their CRC, in one pass over the memory. Copies
 * of 4 KiB and more to a 16-byte-aligned target go past the caches. */
uint32_t bt_crc32c_copy(uint32_t crc, void *restrict target, const void *restrict source, size_t n);

/* CRC of a then b from their CRCs alone, `b_bytes` being the length of b. O(log b_bytes). */
uint32_t bt_crc32c_combine(uint32_t crc_a, uint32_t crc_b, uint64_t b_bytes);

/* "sse4.2" or "tables". */
const char *bt_crc32c_path(void);

/* Test only: always the tables. */
uint32_t bt_crc32c_portable(uint32_t crc, const void *bytes, size_t n);

#endif /* BT_COMMON_CRC32C_H */
