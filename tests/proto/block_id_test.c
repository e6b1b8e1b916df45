/* SPDX-License-Identifier: Apache-2.0 */
/* block_id: hashes equal those of another implementation, Python's hashlib, by this script:
 *
 *   from hashlib import blake2b
 *   import struct
 *   secret = b'0123456789abcdef-baton'
 *   key = blake2b(b'baton cluster key' + secret, digest_size=32).digest()
 *   def keyed(data): return blake2b(data, key=key, digest_size=16).digest()
 *   def keyed32(data): return blake2b(data, key=key, digest_size=32).hexdigest()
 *   print('admin', keyed32(b'baton admin token'))
 *   print('tenant', keyed32(b'baton tenant salt' + b'alice\0' + b'salt'))
 *   numerics = bytes(range(16))
 *   root = keyed(b'baton chain root' + numerics)
 *   salted = keyed(b'baton chain root' + numerics + b'tenant-a')
 *   print('root', root.hex()); print('salted', salted.hex())
 *   h = root
 *   tokens = [(i * 7919 + 3) % 49152 for i in range(48)]
 *   for i in range(3):
 *       h = blake2b(h + struct.pack('<16i', *tokens[16*i:16*i+16]), digest_size=16).digest()
 *       print('h', i, h.hex())
 *
 * and differ wherever key, numerics, salt, parent or a token differs. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <string.h>

#include "proto/block_id.h"

static const char SECRET[] = "0123456789abcdef-baton";

static bt_cluster_key make_key(const char *secret)
{
    bt_cluster_key key;
    bt_error err;
    assert_int_equal(bt_cluster_key_init(&key, secret, strlen(secret), &err), BT_OK);
    return key;
}

static bt_block_hash make_root(const char *secret, uint8_t first_numerics, const char *salt)
{
    const bt_cluster_key key = make_key(secret);
    uint8_t numerics[BT_BLOCK_HASH_BYTES];
    for (size_t i = 0; i < sizeof numerics; i++) {
        numerics[i] = (uint8_t)(first_numerics + i);
    }
    bt_block_hash root;
    bt_block_id_root(&key, numerics, salt, salt != NULL ? strlen(salt) : 0, &root);
    return root;
}

static void make_tokens(int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        tokens[i] = (int32_t)((i * 7919 + 3) % 49152);
    }
}

static void expect_hex(bt_block_hash hash, const char *expected)
{
    char hex[BT_HASH128_HEX_BYTES];
    bt_hash128_hex(hash, hex);
    assert_string_equal(hex, expected);
}

static void make_salt(const char *tenant, const char *salt, char hex[BT_HASH256_HEX_BYTES])
{
    const bt_cluster_key key = make_key(SECRET);
    uint8_t bytes[BT_BLOCK_SALT_BYTES];
    bt_block_id_tenant_salt(&key, tenant, salt, salt != NULL ? strlen(salt) : 0, bytes);
    bt_hash_hex(bytes, sizeof bytes, hex);
}

static void expect_salt(const char *tenant, const char *salt, const char *expected)
{
    char hex[BT_HASH256_HEX_BYTES];
    make_salt(tenant, salt, hex);
    assert_string_equal(hex, expected);
}

static void hashes_equal_those_of_hashlib(void **state)
{
    (void)state;
    const bt_cluster_key key = make_key(SECRET);
    char token[BT_CLUSTER_KEY_TOKEN_BYTES];
    bt_cluster_key_admin_token(&key, token);
    assert_string_equal(token, "48e7414f58f9f2c6a4ff57f270357e325dc71f8fb7e6470d5db11657dd07587e");
    expect_salt("alice", "salt",
                "f379a9be8a8f743172bb214661eaa4c2b8da37e70a286728c5682a1c2efa21cd");
    const bt_block_hash root = make_root(SECRET, 0, NULL);
    expect_hex(root, "a4d674519d161f3f02bd9025fecef2c9");
    expect_hex(make_root(SECRET, 0, "tenant-a"), "ea364107df712c12d1651ae0670d8648");
    int32_t tokens[48];
    make_tokens(tokens, BT_ARRAY_LEN(tokens));
    bt_block_hash chain[3];
    assert_int_equal(bt_block_id_chain(&root, tokens, 48, chain), 3);
    expect_hex(chain[0], "59a4e73ca5efb4fd19bb13d15f8908dd");
    expect_hex(chain[1], "be2c3f8c567ee4295062ed0732029a55");
    expect_hex(chain[2], "44b9e85d5794ab393fed5abb6573bc4c");
}

static void partly_filled_blocks_have_no_identity(void **state)
{
    (void)state;
    const bt_block_hash root = make_root(SECRET, 0, NULL);
    int32_t tokens[48];
    make_tokens(tokens, BT_ARRAY_LEN(tokens));
    bt_block_hash chain[3];
    assert_int_equal(bt_block_id_chain(&root, tokens, 15, chain), 0);
    assert_int_equal(bt_block_id_chain(&root, tokens, 47, chain), 2);
}

static void next_may_write_over_its_parent(void **state)
{
    (void)state;
    bt_block_hash hash = make_root(SECRET, 0, NULL);
    int32_t tokens[16];
    make_tokens(tokens, BT_ARRAY_LEN(tokens));
    bt_block_id_next(&hash, tokens, &hash);
    expect_hex(hash, "59a4e73ca5efb4fd19bb13d15f8908dd");
}

static void every_input_changes_the_hash(void **state)
{
    (void)state;
    const bt_block_hash root = make_root(SECRET, 0, "a");
    assert_false(bt_hash128_equal(root, make_root("another secret 01", 0, "a")));
    assert_false(bt_hash128_equal(root, make_root(SECRET, 1, "a")));
    assert_false(bt_hash128_equal(root, make_root(SECRET, 0, "b")));
    assert_false(bt_hash128_equal(root, make_root(SECRET, 0, NULL)));
    int32_t tokens[16];
    make_tokens(tokens, BT_ARRAY_LEN(tokens));
    bt_block_hash before;
    bt_block_id_next(&root, tokens, &before);
    for (size_t i = 0; i < BT_ARRAY_LEN(tokens); i++) {
        tokens[i] ^= 1 << (i + 8);
        bt_block_hash after;
        bt_block_id_next(&root, tokens, &after);
        assert_false(bt_hash128_equal(before, after));
        tokens[i] ^= 1 << (i + 8);
    }
}

/* Also where name and salt together are the same text. */
static void no_two_tenants_have_one_salt(void **state)
{
    (void)state;
    static const struct {
        const char *tenant;
        const char *salt;
    } all[] = {{"a", NULL}, {"a", "b"}, {"ab", NULL}, {"b", NULL}, {"b", "a"}, {"a", "a"}};
    char hex[BT_ARRAY_LEN(all)][BT_HASH256_HEX_BYTES];
    for (size_t i = 0; i < BT_ARRAY_LEN(all); i++) {
        make_salt(all[i].tenant, all[i].salt, hex[i]);
        for (size_t k = 0; k < i; k++) {
            assert_string_not_equal(hex[i], hex[k]);
        }
    }
}

static void short_and_long_secrets_are_refused_with_advice(void **state)
{
    (void)state;
    static const char bytes[BT_CLUSTER_KEY_BYTES_MAX + 1];
    bt_cluster_key key;
    bt_error err = {{0}};
    assert_int_equal(bt_cluster_key_init(&key, bytes, BT_CLUSTER_KEY_BYTES_MIN - 1, &err),
                     BT_EINVAL);
    assert_non_null(strstr(err.text, "15 bytes"));
    assert_int_equal(bt_cluster_key_init(&key, bytes, sizeof bytes, &err), BT_EINVAL);
    assert_int_equal(bt_cluster_key_init(&key, bytes, BT_CLUSTER_KEY_BYTES_MAX, &err), BT_OK);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hashes_equal_those_of_hashlib),
        cmocka_unit_test(partly_filled_blocks_have_no_identity),
        cmocka_unit_test(next_may_write_over_its_parent),
        cmocka_unit_test(every_input_changes_the_hash),
        cmocka_unit_test(no_two_tenants_have_one_salt),
        cmocka_unit_test(short_and_long_secrets_are_refused_with_advice),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
