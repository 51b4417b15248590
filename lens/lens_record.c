/* SPDX-License-Identifier: MIT */
/* Records of a lens, one line of JSON each. */
#include "config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lens/lens_impl.h"
#include "kernels/base/base64.h"
#include "kernels/base/mem.h"

static status no_memory(err *e)
{
    return err_set(e, ST_NOMEM, "out of memory for a record of the lens");
}

/* Emits and frees a record. */
static status give(lens *l, json_t *j, err *e)
{
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_REAL_PRECISION(6)) : NULL, *line = NULL;
    json_decref(j);
    int n = text ? asprintf(&line, "%s\n", text) : -1;
    free(text);
    if (n < 0) return no_memory(e);
    status st = l->o.line(l->o.ctx, line, (size_t)n, e);
    free(line);
    return st;
}

/* ---- texts ---- */

/* Returns n bytes as text, or U+FFFD if they are not valid UTF-8. */
static json_t *text_json(const char *text, size_t n)
{
    json_t *j = json_stringn(text, n);
    return j ? j : json_string("\xef\xbf\xbd");
}

/* Returns the text of a single token. */
static json_t *token_json(const lens *l, int32_t id)
{
    err e = {0};
    char *bytes = NULL;
    size_t n = 0;
    if (tokenizer_bytes(l->o.tok, id, &bytes, &n, &e) != ST_OK) return json_string("");
    json_t *j = text_json(bytes, n);
    mem_free(bytes);
    return j;
}

/* Sets *out to the text that a token adds; the last token of a split character adds it. */
static status next_text(lens *l, int32_t id, json_t **out, err *e)
{
    const char *text;
    size_t n;
    if (tokenizer_is_special(l->o.tok, id)) {
        *out = token_json(l, id);
    } else {
        TRY(token_stream_push(l->stream, id, &text, &n, e));
        *out = text_json(text, n);
    }
    return ST_OK;
}

/* ---- head and prompt ---- */

static json_t *dense_json(const lens *l)
{
    json_t *all = json_pack("[[]]");
    for (size_t i = 0; i < l->o.n; i++) {
        json_t *list = json_array();
        for (int k = 0; k < l->shape->n_layers; k++)
            if (l->run[i].dense[k]) json_array_append_new(list, json_integer(k));
        json_array_append_new(all, list);
    }
    return all;
}

static json_t *names_json(const lens *l)
{
    json_t *all = json_pack("[s]", "full");
    char name[512];
    for (size_t i = 0; i < l->o.n; i++) {
        lens_name(name, l->run[i].spec);
        json_array_append_new(all, json_string(name));
    }
    return all;
}

void lens_name(char out[512], const attn_spec *s)
{
    if (attn_has_budget(s) && !strstr(s->text, "budget="))
        snprintf(out, 512, "%.440s:budget=%lld", s->text, (long long)s->budget);
    else snprintf(out, 512, "%.500s", s->text);
}

static status give_texts(lens *l, size_t from, size_t n, err *e)
{
    json_t *texts = json_array(), *text;
    for (size_t i = from; i < from + n; i++) {
        status st = next_text(l, l->o.ids[i], &text, e);
        if (st == ST_OK && json_array_append_new(texts, text) != 0) st = no_memory(e);
        if (st == ST_OK) continue;
        json_decref(texts);
        return st;
    }
    return give(l, json_pack("{s:s, s:I, s:o}", "kind", "prompt", "from", (json_int_t)from, "texts", texts), e);
}

status lens_begin(lens *l, err *e)
{
    json_t *names = names_json(l), *drive = json_array_get(names, l->o.drive);
    TRY(give(l,
             json_pack("{s:s, s:i, s:s, s:s, s:I, s:i, s:i, s:I, s:O, s:o, s:o}", "kind", "lens", "version", 1, "id",
                       l->o.id, "model", l->o.model, "n_prompt", (json_int_t)l->o.n_ids, "layers", l->shape->n_layers,
                       "kv_heads", l->shape->n_kv_heads, "bin", (json_int_t)l->bin, "drive", drive, "strategies", names,
                       "dense", dense_json(l)),
             e));
    for (size_t i = 0; i < l->o.n_ids; i += LENS_TEXTS)
        TRY(give_texts(l, i, l->o.n_ids - i < LENS_TEXTS ? l->o.n_ids - i : LENS_TEXTS, e));
    return ST_OK;
}

/* ---- steps ---- */

