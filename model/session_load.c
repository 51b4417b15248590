/* SPDX-License-Identifier: MIT */
/* Reading sessions. Nothing in a file says where something lies or how much it is: the walk over the state says so, and
 * the directory must say the same. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/sums.h"
#include "model/decoder.h"
#include "model/session_file_impl.h"

struct session_file {
    session_header h;
    unsigned char *rest; /* directory, checksums of rows, state */
    size_t rest_bytes;
    bool trusted; /* rows are not to be checked, or were */
    char *path;
    int fd;
};

static status io_error(const session_file *f, uint64_t at, err *e)
{
    return err_set(e, ST_IO, "%s: reading at byte %llu: %s", path_tail(f->path), (unsigned long long)at,
                   errno ? strerror(errno) : "the file ends there");
}

static status read_at(const session_file *f, uint64_t at, void *to, size_t n, err *e)
{
    for (size_t done = 0; done < n;) {
        errno = 0;
        ssize_t k = pread(f->fd, (char *)to + done, n - done, (off_t)(at + done));
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return io_error(f, at + done, e);
        done += (size_t)k;
    }
    return ST_OK;
}

/* ---- opening ---- */

static status check_header(session_file *f, uint64_t size, err *e)
{
    session_header *h = &f->h;
    const char *name = path_tail(f->path);
    if (memcmp(h->magic, SESSION_MAGIC, sizeof h->magic) != 0)
        return err_set(e, ST_FORMAT, "%s: not a session (it does not begin with '%.14s')", name, SESSION_MAGIC);
    if (h->order != SESSION_ORDER)
        return err_set(e, ST_FORMAT, "%s: byte order %08x, expected %08x: saved on another kind of machine", name,
                       (unsigned)h->order, SESSION_ORDER);
    if (h->version != SESSION_FILE_VERSION && h->version != SESSION_FILE_UNSUMMED)
        return err_set(e, ST_FORMAT, "%s: version %u of session files, expected %d", name, (unsigned)h->version,
                       SESSION_FILE_VERSION);
    if (h->file_bytes != size)
        return err_set(e, ST_FORMAT, "%s: %llu bytes, expected %llu", name, (unsigned long long)size,
                       (unsigned long long)h->file_bytes);
    uint64_t room = size - SESSION_HEADER;
    if (h->n_items > room / sizeof(session_item) || h->n_sums > room / sizeof(uint64_t) || session_tables(h) > room ||
        h->state_bytes > room - session_tables(h) || (h->version == SESSION_FILE_UNSUMMED && h->n_sums > 0))
        return err_set(e, ST_FORMAT, "%s: damaged: %llu entries, %llu checksums and %llu bytes of state in %llu bytes",
                       name, (unsigned long long)h->n_items, (unsigned long long)h->n_sums,
                       (unsigned long long)h->state_bytes, (unsigned long long)size);
    if (h->context < 1 || h->context > (int64_t)1 << 40)
        return err_set(e, ST_FORMAT, "%s: damaged: a context of %lld tokens", name, (long long)h->context);
    return ST_OK;
}

/* Reads everything before the rows, as a copy that nobody can change after it was checked. */
static status read_rest(session_file *f, err *e)
{
    char sum[SESSION_SUM];
    size_t have = mem_available();
    f->rest_bytes = (size_t)(session_tables(&f->h) + f->h.state_bytes);
    if (have && f->rest_bytes > have)
        return err_set(e, ST_NOMEM, "%s: %zu bytes of state, %zu are available", path_tail(f->path), f->rest_bytes,
                       have);
    TRY(mem_alloc((void **)&f->rest, f->rest_bytes, 1, "session file", e));
    TRY(read_at(f, SESSION_HEADER, f->rest, f->rest_bytes, e));
    session_sum(sum, &f->h, f->rest, f->rest_bytes);
    if (memcmp(sum, f->h.sum, sizeof sum) == 0) return ST_OK;
    return err_set(e, ST_FORMAT, "%s: damaged: checksum %.12s..., expected %.12s...", path_tail(f->path), sum,
                   f->h.sum);
}

