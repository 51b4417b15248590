/* SPDX-License-Identifier: MIT */
/* Writing sessions, and what writing and reading share. */
#include "config.h"

#include <errno.h>
#include <string.h>
#include <unistd.h>

#include "attention/reuse.h"
#include "kernels/base/draft.h"
#include "kernels/base/mem.h"
#include "kernels/base/sums.h"
#include "model/decoder.h"
#include "model/session_file_impl.h"
#include "model/weights.h"

_Static_assert(sizeof(session_header) <= SESSION_HEADER, "the header has its place");
_Static_assert(sizeof(session_item) == 64, "entries have no holes");

/* ---- what a file is of ---- */

typedef struct {
    const model *m;
    sha256 hash;
} fingerprint;

static status hash_weight(void *ctx, const weight_spec *w, err *e)
{
    fingerprint *f = ctx;
    (void)e;
    if (w->slot->p.p) weight_hash(&f->hash, f->m->be, w);
    return ST_OK;
}

status model_fingerprint(char out[SHA256_HEX], const model *m, err *e)
{
    fingerprint f = {.m = m};
    sha256_init(&f.hash);
    config_hash(&f.hash, &m->config);
    TRY(model_each_weight(m, hash_weight, &f, e));
    sha256_hex(&f.hash, out);
    return ST_OK;
}

status session_header_of(session_header *h, const session *s, err *e)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, SESSION_MAGIC, sizeof h->magic);
    h->version = SESSION_FILE_VERSION;
    h->order = SESSION_ORDER;
    h->context = s->limit;
    h->chunk = decoder_chunk(s->d);
    attn_spec_write(attn_seq_spec(s->attn), h->strategy, h->store);
    if (!s->d->fingerprint[0]) TRY(model_fingerprint(s->d->fingerprint, s->d->m, e));
    memcpy(h->model, s->d->fingerprint, sizeof s->d->fingerprint);
    return ST_OK;
}

void session_sum(char out[SESSION_SUM], const session_header *h, const void *rest, size_t bytes)
{
    static const char pad[SESSION_HEADER];
    session_header zero = *h;
    sha256 sum;
    memset(zero.sum, 0, sizeof zero.sum);
    sha256_init(&sum);
    sha256_add(&sum, &zero, sizeof zero);
    sha256_add(&sum, pad, SESSION_HEADER - sizeof zero);
    sha256_add(&sum, rest, bytes);
    memset(out, 0, SESSION_SUM);
    sha256_hex(&sum, out);
}

/* ---- saving ---- */

/* Values that are written once their place is known. */
typedef struct {
    buf b;
    size_t item, bytes; /* the first of its entries; of the buffer */
} row_buffer;

typedef struct {
    attn_state base;
    backend *be;
    session_item *item;
    row_buffer *rows;
    unsigned char *state;
    size_t n_items, items_cap, n_rows, rows_cap, state_bytes, state_cap;
    uint64_t rows_bytes, n_sums;
} saver;

/* Room for one more of something. */
#define GROW(p, n, cap, more, e)                                                                                       \
    do {                                                                                                               \
        if ((n) + (more) > (cap)) {                                                                                    \
            (cap) = 2 * ((n) + (more));                                                                                \
            TRY(MEM_GROW(&(p), (cap), (e)));                                                                           \
        }                                                                                                              \
    } while (0)

static status add_item(saver *s, const session_item *item, const char *name, err *e)
{
    GROW(s->item, s->n_items, s->items_cap, 1, e);
    s->item[s->n_items] = *item;
    strncpy(s->item[s->n_items++].name, name, sizeof item->name - 1);
    return ST_OK;
}

/* A place for `bytes` bytes that are copied. */
static status add_state(saver *s, const char *name, int layer, size_t bytes, unsigned char **to, err *e)
{
    const session_item item = {
        .layer = layer, .kind = SESSION_STATE, .at = s->state_bytes, .n = 1, .stride = bytes, .used = bytes};
    GROW(s->state, s->state_bytes, s->state_cap, bytes + 1, e); /* one more: there is memory even for nothing */
    *to = s->state + s->state_bytes;
    s->state_bytes += bytes;
    return add_item(s, &item, name, e);
}

