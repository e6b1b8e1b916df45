/* SPDX-License-Identifier: Apache-2.0 */
/* The file of API keys, up to a byte 0, and an authorization header, which is the rest. The oracle:
 * a header lets in whom the file names, and nobody when it does not begin with the scheme (in any
 * case, RFC 9110, section 11.1) and a space. */
#include <string.h>
#include <strings.h>

#include "common/keys.h"
#include "common/log.h"
#include "tests/fuzz/fuzz.h"

enum { HEADER_BYTES_MAX = 1024 };

static void check_header(bt_keys *keys, const char *header)
{
    static const bt_keys_use uses[] = {BT_KEYS_API, BT_KEYS_METRICS};
    for (size_t i = 0; i < BT_ARRAY_LEN(uses); i++) {
        bt_keys_client client = {.name = ""};
        bt_error err = {""};
        const bt_status status = bt_keys_check(keys, header, uses[i], &client, &err);
        if (status != BT_OK) {
            FUZZ_EXPECT(status == BT_EPERMISSION);
            bt_fuzz_expect_told(status, &err);
            continue;
        }
        FUZZ_EXPECT(header != NULL && strncasecmp(header, "Bearer ", 7) == 0);
        FUZZ_EXPECT(strlen(header) - 7 >= BT_KEYS_SECRET_MIN);
        FUZZ_EXPECT(memchr(client.name, 0, sizeof client.name) != NULL && client.name[0] != '\0');
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    bt_log_init(BT_ERROR, BT_LOG_FORMAT_TEXT, NULL);
    bt_fuzz_input in = {data, size};
    const bt_fuzz_input file = bt_fuzz_until(&in, 0);
    char header[HEADER_BYTES_MAX + 1] = "";
    const bt_fuzz_input said = bt_fuzz_piece(&in, HEADER_BYTES_MAX);
    if (said.len > 0) {
        memcpy(header, said.bytes, said.len); /* what follows a NUL is left out */
    }
    char path[BT_FUZZ_PATH_BYTES];
    const int fd = bt_fuzz_file_open(file.bytes, file.len, path);
    bt_keys *keys = NULL;
    bt_error err = {""};
    const bt_status status = bt_keys_create(path, &keys, &err);
    if (status != BT_OK) {
        bt_fuzz_expect_told(status, &err);
    } else {
        FUZZ_EXPECT(bt_keys_count(keys) <= BT_KEYS_MAX);
        check_header(keys, NULL);
        check_header(keys, header);
        bt_keys_refresh(keys);
        bt_keys_destroy(keys);
    }
    bt_fuzz_file_close(fd);
    return 0;
}
