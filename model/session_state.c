/* SPDX-License-Identifier: MIT */
/* Saving and loading sessions with one walk over the state. The walk determines offsets and sizes; the file's directory
 * must match it. */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include "attention/reuse.h"
#include "kernels/base/temp_file.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/sums.h"
#include "model/decoder.h"
#include "model/session_file_impl.h"

typedef struct {
    attn_state base;
    enum { COUNT, SAVE, LOAD } step;
    backend *be;
    const session_header *h;                           /* sizes; not used by COUNT */
    unsigned char *rest;                               /* directory, checksums, copied state */
    uint64_t n_items, n_sums, state_bytes, rows_bytes; /* totals passed so far */
    temp_file *to;                                     /* SAVE */
    const session_file *from;                          /* LOAD */
    sums_part *mapped;                                 /* LOAD: [n_items], rows in the file to be checked; n 0: none */
} state_walk;

/* ---- directory, checksums, copied state ---- */

/* Appends an entry to the directory, or compares it with the next one. */
static status pass_item(state_walk *v, session_item item, const char *name, err *e)
{
    uint64_t i = v->n_items++;
    if (v->step == COUNT) return ST_OK;
    if (i == v->h->n_items) return err_set(e, ST_FORMAT, "damaged: '%s' is missing", name);
    session_item *at = (session_item *)(void *)v->rest + i;
    strncpy(item.name, name, sizeof item.name - 1);
    if (v->step == SAVE) *at = item;
    if (memcmp(at, &item, sizeof item) == 0) return ST_OK;
    return err_set(e, ST_FORMAT, "damaged: entry %llu is '%.23s', %llu x %llu bytes, expected '%s', %llu x %llu",
                   (unsigned long long)i, at->name, (unsigned long long)at->n, (unsigned long long)at->used, name,
                   (unsigned long long)item.n, (unsigned long long)item.used);
}

/* Returns in *p the memory of the next `bytes` bytes of copied state; COUNT: NULL. */
static status pass_state(state_walk *v, const char *name, int layer, size_t bytes, unsigned char **p, err *e)
{
    const session_item item = {
        .layer = layer, .kind = SESSION_STATE, .at = v->state_bytes, .n = 1, .stride = bytes, .used = bytes};
    *p = NULL;
    TRY(pass_item(v, item, name, e));
    if (v->step != COUNT) {
        if (bytes > v->h->state_bytes - v->state_bytes)
            return err_set(e, ST_FORMAT, "damaged: '%s' is truncated", name);
        *p = v->rest + session_tables(v->h) + v->state_bytes;
    }
    v->state_bytes += bytes;
    return ST_OK;
}

static status pass_host(attn_state *s, const char *name, int layer, void *p, size_t bytes, err *e)
{
    state_walk *v = (state_walk *)s;
    unsigned char *at;
    TRY(pass_state(v, name, layer, bytes, &at, e));
    if (bytes && v->step == SAVE) memcpy(at, p, bytes);
    if (bytes && v->step == LOAD) memcpy(p, at, bytes);
    return ST_OK;
}

static status pass_mem(attn_state *s, const char *name, int layer, buf b, size_t bytes, err *e)
{
    state_walk *v = (state_walk *)s;
    unsigned char *at;
    TRY(pass_state(v, name, layer, bytes, &at, e));
    if (bytes && v->step == SAVE) v->be->ops->download(v->be, at, b, bytes);
    if (bytes && v->step == LOAD) v->be->ops->upload(v->be, b, at, bytes);
    return ST_OK;
}

/* Returns in *sum the checksums of the next n blocks; NULL: no comparison. */
static status pass_sums(state_walk *v, uint64_t n, uint64_t **sum, err *e)
{
    *sum = NULL;
    if (v->step == LOAD && !session_file_summed(v->from)) return ST_OK;
    if (v->step != COUNT) {
        if (n > v->h->n_sums - v->n_sums) return err_set(e, ST_FORMAT, "damaged: checksums are missing");
        void *all = v->rest + v->h->n_items * sizeof(session_item);
        if (v->step == SAVE || !v->from->trusted) *sum = (uint64_t *)all + v->n_sums;
    }
    v->n_sums += n;
    return ST_OK;
}

/* ---- rows ---- */

