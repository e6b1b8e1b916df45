/* SPDX-License-Identifier: Apache-2.0 */
/* paths.h - which kernel paths there are, what each needs, and which this CPU should use.
 *
 * Threading: any thread. Memory: none.
 */
#ifndef BT_ENGINE_CPU_PATHS_H
#define BT_ENGINE_CPU_PATHS_H

#include "engine/cpu/kernels.h"

typedef struct bt_cpu_path {
    const char *name;
    const char *needs; /* instruction sets, in words */
    bool (*is_supported)(void);
    const bt_cpu_kernels *(*kernels)(void); /* NULL: reference.c */
} bt_cpu_path;

/* All paths, the fastest instruction set first, "reference" last. */
const bt_cpu_path *bt_cpu_paths(size_t *n);

/* The path of that name, or NULL. */
const bt_cpu_path *bt_cpu_path_find(const char *name);

/* "auto": by CPU model where the table knows it, else by what the CPU has. */
const bt_cpu_path *bt_cpu_path_choose(void);

#endif /* BT_ENGINE_CPU_PATHS_H */