static status read_header(session_file *f, uint64_t bytes, err *e)
{
    static const unsigned char zero[SESSION_HEADER];
    unsigned char head[SESSION_HEADER];
    struct stat s;
    if (fstat(f->fd, &s) != 0 || !S_ISREG(s.st_mode))
        return err_set(e, ST_IO, "%s: not a regular file", path_tail(f->path));
    uint64_t size = bytes ? bytes : (uint64_t)s.st_size;
    if (s.st_size < SESSION_HEADER || size < SESSION_HEADER)
        return err_set(e, ST_FORMAT, "%s: %lld bytes, a session has at least %d", path_tail(f->path),
                       (long long)s.st_size, SESSION_HEADER);
    if (size > (uint64_t)s.st_size)
        return err_set(e, ST_FORMAT, "%s: %lld bytes, expected %llu", path_tail(f->path), (long long)s.st_size,
                       (unsigned long long)size);
    TRY(read_at(f, 0, head, sizeof head, e));
    memcpy(&f->h, head, sizeof f->h);
    TRY(check_header(f, size, e));
    session_header *h = &f->h;
    bool ended = !h->model[sizeof h->model - 1] && !h->store[sizeof h->store - 1] &&
                 !h->strategy[sizeof h->strategy - 1] && !h->sum[sizeof h->sum - 1];
    if (!ended || memcmp(head + sizeof *h, zero, sizeof head - sizeof *h) != 0)
        return err_set(e, ST_FORMAT, "%s: damaged: the header", path_tail(f->path));
    return read_rest(f, e);
}

status session_file_take(session_file **out, int fd, const char *name, uint64_t bytes, err *e)
{
    session_file *f;
    *out = NULL;
    status st = MEM_NEW(&f, 1, e);
    if (st != ST_OK) {
        close(fd);
        return st;
    }
    f->fd = fd;
    f->path = mem_strdup(name);
    st = f->path ? read_header(f, bytes, e) : err_set(e, ST_NOMEM, "session file: out of memory");
    if (st != ST_OK) session_file_close(f);
    else *out = f;
    return st;
}

status session_file_open(session_file **out, const char *path, err *e)
{
    *out = NULL;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return err_set(e, ST_IO, "%s: %s", path_tail(path), strerror(errno));
    return session_file_take(out, fd, path, 0, e);
}

void session_file_close(session_file *f)
{
    if (!f) return;
    close(f->fd);
    mem_free(f->rest);
    mem_free(f->path);
    mem_free(f);
}

void session_file_trust(session_file *f)
{
    f->trusted = true;
}

bool session_file_summed(const session_file *f)
{
    return f->h.version != SESSION_FILE_UNSUMMED;
}

const char *session_file_strategy(const session_file *f)
{
    return f->h.strategy;
}

const char *session_file_store(const session_file *f)
{
    return f->h.store;
}

int64_t session_file_context(const session_file *f)
{
    return f->h.context;
}

const int32_t *session_file_ids(const session_file *f, size_t *n)
{
    const session_header *h = &f->h;
    *n = h->n_items > 0 && h->n_ids <= h->state_bytes / sizeof(int32_t) ? (size_t)h->n_ids : 0;
    return (const int32_t *)(const void *)(f->rest + session_tables(h));
}

/* ---- whose it is ---- */

/* Two lists of words with ':' between them that differ: from the first word that does. */
static status another_strategy(const session_file *f, const char *found, const char *want, err *e)
{
    size_t from = 0;
    int name = (int)strcspn(found, ":");
    for (size_t i = 0; found[i] && found[i] == want[i]; i++)
        if (found[i] == ':') from = i + 1;
    if (from == 0)
        return err_set(e, ST_FORMAT, "%s: a session of strategy '%.*s', expected '%.*s'", path_tail(f->path),
                       name < 24 ? name : 24, found, (int)strcspn(want, ":"), want);
    return err_set(e, ST_FORMAT, "%s: a session of %.*s with %.40s, expected %.40s", path_tail(f->path),
                   name < 24 ? name : 24, found, found + from, want + from);
}

static status check_identity(const session_file *f, const session *s, err *e)
{
    session_header want;
    char strategy[ATTN_WRITTEN];
    const char *name = path_tail(f->path);
    attn_spec_known(strategy, f->h.strategy);
    TRY(session_header_of(&want, s, e));
    if (strcmp(f->h.model, want.model) != 0)
        return err_set(e, ST_FORMAT, "%s: a session of another model: %.12s..., expected %.12s...", name, f->h.model,
                       want.model);
    if (strcmp(strategy, want.strategy) != 0) return another_strategy(f, strategy, want.strategy, e);
    if (strcmp(f->h.store, want.store) != 0)
        return err_set(e, ST_FORMAT, "%s: keys and values are held as %.60s, expected %.60s", name, f->h.store,
                       want.store);
    if (f->h.context != want.context)
        return err_set(e, ST_FORMAT, "%s: a context of %lld tokens, expected %lld", name, (long long)f->h.context,
                       (long long)want.context);
    if (f->h.chunk != want.chunk)
        return err_set(e, ST_FORMAT, "%s: saved with --chunk %lld, expected %lld", name, (long long)f->h.chunk,
                       (long long)want.chunk);
    return ST_OK;
}

/* ---- loading ---- */