/* Encodes each x in [0, 1] as a byte; base64. */
static status fractions_json(json_t **out, const double *x, size_t n, err *e)
{
    uint8_t *bytes;
    char *text = NULL;
    TRY(MEM_NEW(&bytes, n, e));
    for (size_t i = 0; i < n; i++) bytes[i] = (uint8_t)lround(255 * fmin(1, fmax(0, x[i])));
    status st = MEM_NEW(&text, base64_size(n), e);
    if (st == ST_OK) {
        base64_write(text, bytes, n);
        *out = json_string(text);
    }
    mem_free(bytes);
    mem_free(text);
    return st;
}

/* Encodes, for each bin, the fraction of (token, layer, head) that was read. */
static status reads_json(const lens *l, const lens_run *r, json_t **out, err *e)
{
    double *fraction;
    TRY(MEM_NEW(&fraction, l->n_bins, e));
    for (size_t b = 0; b < l->n_bins && r->heads; b++) {
        size_t tokens = l->o.n_ids - b * l->bin < l->bin ? l->o.n_ids - b * l->bin : l->bin;
        fraction[b] = (double)r->reads[b] / ((double)tokens * (double)r->heads);
    }
    status st = fractions_json(out, fraction, l->n_bins, e);
    mem_free(fraction);
    return st;
}

/* Returns the positions with the most missed mass, in descending order, ties by position. Shares below 0.0001 are
 * omitted. */
static json_t *missed_json(const lens *l, const lens_run *r)
{
    json_t *list = json_array();
    int64_t best[LENS_MISSED], k = 0;
    for (int64_t p = 0; p < l->n && r->heads; p++) {
        if (r->missed_at[p] / (double)r->heads < 1e-4) continue;
        if (k == LENS_MISSED && r->missed_at[p] <= r->missed_at[best[k - 1]]) continue;
        int64_t at = k < LENS_MISSED ? k++ : k - 1;
        for (; at > 0 && r->missed_at[best[at - 1]] < r->missed_at[p]; at--) best[at] = best[at - 1];
        best[at] = p;
    }
    for (int64_t i = 0; i < k; i++)
        json_array_append_new(list, json_pack("[I, f]", (json_int_t)best[i], r->missed_at[best[i]] / (double)r->heads));
    return list;
}

/* Returns the layer and KV head that missed most. */
static json_t *worst_json(const lens *l, const lens_run *r)
{
    int heads = l->shape->n_kv_heads, at = 0;
    for (int i = 1; i < l->shape->n_layers * heads; i++)
        if (r->missed_by[i] > r->missed_by[at]) at = i;
    return json_pack("[i, i, f]", at / heads, at % heads, r->missed_by[at]);
}

static status give_step(lens *l, size_t i, int32_t id, json_t *text, err *e)
{
    const lens_run *r = &l->run[i];
    json_t *reads = NULL, *by = NULL;
    double heads = r->heads ? (double)r->heads : 1;
    status st = reads_json(l, r, &reads, e);
    if (st == ST_OK) st = fractions_json(&by, r->missed_by, (size_t)(l->shape->n_layers * l->shape->n_kv_heads), e);
    if (st != ST_OK) {
        json_decref(reads);
        return st;
    }
    json_t *j = json_pack("{s:s, s:I, s:I, s:i, s:O, s:f, s:f, s:o, s:o, s:o, s:o}", "kind", "step", "i",
                          (json_int_t)l->step, "s", (json_int_t)(i + 1), "id", id, "text", text, "attended",
                          r->attended / heads, "missed", r->missed / heads, "worst", worst_json(l, r), "reads", reads,
                          "missed_by", by, "missed_at", missed_json(l, r));
    if (j && r->choice != id)
        json_object_set_new(j, "own", json_pack("{s:i, s:o}", "id", r->choice, "text", token_json(l, r->choice)));
    return give(l, j, e);
}

status lens_record_step(lens *l, int32_t id, err *e)
{
    json_t *text;
    TRY(next_text(l, id, &text, e));
    status st = text ? ST_OK : no_memory(e);
    for (size_t i = 0; i < l->o.n && st == ST_OK; i++) {
        lens_run *r = &l->run[i];
        st = give_step(l, i, id, text, e);
        if (r->heads == 0) continue;
        r->sum.attended += r->attended / (double)r->heads;
        r->sum.missed += r->missed / (double)r->heads;
    }
    json_decref(text);
    return st;
}

status lens_end(lens *l, err *e)
{
    return give(l,
                json_pack("{s:s, s:I, s:I}", "kind", "end", "prompt_tokens", (json_int_t)l->o.n_ids,
                          "completion_tokens", (json_int_t)l->step),
                e);
}