/* Writes n bytes at offset `at` of a file. Pages of zeros stay holes. */
static status write_pages(temp_file *d, uint64_t at, const unsigned char *p, size_t n, err *e)
{
    enum { PAGE = 4096 };
    for (size_t i = 0, m, end; i < n; i = end) {
        for (end = i; end < n; end += m) { /* pages of the file before one of zeros */
            m = PAGE - (at + end) % PAGE;
            if (m > n - end) m = n - end;
            if (sums_zero(p + end, m)) break;
        }
        if (end > i) TRY(temp_file_write(d, at + i, p + i, end - i, e));
        if (end < n) end += m;
    }
    return ST_OK;
}

/* Returns ST_FORMAT for a bad block of rows, of entry `item`, at offset `at` of the file. */
static status bad_block(const state_walk *v, uint64_t item, uint64_t at, uint64_t bytes, err *e)
{
    const session_item *of = (const session_item *)(const void *)v->rest + item;
    return err_set(e, ST_FORMAT,
                   "damaged: '%.23s' of layer %d: bytes %llu to %llu fail their checksum; save the session again",
                   of->name, (int)of->layer, (unsigned long long)at, (unsigned long long)(at + bytes - 1));
}

/* Saves or loads a block of entry `item` at offset `at` of the file. sum NULL: no check. work: n bytes. */
static status pass_block(state_walk *v, uint64_t item, uint64_t at, buf b, size_t n, unsigned char *work, uint64_t *sum,
                         err *e)
{
    if (v->step == SAVE) {
        v->be->ops->download(v->be, work, b, n);
        *sum = sums_of(work, n);
        return write_pages(v->to, at, work, n, e);
    }
    TRY(file_read_at(v->from->fd, at, work, n, path_tail(v->from->path), e));
    if (sum && sums_of(work, n) != *sum) return bad_block(v, item, at, n, e);
    v->be->ops->upload(v->be, b, work, n);
    return ST_OK;
}

/* Saves or loads the rows of an entry, in a buffer at offset `start` of the file. Bytes between the parts stay 0. */
static status pass_part(state_walk *v, uint64_t item, uint64_t start, buf b, state_part p, uint64_t *sum, err *e)
{
    unsigned char *work;
    status st = ST_OK;
    TRY(mem_alloc((void **)&work, p.used < SUMS_BLOCK ? p.used : SUMS_BLOCK, 1, "session file", e));
    for (size_t g = 0; g < p.n; g++)
        for (size_t done = 0, n; done < p.used && st == ST_OK; done += n) {
            size_t at = g * p.stride + done;
            n = p.used - done < SUMS_BLOCK ? p.used - done : SUMS_BLOCK;
            st = pass_block(v, item, start + at, buf_at(b, at), n, work, sum, e);
            if (sum) sum++;
        }
    mem_free(work);
    return st;
}

static status pass_rows(attn_state *s, const char *name, int layer, buf b, size_t bytes, state_part p, err *e)
{
    state_walk *v = (state_walk *)s;
    const backend_ops *o = v->be->ops;
    uint64_t item = v->n_items, first = v->rows_bytes, *sum;
    const session_item want = {
        .layer = layer, .kind = SESSION_ROWS, .at = first, .n = p.n, .stride = p.stride, .used = p.used};
    TRY(pass_item(v, want, name, e));
    v->rows_bytes = session_align(first + bytes);
    if (v->step == COUNT) return pass_sums(v, sums_count(p.n, p.used), &sum, e);
    uint64_t start = session_rows_at(v->h) + first;
    if (start > v->h->file_bytes || bytes > v->h->file_bytes - start)
        return err_set(e, ST_FORMAT, "damaged: '%s' is truncated", name);
    TRY(pass_sums(v, sums_count(p.n, p.used), &sum, e));
    bool mapped = v->step == LOAD && o->map_file && o->map_file(v->be, b, bytes, v->from->fd, start);
    if (!mapped) return pass_part(v, item, start, b, p, sum, e);
    if (sum) v->mapped[item] = (sums_part){start, p.n, p.stride, p.used, b.p, sum};
    return ST_OK;
}

static state_walk walk_of(const session *s)
{
    return (state_walk){.base = {.host = pass_host, .mem = pass_mem, .rows = pass_rows}, .be = s->d->be};
}

