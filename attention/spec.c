/* SPDX-License-Identifier: MIT */
/* Properties of a strategy with its parameters. Does not depend on the table of strategies. */
#include "config.h"

#include <stdio.h>
#include <string.h>

#include "attention/certify.h"
#include "attention/format.h"

/* Keys of forced tokens, and the parameters that some strategies have instead. */
static const struct {
    const char *key, *own;
} forced_keys[] = {{"force_sink", "sink"}, {"force_recent", "local"}};

int attn_param_index(const attn_method *m, const char *key)
{
    const attn_param *p = attn_params(m);
    for (int i = 0; p[i].key; i++)
        if (strcmp(p[i].key, key) == 0) return i;
    return -1;
}

/* Returns the index of the parameter for a key; -1: none. */
static int find_param(const attn_method *m, const char *key)
{
    int at = attn_param_index(m, key);
    for (size_t i = 0; at < 0 && m->family && m->family->retrieves && i < sizeof forced_keys / sizeof *forced_keys; i++)
        if (strcmp(forced_keys[i].key, key) == 0) at = attn_param_index(m, forced_keys[i].own);
    return at;
}

int64_t attn_value(const attn_spec *s, const char *key, int64_t none)
{
    int i = find_param(s->method, key);
    return i < 0 ? none : s->value[i];
}

attn_regions attn_regions_of(const attn_spec *s)
{
    attn_regions r = {
        .first = attn_value(s, "force_sink", 0), .newest = attn_value(s, "force_recent", 0), .covers = s->budget};
    if (s->method->regions) s->method->regions(s, &r);
    return r;
}

bool attn_is_dense(const attn_spec *s, const attn_shape *shape, int layer)
{
    int64_t window = shape->window[layer];
    return (layer < ATTN_MAX_LAYERS && s->skip.has[layer]) || (window > 0 && window <= attn_regions_of(s).covers);
}

attn_reuse attn_reuse_of(const attn_spec *s)
{
    const attn_method *m = s->method;
    if (s->kv.kind != KV_PLAIN || s->tier.kind != KV_DEVICE) return ATTN_REUSE_NEVER;
    return m->reuse_unless && attn_value(s, m->reuse_unless, 0) != 0 ? ATTN_REUSE_NEVER : m->reuse;
}

attn_spec attn_reuse_spec(const attn_spec *s)
{
    attn_spec out = *s;
    const char *unless = s->method->reuse_budget;
    if (unless && attn_value(s, unless, 0) == 0) out.budget = s->method->def_budget;
    return out;
}

bool attn_takes_tiles(const attn_spec *s)
{
    return s->kv.kind == KV_PLAIN && (s->kv.type == DT_F16 || s->kv.type == DT_BF16);
}

bool attn_has_budget(const attn_spec *s)
{
    return s->method->has_budget && s->budget < ATTN_NO_BUDGET;
}

bool attn_retrieves(const attn_spec *s)
{
    return s->method->family && s->method->family->retrieves;
}

bool attn_by_window(const attn_spec *s)
{
    return s->method->family && s->method->family->windows;
}

int64_t attn_prompt_grain(const attn_spec *s, int64_t end)
{
    bool chooses = attn_by_window(s) && (s->forced || end > attn_regions_of(s).covers);
    return chooses ? attn_value(s, "window", 1) : 1;
}

double attn_certify_eps(const attn_spec *s)
{
    return (double)attn_value(s, "certify", 0) / ATTN_FRACTION;
}

void attn_budget_counts(const attn_spec *s, char out[16])
{
    const attn_method *m = s->method;
    const char *word = "total";
    if (m->counts) word = m->counts;
    else if (attn_value(s, "demote", 0) > 0) word = "exact";
    else if (m->family && m->family->drops) word = "kept";
    if (attn_has_budget(s)) snprintf(out, 16, "%s%s", word, attn_gqa(s) == GQA_PER_Q ? "/q" : "");
    else snprintf(out, 16, "-");
}

gqa_mode attn_gqa(const attn_spec *s)
{
    size_t n, m;
    int i = attn_param_index(s->method, "gqa");
    const char *word = s->method->gqa, *name;
    if (i >= 0) word = attn_param_choice(attn_params(s->method)[i].choices, s->value[i], &n);
    else if (word) n = strlen(word);
    for (int g = 0; word && g < GQA_COUNT; g++)
        if ((name = attn_param_choice(GQA_NAMES, g, &m)) && m == n && strncmp(name, word, n) == 0) return (gqa_mode)g;
    return GQA_LAYER_VOTE;
}

status attn_check_ropes(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (shape->n_ropes <= 1) return ST_OK;
    return err_set(e, ST_UNSUPPORTED,
                   "%s: a model whose layers have %d rotary embeddings is not supported; use another strategy", s->text,
                   shape->n_ropes);
}
