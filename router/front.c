/* SPDX-License-Identifier: Apache-2.0 */
/* The ranges of the public API, once for all doors. Numbers are checked as "not inside", so
 * that NaN fails too. */
#include "router/front.h"

#include <inttypes.h>

#include "common/name.h"

static bt_status check_number(const char *name, double value, double min, bool min_is_in,
                              double max, bool max_is_in, bt_error *err)
{
    const bool above = min_is_in ? value >= min : value > min;
    const bool below = max_is_in ? value <= max : value < max;
    if (above && below) {
        return BT_OK;
    }
    return bt_error_set(err, BT_EINVAL, "%s is %g: must be in %c%g, %g%c", name, value,
                        min_is_in ? '[' : '(', min, max, max_is_in ? ']' : ')');
}

static bt_status check_counts(const bt_sampling *s, bt_error *err)
{
    if (s->n_top_logprobs > BT_TOP_LOGPROBS_MAX) {
        return bt_error_set(err, BT_EINVAL,
                            "sampling.n_top_logprobs is %" PRIu32 ": must be in [0, %d]",
                            s->n_top_logprobs, (int)BT_TOP_LOGPROBS_MAX);
    }
    if (s->n_top_logprobs > 0 && !s->logprobs) {
        return bt_error_set(err, BT_EINVAL,
                            "sampling.n_top_logprobs is %" PRIu32 " without sampling.logprobs",
                            s->n_top_logprobs);
    }
    return BT_OK;
}

static bt_status check_bias(const bt_sampling *s, bt_error *err)
{
    for (uint32_t i = 0; i < s->n_logit_bias; i++) {
        const float bias = s->logit_bias[i].bias;
        if (!(bias >= -100 && bias <= 100)) {
            return bt_error_set(err, BT_EINVAL,
                                "sampling.logit_bias[%" PRId32 "] is %g: must be in [-100, 100]",
                                s->logit_bias[i].token, (double)bias);
        }
    }
    return BT_OK;
}

static bt_status check_sampling(const bt_sampling *s, bt_error *err)
{
    const struct {
        const char *name;
        float value;
        double min;
        bool min_is_in;
        double max;
        bool max_is_in;
    } ranges[] = {
        {"sampling.temperature", s->temperature, 0, true, 2, true},
        {"sampling.top_p", s->top_p, 0, false, 1, true},
        {"sampling.min_p", s->min_p, 0, true, 1, false},
        {"sampling.repetition_penalty", s->repetition_penalty, 0, false, 2, true},
        {"sampling.presence_penalty", s->presence_penalty, -2, true, 2, true},
        {"sampling.frequency_penalty", s->frequency_penalty, -2, true, 2, true},
    };
    for (size_t i = 0; i < BT_ARRAY_LEN(ranges); i++) {
        const bt_status status =
            check_number(ranges[i].name, (double)ranges[i].value, ranges[i].min,
                         ranges[i].min_is_in, ranges[i].max, ranges[i].max_is_in, err);
        if (status != BT_OK) {
            return status;
        }
    }
    const bt_status status = check_counts(s, err);
    return status != BT_OK ? status : check_bias(s, err);
}

static bt_status check_length(const char *name, size_t len, size_t max, bt_error *err)
{
    if (len <= max) {
        return BT_OK;
    }
    return bt_error_set(err, BT_EINVAL, "%s has %zu bytes: at most %zu", name, len, max);
}

static bt_status check_stops(const bt_router_front_request *request, bt_error *err)
{
    for (size_t i = 0; i < request->n_stops; i++) {
        if (request->stop_lens[i] == 0 || request->stop_lens[i] > BT_ROUTER_STOP_STRING_BYTES_MAX) {
            return bt_error_set(err, BT_EINVAL, "sampling.stop[%zu] has %zu bytes: must be 1 to %d",
                                i, request->stop_lens[i], (int)BT_ROUTER_STOP_STRING_BYTES_MAX);
        }
    }
    return BT_OK;
}

static bt_status check_max_tokens(const bt_router_front_request *request, bt_error *err)
{
    const bt_sampling *s = &request->sampling;
    if (!request->has_max_tokens) {
        return BT_OK;
    }
    if (s->max_tokens == 0 && !s->echo) {
        return bt_error_set(err, BT_EINVAL,
                            "sampling.max_tokens is 0: must be at least 1 without sampling.echo");
    }
    if (s->min_tokens > s->max_tokens) {
        return bt_error_set(err, BT_EINVAL,
                            "sampling.min_tokens is %" PRIu32
                            ": must not exceed sampling.max_tokens, %" PRIu32,
                            s->min_tokens, s->max_tokens);
    }
    return BT_OK;
}

bt_status bt_router_front_check(const bt_router_front_request *request, bt_error *err)
{
    bt_status status = check_sampling(&request->sampling, err);
    if (status == BT_OK) {
        status = check_max_tokens(request, err);
    }
    if (status == BT_OK) {
        status = check_stops(request, err);
    }
    if (status == BT_OK && (request->priority < -100 || request->priority > 100)) {
        status = bt_error_set(err, BT_EINVAL, "priority is %" PRId32 ": must be in [-100, 100]",
                              request->priority);
    }
    /* A day is more than any request may take. */
    if (status == BT_OK) {
        status =
            check_number("ttft_target_ms", request->ttft_target_ms, 0, true, 86400e3, true, err);
    }
    if (status == BT_OK) {
        status =
            check_number("tpot_target_ms", request->tpot_target_ms, 0, true, 86400e3, true, err);
    }
    if (status == BT_OK) {
        status =
            check_length("session_id", request->session_id_len, BT_ROUTER_SESSION_BYTES_MAX, err);
    }
    if (status == BT_OK) {
        status = check_length("cache_salt", request->cache_salt_len, BT_ROUTER_SALT_BYTES_MAX, err);
    }
    if (status == BT_OK && request->label != NULL) {
        status = bt_name_check("x-request-id", request->label, BT_ROUTER_LABEL_MAX, err);
    }
    return status;
}