static status pass_all(state_walk *v, const session *s, err *e)
{
    v->base.load = v->step == LOAD;
    v->n_sums = v->rows_bytes = 0;
    TRY(attn_seq_state(s->attn, &v->base, e));
    return recurrent_state(s->state, &v->base, session_length(s), e);
}

/* ---- saving ---- */

static status save_all(state_walk *v, const session *s, const session_notes *n, err *e)
{
    size_t vocab = n->logits ? (size_t)s->d->m->config.vocab : 0;
    void *ids = (void *)(uintptr_t)n->ids, *logits = (void *)(uintptr_t)n->logits; /* not modified */
    v->n_items = v->state_bytes = 0;
    TRY(pass_host(&v->base, "token ids", -1, ids, n->n_ids * sizeof *n->ids, e));
    TRY(pass_host(&v->base, "logits", -1, logits, vocab * sizeof *n->logits, e));
    return pass_all(v, s, e);
}

/* Returns the largest file size that this process may write. */
static uint64_t file_limit(void)
{
    struct rlimit r;
    return getrlimit(RLIMIT_FSIZE, &r) == 0 && r.rlim_cur != RLIM_INFINITY ? (uint64_t)r.rlim_cur : UINT64_MAX;
}

/* Writes the rows, then everything before them in one piece, which includes their checksums. */
static status save_to(temp_file *d, const session *s, const session_notes *notes, uint64_t *bytes, err *e)
{
    session_header h;
    unsigned char *head;
    state_walk v = walk_of(s);
    session_header_of(&h, s);
    h.n_ids = notes->n_ids;
    h.random = notes->random;
    h.n_generated = notes->n_generated;
    h.bound = s->bound;
    TRY(save_all(&v, s, notes, e));
    h.n_items = v.n_items;
    h.n_sums = v.n_sums;
    h.state_bytes = v.state_bytes;
    h.file_bytes = *bytes = session_rows_at(&h) + v.rows_bytes;
    if (!d->part && *bytes > file_limit()) /* would raise SIGXFSZ, although to the caller this is memory */
        return err_set(e, ST_NOMEM, "%s: %llu bytes, beyond the limit of a file (RLIMIT_FSIZE)", d->path,
                       (unsigned long long)*bytes);
    size_t rest = (size_t)(session_tables(&h) + h.state_bytes);
    TRY(mem_alloc((void **)&head, SESSION_HEADER + rest, 1, "session file", e));
    v.step = SAVE;
    v.h = &h;
    v.rest = head + SESSION_HEADER;
    v.to = d;
    status st = save_all(&v, s, notes, e);
    if (st == ST_OK) st = backend_fault(s->d->be, e);
    session_sum(h.sum, &h, v.rest, rest);
    memcpy(head, &h, sizeof h);
    if (st == ST_OK) st = temp_file_write(d, 0, head, SESSION_HEADER + rest, e);
    mem_free(head);
    return st;
}

status session_save(const session *s, const char *path, const session_notes *notes, err *e)
{
    temp_file d;
    uint64_t bytes = 0;
    if (s->open) return err_set(e, ST_UNSUPPORTED, "a session cannot be saved in the middle of a prompt");
    status st = temp_file_open(&d, path, e);
    if (st == ST_OK) st = save_to(&d, s, notes, &bytes, e);
    if (st == ST_OK) st = temp_file_commit(&d, bytes, e);
    temp_file_close(&d);
    return st;
}

status session_keep(session_file **out, const session *s, const session_notes *notes, err *e)
{
    static char name[] = "session in memory";
    temp_file d = {.path = name};
    uint64_t bytes = 0;
    *out = NULL;
    if (s->open && attn_reuse_of(attn_seq_spec(s->attn)) == ATTN_REUSE_NEVER)
        return err_set(e, ST_UNSUPPORTED, "%s: a session cannot be kept in the middle of a prompt",
                       attn_seq_spec(s->attn)->text);
    d.fd = memfd_create("session", MFD_CLOEXEC);
    if (d.fd < 0) return err_set(e, ST_NOMEM, "cannot create a file in memory: %s", strerror(errno));
    status st = save_to(&d, s, notes, &bytes, e);
    if (st == ST_OK && ftruncate(d.fd, (off_t)bytes) != 0)
        st = err_set(e, ST_IO, "%s: cannot extend it to %llu bytes: %s", name, (unsigned long long)bytes,
                     strerror(errno));
    if (st != ST_OK) {
        close(d.fd);
        return st;
    }
    TRY(session_file_take(out, d.fd, name, 0, e));
    session_file_trust(*out);
    return ST_OK;
}

