/* SPDX-License-Identifier: Apache-2.0 */
/* JSON in: what parses is walked, its strings are written again and read back the same. */
#include <string.h>

#include "common/json.h"
#include "tests/fuzz/fuzz.h"

enum { VALUES_MAX = 1024 }; /* looked at; the rest is destroyed alone */

static void check_string(const char *text, size_t len)
{
    bt_json_writer writer;
    bt_json_writer_init(&writer, 0);
    bt_json_string_n(&writer, text, len);
    size_t written;
    const char *line = bt_json_writer_text(&writer, &written);
    FUZZ_EXPECT(line != NULL);
    bt_json *again;
    FUZZ_EXPECT(bt_json_parse(line, written, &again, NULL) == BT_OK);
    size_t again_len;
    const char *again_text = bt_json_as_string(again, &again_len);
    FUZZ_EXPECT(again_text != NULL && again_len == len && memcmp(again_text, text, len) == 0);
    bt_json_destroy(again);
    bt_json_writer_deinit(&writer);
}

/* Breadth first, so that nothing nests here. */
static void walk(const bt_json *root)
{
    const bt_json *values[VALUES_MAX] = {root};
    size_t n = 1;
    for (size_t i = 0; i < n; i++) {
        size_t len;
        const char *text = bt_json_as_string(values[i], &len);
        if (text) {
            check_string(text, len);
        }
        int64_t whole;
        double number;
        if (bt_json_as_int(values[i], &whole)) {
            FUZZ_EXPECT(bt_json_as_double(values[i], &number));
        }
        void *cursor = NULL;
        const char *key;
        const bt_json *value;
        while (bt_json_next(values[i], &cursor, &key, &value)) {
            FUZZ_EXPECT(bt_json_get(values[i], key) == value);
            if (n < VALUES_MAX) {
                values[n++] = value;
            }
        }
        if (bt_json_type_of(values[i]) == BT_JSON_ARRAY) {
            for (size_t at = 0; at < bt_json_len(values[i]) && n < VALUES_MAX; at++) {
                values[n++] = bt_json_at(values[i], at);
            }
        }
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_json *json;
    bt_error err = {0};
    const bt_status status = bt_json_parse((const char *)data, size, &json, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
        return 0;
    }
    walk(json);
    bt_json_destroy(json);
    return 0;
}
