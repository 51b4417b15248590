/* SPDX-License-Identifier: MIT */
/* The logits of a session's next token, on the host or still on the device. */
#include "config.h"

#include <string.h>

#include "api/impl.h"
#include "kernels/base/mem.h"

static size_t row_bytes(const kvasir_model *m)
{
    return m->x.vocab * sizeof(float);
}

status lib_logits_create(next_logits **out, const kvasir_model *m, err *e)
{
    next_logits *x;
    TRY(MEM_NEW(&x, 1, e));
    status st = MEM_NEW(&x->host, m->x.vocab, e);
    if (st == ST_OK && m->be->ops->queues) st = m->be->ops->alloc(m->be, &x->device, row_bytes(m), "logits", e);
    if (st != ST_OK) {
        lib_logits_free(x, m);
        return st;
    }
    *out = x;
    return ST_OK;
}

void lib_logits_free(next_logits *x, const kvasir_model *m)
{
    if (!x) return;
    if (x->device.p) m->be->ops->free(m->be, x->device, row_bytes(m));
    mem_free(x->host);
    mem_free(x);
}

void lib_logits_set(kvasir_session *s, const float *logits)
{
    s->logits->away = false;
    s->has_logits = true;
    memcpy(s->logits->host, logits, row_bytes(s->m));
}

void lib_logits_keep(kvasir_session *s, size_t row)
{
    static const sampler_options greedy = {.top_p = 1, .repeat_penalty = 1};
    next_logits *x = s->logits;
    backend *be = s->m->be;
    be->ops->copy(be, x->device, decoder_row(s->m->dec, row), row_bytes(s->m));
    x->away = s->has_logits = true;
    x->next = s->q.next;
    x->by = s->q.by ? s->sampling : greedy;
}

status lib_logits_get(const kvasir_session *s, const float **logits, err *e)
{
    next_logits *x = s->logits;
    backend *be = s->m->be;
    if (x->away) {
        be->ops->download(be, x->host, x->device, row_bytes(s->m));
        TRY(backend_fault(be, e));
        x->away = false;
    }
    *logits = x->host;
    return ST_OK;
}

kvasir_status kvasir_session_logits(const kvasir_session *s, const float **logits, char *msg, size_t msg_size)
{
    err e = {0};
    status st = lib_need(s, "session", &e);
    if (st == ST_OK) st = lib_need(logits, "logits", &e);
    if (st == ST_OK && !s->has_logits)
        st = err_set(&e, ST_USAGE, "no logits: nothing was fed, or the session was rewound");
    if (st == ST_OK && s->logits->away) {
        st = lib_enter_session(s, &e);
        if (st == ST_OK) st = lib_leave(s->m, lib_logits_get(s, logits, &e));
    } else if (st == ST_OK) *logits = s->logits->host;
    return lib_result(st, &e, msg, msg_size);
}