/* ---- loading ---- */

/* Loads the token ids: all tokens of the session and one that was not fed, or without it the logits that choose it. */
static status load_notes(state_walk *v, const session *s, session_notes *n, err *e)
{
    const session_header *h = &v->from->h;
    unsigned char *ids, *logits;
    int vocab = s->d->m->config.vocab;
    if (h->n_ids > (uint64_t)s->limit + 1 || h->n_generated > h->n_ids)
        return err_set(e, ST_FORMAT, "damaged: %llu tokens, %llu of them generated", (unsigned long long)h->n_ids,
                       (unsigned long long)h->n_generated);
    TRY(pass_state(v, "token ids", -1, (size_t)h->n_ids * sizeof *n->ids, &ids, e));
    *n = (session_notes){.ids = (const int32_t *)(const void *)ids,
                         .n_ids = (size_t)h->n_ids,
                         .random = h->random,
                         .n_generated = (size_t)h->n_generated};
    for (size_t i = 0; i < n->n_ids; i++)
        if (n->ids[i] < 0 || n->ids[i] >= vocab)
            return err_set(e, ST_FORMAT, "damaged: token id %d, expected 0 to %d", (int)n->ids[i], vocab - 1);
    /* the length of the entry tells whether there are logits; pass_state compares it */
    const session_item *next = (const session_item *)(const void *)v->rest + v->n_items;
    size_t bytes = v->n_items < h->n_items && next->used > 0 ? (size_t)vocab * sizeof *n->logits : 0;
    TRY(pass_state(v, "logits", -1, bytes, &logits, e));
    if (!bytes) return ST_OK;
    n->logits = (const float *)(const void *)logits;
    if (!draw_finite(n->logits, (size_t)vocab)) return err_set(e, ST_FORMAT, "damaged: logits that are not finite");
    return ST_OK;
}

static status load_all(state_walk *v, session *s, session_notes *n, err *e)
{
    TRY(load_notes(v, s, n, e));
    TRY(pass_all(v, s, e));
    uint64_t length = (uint64_t)session_length(s);
    if (v->n_items != v->from->h.n_items || v->state_bytes != v->from->h.state_bytes ||
        v->n_sums != v->from->h.n_sums || session_rows_at(&v->from->h) + v->rows_bytes != v->from->h.file_bytes)
        return err_set(e, ST_FORMAT, "damaged: more entries or bytes than a session has");
    if (n->n_ids != length + (n->logits ? 0 : 1) && n->n_ids != 0)
        return err_set(e, ST_FORMAT, "damaged: %zu token ids for %llu tokens", n->n_ids, (unsigned long long)length);
    s->bound = v->from->h.bound;
    return backend_fault(v->be, e);
}

/* Compares the checksums of mapped rows. Only backends in host memory map rows. */
static status check_mapped(const state_walk *v, err *e)
{
    sums_bad bad;
    status st = sums_check(v->from->fd, v->mapped, (size_t)v->from->h.n_items, v->be->n_threads, &bad, e);
    return st == ST_FORMAT ? bad_block(v, bad.part, bad.at, bad.bytes, e) : st;
}

status session_load(session *s, session_file *f, session_notes *notes, err *e)
{
    err why = {0};
    state_walk v = walk_of(s);
    TRY(session_file_check(f, s, e));
    v.step = LOAD;
    v.h = &f->h;
    v.rest = f->rest;
    v.from = f;
    session_reset(s);
    status st = MEM_NEW(&v.mapped, (size_t)f->h.n_items, &why);
    if (st == ST_OK) st = load_all(&v, s, notes, &why);
    if (st == ST_OK && !f->trusted) st = check_mapped(&v, &why);
    mem_free(v.mapped);
    if (st == ST_OK) {
        f->trusted = true;
        return ST_OK;
    }
    session_reset(s);
    if (st == ST_FORMAT && !session_file_summed(f))
        return err_set(e, st, "%.100s: saved by an earlier version that is no longer supported; save it again (%s)",
                       path_tail(f->path), why.msg);
    return err_set(e, st, "%.100s: %s", path_tail(f->path), why.msg);
}