static status save_host(attn_state *v, const char *name, int layer, void *p, size_t bytes, err *e)
{
    unsigned char *to = NULL;
    TRY(add_state((saver *)v, name, layer, bytes, &to, e));
    if (bytes) memcpy(to, p, bytes);
    return ST_OK;
}

static status save_mem(attn_state *v, const char *name, int layer, buf b, size_t bytes, err *e)
{
    saver *s = (saver *)v;
    unsigned char *to = NULL;
    TRY(add_state(s, name, layer, bytes, &to, e));
    if (bytes) s->be->ops->download(s->be, to, b, bytes);
    return ST_OK;
}

static status save_rows(attn_state *v, const char *name, int layer, buf b, size_t bytes, const state_part *part,
                        size_t n_parts, err *e)
{
    saver *s = (saver *)v;
    GROW(s->rows, s->n_rows, s->rows_cap, 1, e);
    s->rows[s->n_rows++] = (row_buffer){b, s->n_items, bytes};
    for (size_t i = 0; i < n_parts; i++) {
        const session_item item = {.layer = layer,
                                   .kind = SESSION_ROWS,
                                   .at = s->rows_bytes + part[i].at,
                                   .n = part[i].n,
                                   .stride = part[i].stride,
                                   .used = part[i].used};
        s->n_sums += sums_count(item.n, item.used);
        TRY(add_item(s, &item, name, e));
    }
    s->rows_bytes = session_align(s->rows_bytes + bytes);
    return ST_OK;
}

/* A block of rows from ops memory to offset `to` of the file; pages of zeros stay holes. work: SUMS_BLOCK bytes. */
static status write_block(saver *s, file_draft *d, uint64_t to, buf b, size_t n, unsigned char *work, uint64_t *sum,
                          err *e)
{
    enum { PAGE = 4096 };
    s->be->ops->download(s->be, work, b, n);
    *sum = sums_of(work, n);
    for (size_t i = 0, m, end; i < n; i = end) {
        for (end = i; end < n; end += m) { /* pages of the file up to one of zeros */
            m = PAGE - (to + end) % PAGE;
            if (m > n - end) m = n - end;
            if (sums_zero(work + end, m)) break;
        }
        if (end > i) TRY(file_draft_write(d, to + i, work + i, end - i, e));
        if (end < n) end += m;
    }
    return ST_OK;
}

/* The pieces of a directory's entry, which lie in a buffer that begins at offset `first` of all rows; *sum advances. */
static status write_item(saver *s, file_draft *d, uint64_t start, const session_item *p, buf b, uint64_t first,
                         unsigned char *work, uint64_t **sum, err *e)
{
    for (size_t g = 0; g < p->n; g++) {
        uint64_t at = p->at + g * p->stride;
        for (size_t done = 0, n; done < p->used; done += n) {
            n = p->used - done < SUMS_BLOCK ? p->used - done : SUMS_BLOCK;
            TRY(write_block(s, d, start + at + done, buf_at(b, at - first + done), n, work, (*sum)++, e));
        }
    }
    return ST_OK;
}

static status write_rows(saver *s, file_draft *d, uint64_t start, uint64_t *sum, err *e)
{
    unsigned char *work;
    status st = ST_OK;
    TRY(mem_alloc((void **)&work, SUMS_BLOCK, 1, "session file", e));
    for (size_t i = 0; i < s->n_rows && st == ST_OK; i++) {
        const row_buffer *r = &s->rows[i];
        size_t end = i + 1 < s->n_rows ? s->rows[i + 1].item : s->n_items;
        uint64_t first = session_align(s->item[r->item].at + 1) - SESSION_ALIGN;
        for (size_t k = r->item; k < end && s->item[k].kind == SESSION_ROWS && st == ST_OK; k++)
            st = write_item(s, d, start, &s->item[k], r->b, first, work, &sum, e);
    }
    mem_free(work);
    return st;
}

