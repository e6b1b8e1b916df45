/* SPDX-License-Identifier: Apache-2.0 */
/* Checks in order of cost, the scan over the tokens last. */
#include "worker/admission.h"

#include <inttypes.h>

#include "engine/kv_layout.h"
#include "kvtransfer/transfer.h"

static bool address_fits(const char *address)
{
    for (uint32_t i = 0; i < BT_KV_ADDRESS_BYTES; i++) {
        if (address[i] == '\0') {
            return true;
        }
    }
    return false;
}

static bt_status check_peer(const bt_link_run *run, bt_error *err)
{
    if (!run->has_peer) {
        return bt_error_set(err, BT_EINVAL,
                            "cannot pull the KV cache: the request names no prefill worker");
    }
    if (run->peer.kv_tcp[0] == '\0' && run->peer.kv_unix[0] == '\0') {
        return bt_error_set(err, BT_EMISMATCH,
                            "cannot pull the KV cache from '%s': it serves none. Give that worker "
                            "a --kv-address",
                            run->peer.name);
    }
    if (!address_fits(run->peer.kv_tcp) || !address_fits(run->peer.kv_unix)) {
        return bt_error_set(err, BT_EMISMATCH,
                            "cannot pull the KV cache from '%s': its address is too long",
                            run->peer.name);
    }
    return BT_OK;
}

/* What this worker must hold at most: the known tokens, and where it decodes the next one and all
 * that may follow.
 * A sequence that outgrows the pool alone would never end. */
static uint64_t positions_max(const bt_admission *admission, const bt_link_run *run)
{
    if (run->mode == BT_LINK_MODE_PREFILL) {
        return run->n_tokens;
    }
    const uint64_t last = (uint64_t)run->n_prompt + run->sampling->max_tokens;
    const uint64_t most = last < admission->context ? last : admission->context;
    const uint64_t next = (uint64_t)run->n_tokens + 1;
    return most > next ? most : next;
}

static bt_status check_size(const bt_admission *admission, const bt_link_run *run, bt_error *err)
{
    if (run->n_prompt == 0 || run->n_prompt > run->n_tokens) {
        return bt_error_set(err, BT_EINVAL, "a request needs a prompt of at least one token");
    }
    if (run->n_tokens >= admission->context) {
        return bt_error_set(err, BT_ERANGE,
                            "the request has %" PRIu32 " tokens, and this worker's longest "
                            "sequence is %" PRIu32,
                            run->n_tokens, admission->context);
    }
    const uint64_t n_blocks = bt_div_ceil(positions_max(admission, run), BT_KV_BLOCK_TOKENS);
    if (n_blocks > admission->pool_blocks) {
        return bt_error_set(err, BT_EEXHAUSTED,
                            "the request may need %" PRIu64 " KV blocks, and this worker's pool "
                            "has %" PRIu32 ". Ask for fewer tokens or enlarge --kv-pool-bytes",
                            n_blocks, admission->pool_blocks);
    }
    return BT_OK;
}

bt_status bt_admission_check(const bt_admission *admission, const bt_link_run *run, bt_error *err)
{
    if ((admission->modes >> run->mode & 1u) == 0) {
        return bt_error_set(err, BT_EUNSUPPORTED, "this worker's role does not take such requests");
    }
    bt_status status = check_size(admission, run, err);
    if (status == BT_OK && run->mode == BT_LINK_MODE_DECODE) {
        status = check_peer(run, err);
    }
    if (status != BT_OK) {
        return status;
    }
    for (uint32_t i = 0; i < run->n_tokens; i++) {
        if (run->tokens[i] < 0 || (uint32_t)run->tokens[i] >= admission->n_vocab) {
            return bt_error_set(err, BT_EINVAL,
                                "token %" PRId32 " is not in the model's vocabulary of %" PRIu32,
                                run->tokens[i], admission->n_vocab);
        }
    }
    return BT_OK;
}
