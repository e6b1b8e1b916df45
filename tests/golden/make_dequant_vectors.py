#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes tests/engine/dequant_vectors.h: random blocks of each quantized type and the f32 values
that the Python package gguf gives for them.

    python3 tests/golden/make_dequant_vectors.py

Needs: numpy, gguf.
"""

import gguf
import numpy as np

# type, blocks, offsets of the f16 numbers in a block (kept finite)
TYPES = [("Q8_0", 2, [0]), ("Q4_0", 2, [0]), ("Q4_1", 2, [0, 2]), ("Q6_K", 2, [208]),
         ("F16", 32, [0]), ("BF16", 32, [])]


def lines(items, per_line):
    return "".join("    " + " ".join(i + "," for i in items[k:k + per_line]) + "\n"
                   for k in range(0, len(items), per_line))


def main():
    random = np.random.default_rng(11)
    with open("tests/engine/dequant_vectors.h", "w") as out:
        out.write("/* SPDX-License-Identifier: Apache-2.0 */\n"
                  "/* Random blocks and their values, made by tests/golden/make_dequant_vectors.py.\n"
                  " * Don't edit. */\n"
                  "#ifndef BT_TESTS_ENGINE_DEQUANT_VECTORS_H\n"
                  "#define BT_TESTS_ENGINE_DEQUANT_VECTORS_H\n\n#include <stdint.h>\n")
        for name, n_blocks, halves in TYPES:
            kind = gguf.GGMLQuantizationType[name]
            _, size = gguf.GGML_QUANT_SIZES[kind]
            blocks = random.integers(0, 256, (n_blocks, size), dtype=np.uint8)
            for at in halves:
                scale = random.normal(0, 0.02, n_blocks).astype(np.float16)
                blocks[:, at:at + 2] = scale.view(np.uint8).reshape(n_blocks, 2)
            if name == "BF16":
                values = random.normal(0, 1, n_blocks).astype(np.float32).view(np.uint32)
                blocks = (values >> 16).astype(np.uint16).view(np.uint8).reshape(n_blocks, 2)
            want = gguf.dequantize(blocks.reshape(1, -1), kind).astype(np.float32).reshape(-1)
            lower = name.lower()
            out.write("\nstatic const uint8_t %s_blocks[] = {\n" % lower)
            out.write(lines(["%d" % b for b in blocks.reshape(-1)], 20))
            out.write("};\n\nstatic const uint32_t %s_bits[] = {\n" % lower)
            out.write(lines(["0x%08X" % b for b in want.view(np.uint32)], 8))
            out.write("};\n")
        out.write("\n#endif\n")


if __name__ == "__main__":
    main()