/* The rows, then everything before them in one piece, which has their checksums. */
static status write_file(saver *s, file_draft *d, session_header *h, err *e)
{
    unsigned char *head = NULL, *rest;
    size_t list = s->n_items * sizeof *s->item;
    h->n_items = s->n_items;
    h->n_sums = s->n_sums;
    h->state_bytes = s->state_bytes;
    h->file_bytes = session_rows_at(h) + s->rows_bytes;
    size_t tables = (size_t)session_tables(h), bytes = tables + s->state_bytes;
    TRY(mem_alloc((void **)&head, SESSION_HEADER + bytes, 1, "session file", e));
    rest = head + SESSION_HEADER;
    memcpy(rest, s->item, list);
    if (s->state_bytes) memcpy(rest + tables, s->state, s->state_bytes);
    status st = write_rows(s, d, session_rows_at(h), (uint64_t *)(void *)(rest + list), e);
    if (st == ST_OK) st = backend_fault(s->be, e);
    session_sum(h->sum, h, rest, bytes);
    memcpy(head, h, sizeof *h);
    if (st == ST_OK) st = file_draft_write(d, 0, head, SESSION_HEADER + bytes, e);
    mem_free(head);
    return st;
}

static status walk(saver *s, const session *from, const session_notes *n, err *e)
{
    size_t vocab = n->logits ? (size_t)from->d->m->config.vocab : 0;
    void *ids = (void *)(uintptr_t)n->ids, *logits = (void *)(uintptr_t)n->logits; /* only read */
    TRY(save_host(&s->base, "token ids", -1, ids, n->n_ids * sizeof *n->ids, e));
    TRY(save_host(&s->base, "logits", -1, logits, vocab * sizeof *n->logits, e));
    TRY(attn_seq_state(from->attn, &s->base, e));
    return recurrent_state(from->state, &s->base, session_length(from), e);
}

/* *bytes: what the file is to have. */
static status save_to(file_draft *d, const session *s, const session_notes *notes, uint64_t *bytes, err *e)
{
    session_header h;
    saver v = {.base = {.host = save_host, .mem = save_mem, .rows = save_rows}, .be = s->d->be};
    TRY(session_header_of(&h, s, e));
    h.n_ids = notes->n_ids;
    h.random = notes->random;
    h.bound = s->bound;
    status st = walk(&v, s, notes, e);
    if (st == ST_OK) st = write_file(&v, d, &h, e);
    *bytes = h.file_bytes;
    mem_free(v.item);
    mem_free(v.rows);
    mem_free(v.state);
    return st;
}

status session_save(const session *s, const char *path, const session_notes *notes, err *e)
{
    file_draft d;
    uint64_t bytes = 0;
    if (s->open) return err_set(e, ST_UNSUPPORTED, "a session cannot be saved in the middle of a prompt");
    status st = file_draft_open(&d, path, e);
    if (st == ST_OK) st = save_to(&d, s, notes, &bytes, e);
    if (st == ST_OK) st = file_draft_commit(&d, bytes, e);
    file_draft_close(&d);
    return st;
}

status session_save_part(const session *s, int fd, const char *name, const session_notes *notes, err *e)
{
    file_draft d = {.path = (char *)(uintptr_t)name, .fd = fd}; /* only read */
    uint64_t bytes = 0;
    if (attn_reuse_of(attn_seq_spec(s->attn)) == ATTN_REUSE_NEVER)
        return err_set(e, ST_UNSUPPORTED, "%s: the first tokens of a prompt are no use to another one",
                       attn_seq_spec(s->attn)->text);
    TRY(save_to(&d, s, notes, &bytes, e));
    if (ftruncate(fd, (off_t)bytes) == 0) return ST_OK;
    return err_set(e, ST_IO, "%s: making it %llu bytes long: %s", name, (unsigned long long)bytes, strerror(errno));
}
