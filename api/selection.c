/* SPDX-License-Identifier: MIT */
/* What a step read: lists of positions, noted while the step runs. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "api/impl.h"
#include "kernels/base/mem.h"

static const attn_shape *shape_of(const kvasir_model *m)
{
    return decoder_attn_shape(m->dec);
}

void lib_read_free(kvasir_session *s)
{
    const attn_shape *shape = shape_of(s->m);
    for (int i = 0; s->read && i < shape->n_layers * shape->n_heads; i++) mem_free(s->read[i].pos);
    mem_free(s->read);
    mem_free(s->stored);
    s->read = NULL;
    s->stored = NULL;
}

static status make_room(read_list *l, size_t n, err *e)
{
    if (n <= l->room) return ST_OK;
    size_t room = n + n / 2;
    TRY(mem_resize((void **)&l->pos, room, sizeof *l->pos, "positions", e));
    l->room = room;
    return ST_OK;
}

static int by_position(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Each once, ascending, and those alone that the step sees in this layer. */
static void settle(read_list *l, const attn_shape *shape, int layer, int64_t current)
{
    int64_t window = shape->window[layer], from = window > 0 ? current - window : -1;
    size_t n = 0;
    qsort(l->pos, l->n, sizeof *l->pos, by_position);
    for (size_t i = 0; i < l->n; i++) {
        int32_t p = l->pos[i];
        if (p > from && p <= current && (n == 0 || l->pos[n - 1] != p)) l->pos[n++] = p;
    }
    l->n = n;
}

/* Whether the layer's step itself chooses what it reads. */
static bool chooses(const kvasir_session *s, int layer)
{
    const attn_spec *spec = attn_seq_spec(session_attn(s->s));
    return attn_retrieves(spec) && !attn_is_dense(spec, shape_of(s->m), layer);
}

static read_list *list_of(const kvasir_session *s, int layer, int head)
{
    return &s->read[layer * shape_of(s->m)->n_heads + head];
}

/* Behind the layer: what it chose. */
static status note_chosen(const kvasir_session *s, size_t row, int layer, int64_t current, err *e)
{
    const attn_work *work = decoder_attn_work(s->m->dec);
    const attn_shape *shape = shape_of(s->m);
    int64_t head_end, tail;
    for (int h = 0; h < shape->n_heads; h++) {
        read_list *l = list_of(s, layer, h);
        int64_t n = attn_last_selection(work, row, h, NULL, &head_end, &tail);
        TRY(make_room(l, (size_t)n + 1, e));
        l->n = (size_t)attn_last_selection(work, row, h, l->pos, &head_end, &tail);
        settle(l, shape, layer, current);
    }
    return ST_OK;
}

/* Before the layer, whose last act it is to evict: what it keeps, and the step's own token. */
static status note_kept(const kvasir_session *s, int layer, int64_t current, err *e)
{
    const attn_seq *seq = session_attn(s->s);
    const attn_shape *shape = shape_of(s->m);
    bool own = attn_gqa(attn_seq_spec(seq)) == GQA_PER_Q;
    for (int h = 0; h < shape->n_heads; h++) {
        read_list *l = list_of(s, layer, h);
        int list = own ? h : h / (shape->n_heads / shape->n_kv_heads);
        int64_t n = attn_seq_positions(seq, layer, list, s->stored);
        n += attn_seq_demoted(seq, layer, list, s->stored + n);
        TRY(make_room(l, (size_t)n + 1, e));
        for (int64_t i = 0; i < n; i++) l->pos[i] = (int32_t)s->stored[i];
        l->pos[n] = (int32_t)current;
        l->n = (size_t)n + 1;
        settle(l, shape, layer, current);
    }
    return ST_OK;
}

static void on_seen(void *ctx, const attn_seen *seen)
{
    read_watch *w = ctx;
    for (size_t i = 0; i < w->n && w->st == ST_OK; i++) {
        const kvasir_session *s = w->sessions[i];
        int64_t current = (int64_t)s->n_ids;
        int layers = shape_of(s->m)->n_layers, next = seen->layer + 1;
        if (!s->watched) continue;
        if (seen->layer >= 0 && seen->layer < layers && chooses(s, seen->layer))
            w->st = note_chosen(s, i, seen->layer, current, &w->e);
        if (w->st == ST_OK && next < layers && !chooses(s, next)) w->st = note_kept(s, next, current, &w->e);
    }
}

void lib_watch(kvasir_model *m, read_watch *w)
{
    bool any = false;
    for (size_t i = 0; w && i < w->n; i++) any |= w->sessions[i]->watched;
    attn_watch(decoder_attn_work(m->dec), any ? on_seen : NULL, w);
}

static status watch(kvasir_session *s, bool on, err *e)
{
    TRY(lib_need(s, "session", e));
    const attn_shape *shape = shape_of(s->m);
    if (on && !s->read) {
        TRY(mem_alloc((void **)&s->stored, (size_t)session_limit(s->s) + 1, sizeof *s->stored, "positions", e));
        status st = MEM_NEW(&s->read, (size_t)shape->n_layers * (size_t)shape->n_heads, e);
        if (st != ST_OK) {
            lib_read_free(s);
            return st;
        }
    }
    s->watched = on;
    s->has_read = false;
    return ST_OK;
}

kvasir_status kvasir_session_watch(kvasir_session *s, int32_t on, char *msg, size_t msg_size)
{
    err e = {0};
    status st = watch(s, on != 0, &e);
    return lib_said(st, &e, msg, msg_size);
}

static status selection(const kvasir_session *s, int32_t layer, int32_t head, const int32_t **positions, size_t *n,
                        err *e)
{
    TRY(lib_need(s, "session", e));
    TRY(lib_need(positions, "positions", e));
    TRY(lib_need(n, "n", e));
    const attn_shape *shape = shape_of(s->m);
    if (layer < 0 || layer >= shape->n_layers || head < 0 || head >= shape->n_heads)
        return err_set(e, ST_USAGE, "layer %d, head %d: the model has %d layers of %d query heads", (int)layer,
                       (int)head, shape->n_layers, shape->n_heads);
    if (!s->has_read)
        return err_set(e, ST_USAGE, "no step was watched since the last prompt (kvasir_session_watch comes before)");
    const read_list *l = list_of(s, layer, head);
    *positions = l->pos;
    *n = l->n;
    return ST_OK;
}

kvasir_status kvasir_session_selection(const kvasir_session *s, int32_t layer, int32_t head, const int32_t **positions,
                                       size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    status st = selection(s, layer, head, positions, n, &e);
    return lib_said(st, &e, msg, msg_size);
}
