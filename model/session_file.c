/* SPDX-License-Identifier: MIT */
/* Session files: identity and opening. session_state.c writes and reads the part after the header. */
#include "config.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attention/reuse.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "model/decoder.h"
#include "model/session_file_impl.h"
#include "model/weights.h"

_Static_assert(sizeof(session_header) <= SESSION_HEADER, "the header fits");
_Static_assert(sizeof(session_item) == 64, "entries have no holes");

/* ---- identity ---- */

void model_fingerprint(char out[SHA256_HEX], const model *m)
{
    sha256 hash;
    sha256_init(&hash);
    config_hash(&hash, &m->config);
    for (const weight_spec *w = m->weights; w < weights_end(m); w++)
        if (w->slot->p.p) weight_hash(&hash, m->be, w);
    sha256_hex(&hash, out);
}

void session_header_of(session_header *h, const session *s)
{
    memset(h, 0, sizeof *h);
    memcpy(h->magic, SESSION_MAGIC, sizeof h->magic);
    h->version = SESSION_FILE_VERSION;
    h->order = SESSION_ORDER;
    h->context = s->limit;
    h->chunk = decoder_chunk(s->d);
    attn_spec_write(attn_seq_spec(s->attn), h->strategy, h->store);
    if (!s->d->fingerprint[0]) model_fingerprint(s->d->fingerprint, s->d->m);
    memcpy(h->model, s->d->fingerprint, sizeof s->d->fingerprint);
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

/* Reads everything before the rows into memory, so that it cannot change after the check. */
static status read_rest(session_file *f, err *e)
{
    char sum[SESSION_SUM];
    size_t have = mem_available();
    f->rest_bytes = (size_t)(session_tables(&f->h) + f->h.state_bytes);
    if (have && f->rest_bytes > have)
        return err_set(e, ST_NOMEM, "%s: %zu bytes of state, %zu are available", path_tail(f->path), f->rest_bytes,
                       have);
    TRY(mem_alloc((void **)&f->rest, f->rest_bytes, 1, "session file", e));
    TRY(file_read_at(f->fd, SESSION_HEADER, f->rest, f->rest_bytes, path_tail(f->path), e));
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
    TRY(file_read_at(f->fd, 0, head, sizeof head, path_tail(f->path), e));
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

int session_file_fd(const session_file *f)
{
    return f->fd;
}

void session_file_is_prompt(session_file *f)
{
    f->is_prompt = true;
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

/* ---- compatibility ---- */

/* Reports the first difference of two lists of words separated by ':'. */
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

/* Writes the strategies of the file and of the session as far as they must agree. */
static status write_strategies(char found[ATTN_WRITTEN], char want[ATTN_WRITTEN], const session_file *f,
                               const session *s, err *e)
{
    attn_spec spec = *attn_seq_spec(s->attn);
    char store[128];
    if (f->is_prompt) spec = attn_reuse_spec(&spec);
    attn_spec_write(&spec, want, store);
    attn_spec_known(found, f->h.strategy);
    if (!f->is_prompt) return ST_OK;
    TRY(attn_spec_read(&spec, found, f->h.store, e));
    spec = attn_reuse_spec(&spec);
    attn_spec_write(&spec, found, store);
    return ST_OK;
}

status session_file_check(const session_file *f, const session *s, err *e)
{
    session_header want;
    char strategy[ATTN_WRITTEN], expected[ATTN_WRITTEN];
    const char *name = path_tail(f->path);
    session_header_of(&want, s);
    TRY(write_strategies(strategy, expected, f, s, e));
    if (strcmp(f->h.model, want.model) != 0)
        return err_set(e, ST_FORMAT, "%s: a session of another model: %.12s..., expected %.12s...", name, f->h.model,
                       want.model);
    if (strcmp(strategy, expected) != 0) return another_strategy(f, strategy, expected, e);
    if (strcmp(f->h.store, want.store) != 0)
        return err_set(e, ST_FORMAT, "%s: keys and values are stored as %.60s, expected %.60s", name, f->h.store,
                       want.store);
    if (f->h.context != want.context)
        return err_set(e, ST_FORMAT, "%s: a context of %lld tokens, expected %lld", name, (long long)f->h.context,
                       (long long)want.context);
    if (f->h.chunk != want.chunk)
        return err_set(e, ST_FORMAT, "%s: saved with --chunk %lld, expected %lld", name, (long long)f->h.chunk,
                       (long long)want.chunk);
    return ST_OK;
}