typedef struct {
    attn_state base;
    const session_file *f;
    backend *be;
    uint64_t next, state_at, rows_at, n_sums; /* what was read so far: entries, bytes, bytes, checksums */
    sums_part *mapped;                        /* [entries]: rows to be checked, in the file; n 0: none */
} loader;

/* The next entry, which must be this one. */
static status take_item(loader *v, session_item *want, const char *name, err *e)
{
    const session_item *found = (const session_item *)(const void *)v->f->rest + v->next;
    strncpy(want->name, name, sizeof want->name - 1);
    if (v->next == v->f->h.n_items) return err_set(e, ST_FORMAT, "damaged: '%s' is missing", name);
    if (memcmp(found, want, sizeof *want) != 0)
        return err_set(e, ST_FORMAT, "damaged: entry %llu is '%.23s', %llu x %llu bytes, expected '%s', %llu x %llu",
                       (unsigned long long)v->next, found->name, (unsigned long long)found->n,
                       (unsigned long long)found->used, name, (unsigned long long)want->n,
                       (unsigned long long)want->used);
    v->next++;
    return ST_OK;
}

/* The next `bytes` bytes of what is copied. */
static status take_state(loader *v, const char *name, int layer, size_t bytes, const unsigned char **from, err *e)
{
    session_item want = {
        .layer = layer, .kind = SESSION_STATE, .at = v->state_at, .n = 1, .stride = bytes, .used = bytes};
    TRY(take_item(v, &want, name, e));
    if (bytes > v->f->h.state_bytes - v->state_at) return err_set(e, ST_FORMAT, "damaged: '%s' is cut", name);
    *from = v->f->rest + session_tables(&v->f->h) + v->state_at;
    v->state_at += bytes;
    return ST_OK;
}

static status load_host(attn_state *s, const char *name, int layer, void *p, size_t bytes, err *e)
{
    const unsigned char *from = NULL;
    TRY(take_state((loader *)s, name, layer, bytes, &from, e));
    if (bytes) memcpy(p, from, bytes);
    return ST_OK;
}

static status load_mem(attn_state *s, const char *name, int layer, buf b, size_t bytes, err *e)
{
    loader *v = (loader *)s;
    const unsigned char *from = NULL;
    TRY(take_state(v, name, layer, bytes, &from, e));
    if (bytes) v->be->ops->upload(v->be, b, from, bytes);
    return ST_OK;
}

/* ST_FORMAT for a block of rows that belongs to entry `item` and begins at offset `at` of the file. */
static status bad_block(const loader *v, uint64_t item, uint64_t at, uint64_t bytes, err *e)
{
    const session_item *of = (const session_item *)(const void *)v->f->rest + item;
    return err_set(e, ST_FORMAT,
                   "damaged: '%.23s' of layer %d: bytes %llu to %llu do not have their checksum; write the file again",
                   of->name, (int)of->layer, (unsigned long long)at, (unsigned long long)(at + bytes - 1));
}

/* Copies the rows of an entry to a buffer that begins at offset `start` of the file; sum NULL: without a check. Bytes
 * between the pieces stay 0. */
static status copy_rows(loader *v, uint64_t start, buf b, const state_part *p, uint64_t item, const uint64_t *sum,
                        err *e)
{
    unsigned char *work;
    status st = ST_OK;
    TRY(mem_alloc((void **)&work, p->used < SUMS_BLOCK ? p->used : SUMS_BLOCK, 1, "session file", e));
    for (size_t g = 0; g < p->n; g++) {
        size_t at = p->at + g * p->stride;
        for (size_t done = 0, n; done < p->used && st == ST_OK; done += n) {
            n = p->used - done < SUMS_BLOCK ? p->used - done : SUMS_BLOCK;
            st = read_at(v->f, start + at + done, work, n, e);
            if (st == ST_OK && sum && sums_of(work, n) != *sum++) st = bad_block(v, item, start + at + done, n, e);
            if (st == ST_OK) v->be->ops->upload(v->be, buf_at(b, at + done), work, n);
        }
    }
    mem_free(work);
    return st;
}

/* The checksums of the next `n` blocks; *sum stays NULL where none are to be compared. */
static status take_sums(loader *v, uint64_t n, const uint64_t **sum, err *e)
{
    const session_header *h = &v->f->h;
    if (!session_file_summed(v->f)) return ST_OK;
    if (n > h->n_sums - v->n_sums) return err_set(e, ST_FORMAT, "damaged: checksums are missing");
    const void *all = v->f->rest + h->n_items * sizeof(session_item);
    if (!v->f->trusted) *sum = (const uint64_t *)all + v->n_sums;
    v->n_sums += n;
    return ST_OK;
}

