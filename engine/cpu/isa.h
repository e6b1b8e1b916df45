/* SPDX-License-Identifier: Apache-2.0 */
/* isa.h - names of the kernels of the instruction set that is being compiled.
 *
 * BUILD compiles matmul.c, attention.c, elementwise.c and table.c once for each set with
 * -DBT_ISA=name and the compiler's options for it; BT_K(matmul) is bt_cpu_matmul_name.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_ISA_H
#define BT_ENGINE_CPU_ISA_H

#include "engine/cpu/kernels.h"

#define BT_ISA_JOIN2(name, isa) bt_cpu_##name##_##isa
#define BT_ISA_JOIN(name, isa) BT_ISA_JOIN2(name, isa)
#define BT_K(name) BT_ISA_JOIN(name, BT_ISA)

/* See bt_cpu_kernels. */
size_t BT_K(matmul_scratch_bytes)(uint32_t k_pairs_max, uint32_t n_rows_max);
void BT_K(matmul)(const bt_matmul_part *part);
void BT_K(attention)(const bt_attention_part *part);
void BT_K(attention_combine)(const bt_segment_state *states, size_t stride_states,
                             const float *accs, size_t stride_accs, uint32_t n_segments,
                             uint32_t head_dim, float *out);
void BT_K(rms_norm)(const float *x, const float *weight, float eps, uint32_t row_first,
                    uint32_t row_end, uint32_t dim, float *out);
void BT_K(silu_mul)(const float *x, uint32_t row_first, uint32_t row_end, uint32_t n, float *out);
void BT_K(rope_store)(const bt_attention_args *args, const bt_kv_span *span, uint32_t first,
                      uint32_t end, float *qkv);

/* Bytes of scratch that one attention part takes. */
size_t BT_K(attention_scratch_bytes)(void);

#endif /* BT_ENGINE_CPU_ISA_H */
