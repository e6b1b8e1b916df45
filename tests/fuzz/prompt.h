/* SPDX-License-Identifier: Apache-2.0 */
/* prompt.h - a prompt out of a fuzzed request, against a tiny model's tokenizer and template.
 *
 * Threading: one thread. Memory: the model is kept for the life of the process.
 */
#ifndef BT_TESTS_FUZZ_PROMPT_H
#define BT_TESTS_FUZZ_PROMPT_H

#include "router/prompt.h"

/* Computes it as the router does; its tokens are in the vocabulary, or it is told why not. */
void bt_fuzz_compute_prompt(const bt_router_prompt_input *input);

#endif /* BT_TESTS_FUZZ_PROMPT_H */
