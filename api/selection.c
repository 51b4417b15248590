/* SPDX-License-Identifier: MIT */
/* Positions that a step read, recorded while it runs. */
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
    s->read = NULL;
}

static read_list *list_of(const kvasir_session *s, int layer, int head)
{
    return &s->read[layer * shape_of(s->m)->n_heads + head];
}

/* Records the positions that a layer read, before the end of the layer may evict some. */
static status note_layer(const kvasir_session *s, size_t row, int layer, err *e)
{
    const attn_work *work = decoder_attn_work(s->m->dec);
    int64_t head_end, tail;
    for (int h = 0; h < shape_of(s->m)->n_heads; h++) {
        read_list *l = list_of(s, layer, h);
        TRY(MEM_ROOM(&l->pos, &l->room, (size_t)attn_last_selection(work, row, h, NULL, &head_end, &tail), e));
        l->n = (size_t)attn_last_selection(work, row, h, l->pos, &head_end, &tail);
    }
    return ST_OK;
}

static void on_seen(void *ctx, const attn_seen *seen)
{
    read_watch *w = ctx;
    for (size_t i = 0; i < w->n; i++) {
        const kvasir_session *s = w->sessions[i];
        if (!s->watched || seen->layer < 0 || seen->layer >= shape_of(s->m)->n_layers) continue;
        for (size_t row = 0; row < seen->step->n_seq && w->st == ST_OK; row++)
            if (seen->step->seq[row] == session_attn(s->q.s)) w->st = note_layer(s, row, seen->layer, &w->e);
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
    if (on && !s->read) TRY(MEM_NEW(&s->read, (size_t)shape->n_layers * (size_t)shape->n_heads, e));
    s->watched = on;
    s->has_read = false;
    return ST_OK;
}

kvasir_status kvasir_session_watch(kvasir_session *s, int32_t on, char *msg, size_t msg_size)
{
    err e = {0};
    return lib_result(watch(s, on != 0, &e), &e, msg, msg_size);
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
        return err_set(e, ST_USAGE,
                       "no step was watched since the last prompt; call kvasir_session_watch before a step");
    const read_list *l = list_of(s, layer, head);
    *positions = l->pos;
    *n = l->n;
    return ST_OK;
}

kvasir_status kvasir_session_selection(const kvasir_session *s, int32_t layer, int32_t head, const int32_t **positions,
                                       size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    return lib_result(selection(s, layer, head, positions, n, &e), &e, msg, msg_size);
}
