/* SPDX-License-Identifier: Apache-2.0 */
#include "router/history.h"

#include <stdlib.h>

#include "common/check.h"

struct bt_router_history {
    bt_router_timeline *items; /* [n] */
    uint32_t n;
    uint64_t n_added; /* the next one goes to n_added % n */
};

bt_router_attempt *bt_router_attempts_add(bt_router_attempts *attempts)
{
    bt_router_attempt *attempt = &attempts->kept[attempts->n++ % BT_ROUTER_ATTEMPTS_KEPT];
    *attempt = (bt_router_attempt){0};
    return attempt;
}

bt_router_attempt *bt_router_attempts_newest(bt_router_attempts *attempts)
{
    return attempts->n == 0 ? NULL : &attempts->kept[(attempts->n - 1) % BT_ROUTER_ATTEMPTS_KEPT];
}

uint32_t bt_router_attempts_kept(const bt_router_attempts *attempts)
{
    return attempts->n < BT_ROUTER_ATTEMPTS_KEPT ? attempts->n : BT_ROUTER_ATTEMPTS_KEPT;
}

const bt_router_attempt *bt_router_attempts_at(const bt_router_attempts *attempts, uint32_t idx)
{
    const uint32_t n_kept = bt_router_attempts_kept(attempts);
    BT_ASSERT(idx < n_kept);
    return &attempts->kept[(attempts->n - n_kept + idx) % BT_ROUTER_ATTEMPTS_KEPT];
}

bt_status bt_router_history_create(uint32_t n, bt_router_history **out)
{
    bt_router_history *history = calloc(1, sizeof *history);
    bt_router_timeline *items = n > 0 ? malloc(n * sizeof *items) : NULL;
    if (history == NULL || (n > 0 && items == NULL)) {
        free(history);
        free(items);
        return BT_ENOMEM;
    }
    for (uint32_t i = 0; i < n; i++) {
        items[i] = (bt_router_timeline){.state = ""}; /* touched: it does not grow later */
    }
    history->items = items;
    history->n = n;
    *out = history;
    return BT_OK;
}

void bt_router_history_destroy(bt_router_history *history)
{
    if (history == NULL) {
        return;
    }
    free(history->items);
    free(history);
}

void bt_router_history_add(bt_router_history *history, const bt_router_timeline *timeline)
{
    if (history->n > 0) {
        history->items[history->n_added++ % history->n] = *timeline;
    }
}

const bt_router_timeline *bt_router_history_find(const bt_router_history *history,
                                                 const char *request)
{
    const uint64_t n_kept = history->n_added < history->n ? history->n_added : history->n;
    for (uint64_t age = 0; age < n_kept; age++) {
        const bt_router_timeline *t = &history->items[(history->n_added - 1 - age) % history->n];
        if (bt_link_is_request(request, t->id, t->label)) {
            return t;
        }
    }
    return NULL;
}
