/* SPDX-License-Identifier: Apache-2.0 */
/* The file is closed as soon as tokenizer and chat have copied what they need, so a router
 * does not keep gigabytes of weights mapped. */
#include "router/models.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/gguf.h"

typedef struct model {
    bt_router_model_card card;
    bt_tokenizer *tokenizer;
    bt_chat *chat;
} model;

struct bt_router_models {
    size_t n;
    size_t n_max;
    model models[];
};

bt_status bt_router_models_create(size_t n_max, bt_router_models **out)
{
    bt_router_models *models = calloc(1, sizeof *models + n_max * sizeof models->models[0]);
    if (models == NULL) {
        return BT_ENOMEM;
    }
    models->n_max = n_max;
    *out = models;
    return BT_OK;
}

static void deinit_model(model *m)
{
    bt_chat_destroy(m->chat);
    bt_tokenizer_destroy(m->tokenizer);
}

void bt_router_models_destroy(bt_router_models *models)
{
    if (models == NULL) {
        return;
    }
    for (size_t i = 0; i < models->n; i++) {
        deinit_model(&models->models[i]);
    }
    free(models);
}

/* "dir/x.gguf" -> "x". */
static bt_status fill_name(bt_router_model_card *card, const char *path, const char *name,
                           bt_error *err)
{
    const char *slash = strrchr(path, '/');
    const char *from = name != NULL ? name : slash != NULL ? slash + 1 : path;
    size_t len = strlen(from);
    if (name == NULL && len > 5 && strcmp(from + len - 5, ".gguf") == 0) {
        len -= 5;
    }
    if (len == 0 || len >= sizeof card->name) {
        return bt_error_set(err, BT_EINVAL, "model name '%.40s' has %zu bytes: must be 1 to %zu",
                            from, len, sizeof card->name - 1);
    }
    memcpy(card->name, from, len);
    card->name[len] = '\0';
    return BT_OK;
}

static bt_status fill_text(const bt_gguf *gguf, const char *key, char *out, size_t capacity,
                           bt_error *err)
{
    bt_gguf_string value;
    const bt_status status = bt_gguf_get_string(gguf, key, &value, err);
    if (status != BT_OK) {
        return status;
    }
    snprintf(out, capacity, "%.*s", value.len < capacity ? (int)value.len : (int)capacity - 1,
             value.bytes);
    return BT_OK;
}

static bt_status read_model(model *m, const bt_gguf *gguf, bt_error *err)
{
    bt_router_model_card *card = &m->card;
    bt_status status =
        fill_text(gguf, "general.architecture", card->architecture, sizeof card->architecture, err);
    if (status != BT_OK) {
        return status;
    }
    char key[96];
    snprintf(key, sizeof key, "%s.context_length", card->architecture);
    status = bt_gguf_get_u32(gguf, key, &card->context_tokens, err);
    if (status != BT_OK) {
        return status;
    }
    const char *name_key =
        bt_gguf_has(gguf, "tokenizer.ggml.pre") ? "tokenizer.ggml.pre" : "tokenizer.ggml.model";
    status = fill_text(gguf, name_key, card->tokenizer_name, sizeof card->tokenizer_name, err);
    if (status != BT_OK) {
        return status;
    }
    status = bt_tokenizer_create(gguf, &m->tokenizer, err);
    if (status != BT_OK) {
        return status;
    }
    bt_tokenizer_fingerprint(m->tokenizer, card->tokenizer_hash);
    /* A model without a template that we know serves completions all the same. */
    status = bt_chat_create(gguf, m->tokenizer, &m->chat, &card->chat_error);
    if (status == BT_ENOMEM) {
        return status;
    }
    card->tokenizer = m->tokenizer;
    card->chat = m->chat;
    return BT_OK;
}

bt_status bt_router_models_add(bt_router_models *models, const char *path, const char *name,
                               bt_error *err)
{
    if (models->n == models->n_max) {
        return bt_error_set(err, BT_EEXHAUSTED, "too many models: at most %zu", models->n_max);
    }
    model *m = &models->models[models->n];
    *m = (model){0};
    bt_status status = fill_name(&m->card, path, name, err);
    if (status != BT_OK) {
        return status;
    }
    for (size_t i = 0; i < models->n; i++) {
        if (strcmp(models->models[i].card.name, m->card.name) == 0) {
            return bt_error_set(err, BT_EEXISTS,
                                "two models are named '%s'. Name one: --model FILE=NAME",
                                m->card.name);
        }
    }
    bt_gguf *gguf = NULL;
    status = bt_gguf_open(path, &gguf, err);
    if (status == BT_OK) {
        status = read_model(m, gguf, err);
        bt_gguf_close(gguf);
    }
    if (status != BT_OK) {
        bt_error_prefix(err, "cannot read model '%s'", path);
        deinit_model(m);
        return status;
    }
    models->n++;
    return BT_OK;
}

size_t bt_router_models_count(const bt_router_models *models)
{
    return models->n;
}

const bt_router_model_card *bt_router_models_at(const bt_router_models *models, size_t idx)
{
    return idx < models->n ? &models->models[idx].card : NULL;
}

/* "'a', 'b'", cut where the buffer ends. */
static void list_names(const bt_router_models *models, char *out, size_t capacity)
{
    size_t len = 0;
    out[0] = '\0';
    for (size_t i = 0; i < models->n && len < capacity; i++) {
        const int n = snprintf(out + len, capacity - len, "%s'%s'", i == 0 ? "" : ", ",
                               models->models[i].card.name);
        len += n > 0 ? (size_t)n : 0;
    }
}

static bool find_name(const bt_router_models *models, const char *name, uint32_t *idx)
{
    for (size_t i = 0; i < models->n; i++) {
        if (strcmp(models->models[i].card.name, name) == 0) {
            *idx = (uint32_t)i;
            return true;
        }
    }
    return false;
}

bt_status bt_router_models_find(const bt_router_models *models, const char *name, uint32_t *idx,
                                bt_error *err)
{
    if (name == NULL || name[0] == '\0') {
        *idx = 0;
        return BT_OK;
    }
    if (find_name(models, name, idx)) {
        return BT_OK;
    }
    char names[128];
    list_names(models, names, sizeof names);
    return bt_error_set(err, BT_ENOTFOUND, "model: there is no '%.60s' here; served: %s", name,
                        names);
}

bt_status bt_router_models_match(const bt_router_models *models, const bt_link_hello *hello,
                                 uint32_t *idx, bt_error *err)
{
    uint32_t found;
    if (!find_name(models, hello->model, &found)) {
        char names[96];
        list_names(models, names, sizeof names);
        return bt_error_set(err, BT_EMISMATCH,
                            "this router serves %s, not '%.60s'. Give the router that model, or "
                            "the worker a name: --model FILE=NAME",
                            names, hello->model);
    }
    const bt_router_model_card *card = &models->models[found].card;
    if (memcmp(card->tokenizer_hash, hello->tokenizer_hash, sizeof card->tokenizer_hash) != 0) {
        return bt_error_set(err, BT_EMISMATCH,
                            "the tokenizer of '%.60s' differs between this router and worker "
                            "'%.60s'. Start both with the same model file",
                            card->name, hello->kv.name);
    }
    *idx = found;
    return BT_OK;
}
