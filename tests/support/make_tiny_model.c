/* SPDX-License-Identifier: Apache-2.0 */
/* make_tiny_model odd|wide|long FILE - writes one of tiny_model.h's models, for tests in Python. */
#include <stdio.h>
#include <string.h>

#include "tests/support/tiny_model.h"

int main(int argc, char **argv)
{
    const bt_tiny_model *model = NULL;
    if (argc == 3 && strcmp(argv[1], "odd") == 0) {
        model = &bt_tiny_model_odd;
    } else if (argc == 3 && strcmp(argv[1], "wide") == 0) {
        model = &bt_tiny_model_wide;
    } else if (argc == 3 && strcmp(argv[1], "long") == 0) {
        model = &bt_tiny_model_long;
    }
    if (model == NULL) {
        fprintf(stderr, "usage: make_tiny_model odd|wide|long FILE\n");
        return 2;
    }
    const bt_status status = bt_tiny_model_write(model, argv[2]);
    if (status != BT_OK) {
        fprintf(stderr, "make_tiny_model: cannot write '%s': %s\n", argv[2],
                bt_status_text(status));
        return 1;
    }
    return 0;
}