static status load_rows(attn_state *s, const char *name, int layer, buf b, size_t bytes, const state_part *part,
                        size_t n_parts, err *e)
{
    loader *v = (loader *)s;
    const backend_ops *o = v->be->ops;
    uint64_t start = session_rows_at(&v->f->h) + v->rows_at, item = v->next;
    for (size_t i = 0; i < n_parts; i++) {
        session_item want = {.layer = layer,
                             .kind = SESSION_ROWS,
                             .at = v->rows_at + part[i].at,
                             .n = part[i].n,
                             .stride = part[i].stride,
                             .used = part[i].used};
        TRY(take_item(v, &want, name, e));
    }
    if (start > v->f->h.file_bytes || bytes > v->f->h.file_bytes - start)
        return err_set(e, ST_FORMAT, "damaged: '%s' is cut", name);
    v->rows_at = session_align(v->rows_at + bytes);
    bool mapped = o->map_file && o->map_file(v->be, b, bytes, v->f->fd, start);
    for (size_t i = 0; i < n_parts; i++, item++) {
        const state_part *p = &part[i];
        const uint64_t *sum = NULL;
        TRY(take_sums(v, sums_count(p->n, p->used), &sum, e));
        if (!mapped) TRY(copy_rows(v, start, b, p, item, sum, e));
        else if (sum) v->mapped[item] = (sums_part){start + p->at, p->n, p->stride, p->used, b.p + p->at, sum};
    }
    return ST_OK;
}

/* All tokens of the session and at most one that was not fed, or else the logits that give it. */
static status load_notes(loader *v, const session *s, session_notes *n, err *e)
{
    const session_header *h = &v->f->h;
    const unsigned char *ids = NULL, *logits = NULL;
    int vocab = s->d->m->config.vocab;
    if (h->n_ids > (uint64_t)s->limit + 1)
        return err_set(e, ST_FORMAT, "damaged: %llu tokens", (unsigned long long)h->n_ids);
    TRY(take_state(v, "token ids", -1, (size_t)h->n_ids * sizeof *n->ids, &ids, e));
    *n = (session_notes){.ids = (const int32_t *)(const void *)ids, .n_ids = (size_t)h->n_ids, .random = h->random};
    for (size_t i = 0; i < n->n_ids; i++)
        if (n->ids[i] < 0 || n->ids[i] >= vocab)
            return err_set(e, ST_FORMAT, "damaged: token id %d, expected 0 to %d", (int)n->ids[i], vocab - 1);
    /* Whether there are any shows in the length of their entry, which take_state compares. */
    const session_item *next = (const session_item *)(const void *)v->f->rest + v->next;
    size_t bytes = v->next < h->n_items && next->used > 0 ? (size_t)vocab * sizeof *n->logits : 0;
    TRY(take_state(v, "logits", -1, bytes, &logits, e));
    if (!bytes) return ST_OK;
    n->logits = (const float *)(const void *)logits;
    if (!draw_finite(n->logits, (size_t)vocab)) return err_set(e, ST_FORMAT, "damaged: logits that are not finite");
    return ST_OK;
}

static status load_all(loader *v, session *s, session_notes *n, err *e)
{
    TRY(load_notes(v, s, n, e));
    TRY(attn_seq_state(s->attn, &v->base, e));
    TRY(recurrent_state(s->state, &v->base, session_length(s), e));
    uint64_t length = (uint64_t)session_length(s);
    if (v->next != v->f->h.n_items || v->state_at != v->f->h.state_bytes || v->n_sums != v->f->h.n_sums ||
        session_rows_at(&v->f->h) + v->rows_at != v->f->h.file_bytes)
        return err_set(e, ST_FORMAT, "damaged: more entries or bytes than a session has");
    if (n->n_ids != length + (n->logits ? 0 : 1) && n->n_ids != 0)
        return err_set(e, ST_FORMAT, "damaged: %zu token ids for %llu tokens", n->n_ids, (unsigned long long)length);
    s->bound = v->f->h.bound;
    return backend_fault(v->be, e);
}

/* Compares the checksums of rows that were mapped, which only backends in host memory do. */
static status check_mapped(const loader *v, err *e)
{
    sums_bad bad;
    status st = sums_check(v->f->fd, v->mapped, (size_t)v->f->h.n_items, v->be->n_threads, &bad, e);
    return st == ST_FORMAT ? bad_block(v, bad.part, bad.at, bad.bytes, e) : st;
}

status session_load(session *s, session_file *f, session_notes *notes, err *e)
{
    err why = {0};
    loader v = {.base = {.load = true, .host = load_host, .mem = load_mem, .rows = load_rows}, .f = f, .be = s->d->be};
    TRY(check_identity(f, s, e));
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
        return err_set(e, st, "%.100s: saved by an earlier version, which this one does not read; save it again (%s)",
                       path_tail(f->path), why.msg);
    return err_set(e, st, "%.100s: %s", path_tail(f->path), why.msg);
}
