/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "model/recurrent.h"

#include "kernels/base/mem.h"
#include "model/block.h"

/* State after `length` tokens: [n_parts] buffers. */
typedef struct {
    int64_t length; /* -1: an empty snapshot */
    buf *b;
} version;

/* A buffer of a block. */
typedef struct {
    mem_decl m;
    int layer;
    size_t bytes;
} part;

struct recurrent {
    backend *be;
    part *parts;
    int n_parts, *first; /* first: [blocks with state], index of each block's first part */
    version *versions;   /* current state, then snapshots */
    int n_versions, next;
};

static state_decl declared(const block *b, const model_config *c)
{
    state_decl d = {.n_mem = 0};
    if (b->kind->declare) b->kind->declare(&d, c);
    return d;
}

status recurrent_plan(size_t *out, const model *m, int snapshots, err *e)
{
    *out = 0;
    for (const block *b = m->blocks; b < m->blocks + m->n_blocks; b++) {
        const state_decl d = declared(b, &m->config);
        for (int i = 0; i < d.n_mem; i++) {
            size_t bytes;
            TRY(state_bytes(&bytes, &d.mem[i], e));
            TRY(size_mul(&bytes, bytes, (size_t)snapshots + 1, d.mem[i].name, e));
            TRY(size_add(out, *out, bytes, d.mem[i].name, e));
        }
    }
    return ST_OK;
}

/* Lists the parts of all blocks. */
static status list_parts(recurrent *r, const model *m, err *e)
{
    TRY(MEM_NEW(&r->first, m->n_blocks, e));
    for (const block *b = m->blocks; b < m->blocks + m->n_blocks; b++) {
        const state_decl d = declared(b, &m->config);
        if (b->state >= 0) r->first[b->state] = r->n_parts;
        if (d.n_mem > 0) TRY(MEM_GROW(&r->parts, (size_t)(r->n_parts + d.n_mem), e));
        for (int i = 0; i < d.n_mem; i++) {
            part *p = &r->parts[r->n_parts++];
            *p = (part){.m = d.mem[i], .layer = b->layer};
            TRY(state_bytes(&p->bytes, &p->m, e));
        }
    }
    return ST_OK;
}

static status open_version(recurrent *r, version *v, err *e)
{
    v->length = -1;
    TRY(MEM_NEW(&v->b, (size_t)r->n_parts, e));
    for (int i = 0; i < r->n_parts; i++)
        TRY(r->be->ops->alloc(r->be, &v->b[i], r->parts[i].bytes, r->parts[i].m.name, e));
    return ST_OK;
}

status recurrent_create(recurrent **out, const model *m, int snapshots, err *e)
{
    recurrent *r;
    size_t bytes;
    *out = NULL;
    TRY(recurrent_plan(&bytes, m, snapshots, e));
    if (bytes == 0) return ST_OK;
    TRY(MEM_NEW(&r, 1, e));
    r->be = m->be;
    status st = list_parts(r, m, e);
    if (st == ST_OK) st = MEM_NEW(&r->versions, (size_t)snapshots + 1, e);
    if (st == ST_OK) r->n_versions = snapshots + 1;
    for (int i = 0; i < r->n_versions && st == ST_OK; i++) st = open_version(r, &r->versions[i], e);
    if (st != ST_OK) {
        recurrent_free(r);
        return st;
    }
    recurrent_reset(r);
    *out = r;
    return ST_OK;
}

void recurrent_free(recurrent *r)
{
    if (!r) return;
    for (int i = 0; i < r->n_versions; i++) {
        for (int k = 0; r->versions[i].b && k < r->n_parts; k++)
            if (r->versions[i].b[k].p) r->be->ops->free(r->be, r->versions[i].b[k], r->parts[k].bytes);
        mem_free(r->versions[i].b);
    }
    mem_free(r->versions);
    mem_free(r->parts);
    mem_free(r->first);
    mem_free(r);
}

static void copy_version(const recurrent *r, version *to, const version *from)
{
    for (int i = 0; i < r->n_parts; i++) r->be->ops->copy(r->be, to->b[i], from->b[i], r->parts[i].bytes);
    to->length = from->length;
}

/* Forgets snapshots of more than n tokens. */
static void forget(recurrent *r, int64_t n)
{
    for (int i = 1; i < r->n_versions; i++)
        if (r->versions[i].length > n) r->versions[i].length = -1;
}

void recurrent_reset(recurrent *r)
{
    if (!r) return;
    static const unsigned char zero[4096];
    for (int i = 0; i < r->n_parts; i++)
        for (size_t at = 0, n; at < r->parts[i].bytes; at += n) {
            n = r->parts[i].bytes - at < sizeof zero ? r->parts[i].bytes - at : sizeof zero;
            r->be->ops->upload(r->be, buf_at(r->versions->b[i], at), zero, n);
        }
    r->versions->length = 0;
    forget(r, -1);
}

buf recurrent_buf(const recurrent *r, const block *b, int i)
{
    return r->versions->b[r->first[b->state] + i];
}

void recurrent_end(recurrent *const *r, const attn_step *step)
{
    for (size_t i = 0; i < step->n_seq && r[i]; i++) {
        if (i > 0 && step->flags & ATTN_PROMPT) copy_version(r[i], r[i]->versions, r[0]->versions);
        else r[i]->versions->length += (int64_t)step->n_tok;
    }
}

size_t recurrent_bytes(const recurrent *r)
{
    size_t bytes = 0;
    for (int i = 0; r && i < r->n_parts; i++) bytes += r->parts[i].bytes;
    return r ? bytes * (size_t)r->n_versions : 0;
}

status recurrent_state(recurrent *r, attn_state *s, int64_t length, err *e)
{
    for (int i = 0; r && i < r->n_parts; i++)
        TRY(state_visit(s, &r->parts[i].m, r->parts[i].layer, r->versions->b[i], e));
    if (!r || !s->load) return ST_OK;
    r->versions->length = length;
    forget(r, -1);
    return ST_OK;
}

status recurrent_snapshot(recurrent *r, err *e)
{
    if (!r) return ST_OK;
    if (r->n_versions == 1) return err_set(e, ST_UNSUPPORTED, "the session has no room for snapshots");
    forget(r, r->versions->length - 1);
    copy_version(r, &r->versions[1 + r->next], r->versions);
    r->next = (r->next + 1) % (r->n_versions - 1);
    return ST_OK;
}

static const version *version_of(const recurrent *r, int64_t n)
{
    for (int i = 0; i < r->n_versions; i++)
        if (r->versions[i].length == n) return &r->versions[i];
    return NULL;
}

status recurrent_can_rewind(const recurrent *r, int64_t n, err *e)
{
    if (!r || n == 0 || version_of(r, n)) return ST_OK;
    return err_set(e, ST_UNSUPPORTED,
                   "cannot rewind to %lld tokens: the model has recurrent state, and no snapshot has that length",
                   (long long)n);
}

void recurrent_rewind(recurrent *r, int64_t n)
{
    if (!r) return;
    if (n == 0) {
        recurrent_reset(r);
        return;
    }
    const version *v = version_of(r, n);
    if (v && v != r->versions) copy_version(r, r->versions, v);
    forget(r, n);
}

status recurrent_draft_check(const model *m, err *e)
{
    size_t bytes;
    TRY(recurrent_plan(&bytes, m, 0, e));
    if (bytes == 0) return ST_OK;
    return err_set(e, ST_UNSUPPORTED,
                   "%s: drafts are not supported for models with recurrent state, which cannot be rewound", m->name);
}
