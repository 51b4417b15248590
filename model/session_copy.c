/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/session_copy.h"

#include <string.h>

#include "attention/state.h"
#include "kernels/base/mem.h"
#include "model/decoder.h"

struct session_copy {
    unsigned char *p;
    size_t n, room;
    attn_span bound; /* of the session */
};

/* What a walk over the state does with each piece. */
typedef enum { COPY_COUNT, COPY_TAKE, COPY_GIVE } copy_step;

typedef struct {
    attn_state base;
    backend *be;
    session_copy *c;
    copy_step step;
    size_t at;
} copier;

/* The place of the next bytes; NULL: they are only counted. */
static status next_piece(copier *v, const char *name, size_t bytes, unsigned char **p, err *e)
{
    *p = v->step == COPY_COUNT ? NULL : v->c->p + v->at;
    TRY(size_add(&v->at, v->at, bytes, name, e));
    if (v->step == COPY_COUNT || v->at <= v->c->n) return ST_OK;
    return err_set(e, ST_FORMAT, "a copied session ends before '%s'", name);
}

static status copy_host(attn_state *s, const char *name, int layer, void *p, size_t bytes, err *e)
{
    copier *v = (copier *)s;
    unsigned char *at;
    (void)layer;
    TRY(next_piece(v, name, bytes, &at, e));
    if (!at || bytes == 0) return ST_OK;
    if (v->step == COPY_GIVE) memcpy(p, at, bytes);
    else memcpy(at, p, bytes);
    return ST_OK;
}

static status copy_mem(attn_state *s, const char *name, int layer, buf b, size_t bytes, err *e)
{
    copier *v = (copier *)s;
    unsigned char *at;
    (void)layer;
    TRY(next_piece(v, name, bytes, &at, e));
    if (!at || bytes == 0) return ST_OK;
    if (v->step == COPY_GIVE) v->be->ops->upload(v->be, b, at, bytes);
    else v->be->ops->download(v->be, at, b, bytes);
    return ST_OK;
}

static status copy_rows(attn_state *s, const char *name, int layer, buf b, size_t bytes, const state_part *part,
                        size_t n_parts, err *e)
{
    (void)bytes;
    for (size_t i = 0; i < n_parts; i++)
        for (size_t g = 0; g < part[i].n; g++)
            TRY(copy_mem(s, name, layer, buf_at(b, part[i].at + g * part[i].stride), part[i].used, e));
    return ST_OK;
}

static status walk(session_copy *c, session *s, copy_step step, size_t *bytes, err *e)
{
    copier v = {.base = {.load = step == COPY_GIVE, .host = copy_host, .mem = copy_mem, .rows = copy_rows},
                .be = s->d->be,
                .c = c,
                .step = step};
    TRY(attn_seq_state(s->attn, &v.base, e));
    TRY(recurrent_state(s->state, &v.base, session_length(s), e));
    *bytes = v.at;
    return backend_fault(s->d->be, e);
}

static status take(session_copy *c, session *s, err *e)
{
    size_t n;
    TRY(walk(c, s, COPY_COUNT, &n, e));
    if (n > c->room) {
        mem_free(c->p);
        *c = (session_copy){0};
        TRY(mem_alloc((void **)&c->p, n, 1, "copy of a session", e));
        c->room = n;
    }
    c->n = n;
    c->bound = s->bound;
    return walk(c, s, COPY_TAKE, &n, e);
}

status session_copy_take(session_copy **c, session *s, err *e)
{
    if (s->open) return err_set(e, ST_UNSUPPORTED, "a session cannot be copied in the middle of a prompt");
    if (!*c) TRY(MEM_NEW(c, 1, e));
    return take(*c, s, e);
}

status session_copy_give(session *s, session_copy *c, err *e)
{
    size_t n;
    session_reset(s);
    status st = walk(c, s, COPY_GIVE, &n, e);
    if (st != ST_OK) session_reset(s);
    else s->bound = c->bound;
    return st;
}

void session_copy_free(session_copy *c)
{
    if (c) mem_free(c->p);
    mem_free(c);
}
