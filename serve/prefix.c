/* SPDX-License-Identifier: MIT */
/* The entries, and which of them go. */
#include "config.h"

#include "serve/prefix.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/mem.h"
#include "model/session_file.h"

/* A range of bytes of a file that holds something. */
typedef struct {
    off_t at, end;
} extent;

struct prefix_entry {
    prefix_entry *next;
    char key[SHA256_HEX];
    size_t n;
    const int32_t *ids; /* [n], in the file */
    session_file *file;
    int fd;          /* of it */
    extent *written; /* the rest of it are holes */
    size_t n_written;
    size_t bytes;
    uint64_t used; /* when: a number that grows */
    bool served;   /* somebody */
    bool gone;     /* is not found any more, and freed once nobody uses it */
    int users;
};

struct prefix_store {
    prefix_options o;
    pthread_mutex_t lock; /* of counts */
    prefix_counts counts;
    prefix_entry *list;
    uint64_t clock;
};

/* ---- entries ---- */

static void entry_free(prefix_entry *x)
{
    if (!x) return;
    session_file_close(x->file);
    mem_free(x->written);
    mem_free(x);
}

static void count(prefix_store *p, const prefix_entry *x, bool more)
{
    pthread_mutex_lock(&p->lock);
    p->counts.entries += more ? 1 : (size_t)-1;
    p->counts.bytes += more ? x->bytes : -x->bytes;
    pthread_mutex_unlock(&p->lock);
}

/* Frees those that are gone and that nobody uses. */
static void sweep(prefix_store *p)
{
    for (prefix_entry **at = &p->list; *at;) {
        prefix_entry *x = *at;
        if (!x->gone || x->users > 0) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        count(p, x, false);
        entry_free(x);
    }
}

static size_t same_ids(const int32_t *a, const int32_t *b, size_t n)
{
    size_t k = 0;
    while (k < n && a[k] == b[k]) k++;
    return k;
}

/* Whether x begins with y, which is no longer. */
static bool begins_with(const prefix_entry *x, const prefix_entry *y)
{
    return x->n >= y->n && strcmp(x->key, y->key) == 0 && memcmp(x->ids, y->ids, y->n * sizeof *y->ids) == 0;
}

/* ---- which go ---- */

static bool has_longer(const prefix_store *p, const prefix_entry *x)
{
    for (const prefix_entry *y = p->list; y; y = y->next)
        if (y != x && !y->gone && begins_with(y, x)) return true;
    return false;
}

static bool goes_before(const prefix_entry *a, const prefix_entry *b)
{
    return a->served != b->served ? b->served : a->used < b->used;
}

static prefix_entry *next_to_go(const prefix_store *p)
{
    prefix_entry *worst = NULL;
    for (prefix_entry *x = p->list; x; x = x->next)
        if (!x->gone && x->users == 0 && (!worst || goes_before(x, worst)) && !has_longer(p, x)) worst = x;
    return worst;
}

static size_t bytes_in_use(const prefix_store *p)
{
    size_t bytes = 0;
    for (const prefix_entry *x = p->list; x; x = x->next) bytes += x->users > 0 ? x->bytes : 0;
    return bytes;
}

bool prefix_shrink(prefix_store *p, size_t bytes)
{
    prefix_entry *x;
    if (bytes_in_use(p) > bytes) return false;
    while (p->counts.bytes > bytes && (x = next_to_go(p))) {
        x->gone = true;
        sweep(p);
    }
    return p->counts.bytes <= bytes;
}

/* ---- files in memory ---- */

static size_t bytes_of(int fd)
{
    struct stat s;
    return fstat(fd, &s) == 0 ? (size_t)s.st_blocks * 512 : 0;
}

/* Which parts of the file were written. */
static status find_written(prefix_entry *x, err *e)
{
    size_t cap = 0;
    for (off_t at = 0, end; (at = lseek(x->fd, at, SEEK_DATA)) >= 0; at = end) {
        if ((end = lseek(x->fd, at, SEEK_HOLE)) < 0) break;
        if (x->n_written == cap) {
            cap = 2 * cap + 64;
            TRY(MEM_GROW(&x->written, cap, e));
        }
        x->written[x->n_written++] = (extent){at, end};
    }
    return ST_OK;
}

/* Where a mapped hole is read or written, the system fills it with zeros for good: they are given back. */
static void punch_holes(const prefix_entry *x)
{
    struct stat s;
    off_t from = 0;
    if (fstat(x->fd, &s) != 0 || (size_t)s.st_blocks * 512 <= x->bytes) return;
    for (size_t i = 0; i <= x->n_written; i++) {
        off_t to = i < x->n_written ? x->written[i].at : s.st_size;
        if (to > from) (void)fallocate(x->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, from, to - from);
        if (i < x->n_written) from = x->written[i].end;
    }
}

static status fill(prefix_entry *x, const prefix_prompt *of, const session *s, err *e)
{
    const session_notes notes = {.ids = of->ids, .n_ids = of->n + 1};
    size_t n;
    int fd = memfd_create("prefix", MFD_CLOEXEC);
    if (fd < 0) return err_set(e, ST_NOMEM, "no file in memory: %s", strerror(errno));
    status st = session_save_part(s, fd, "prefix", &notes, e);
    if (st != ST_OK) {
        close(fd);
        return st;
    }
    TRY(session_file_take(&x->file, fd, "prefix", 0, e));
    x->fd = fd;
    x->ids = session_file_ids(x->file, &n);
    x->n = of->n;
    x->bytes = bytes_of(fd);
    memcpy(x->key, of->key, sizeof x->key);
    return find_written(x, e);
}

/* ---- the store ---- */

status prefix_open(prefix_store **out, const prefix_options *o, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->o = *o;
    pthread_mutex_init(&(*out)->lock, NULL);
    return ST_OK;
}

void prefix_close(prefix_store *p)
{
    if (!p) return;
    for (prefix_entry *x; (x = p->list);) {
        p->list = x->next;
        entry_free(x);
    }
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* How many of a prompt's tokens an entry serves. */
static size_t serves(const prefix_store *p, const prefix_entry *x, const prefix_prompt *of)
{
    if (x->gone || strcmp(x->key, of->key) != 0) return 0;
    size_t n = same_ids(x->ids, of->ids, x->n < of->n ? x->n : of->n);
    if (!of->any) return n == x->n ? n : 0;
    return n / p->o.chunk * p->o.chunk;
}

prefix_entry *prefix_find(prefix_store *p, const prefix_prompt *of, size_t *known)
{
    prefix_entry *best = NULL;
    *known = 0;
    for (prefix_entry *x = p->list; x; x = x->next) {
        size_t n = serves(p, x, of);
        if (n > *known) best = x, *known = n;
    }
    if (best) best->users++;
    return best;
}

void prefix_let_go(prefix_store *p, prefix_entry *x)
{
    if (--x->users > 0) return;
    punch_holes(x);
    sweep(p);
}

status prefix_load(prefix_store *p, prefix_entry *x, session *s, size_t n, err *e)
{
    session_notes notes;
    status st = session_load(s, x->file, &notes, e);
    if (st == ST_OK && n < x->n) st = session_rewind(s, (int64_t)n, e);
    if (st == ST_OK) {
        x->used = ++p->clock;
        x->served = true;
        return ST_OK;
    }
    session_reset(s);
    x->gone = true;
    return st;
}

/* What the new entry makes needless, where a part of it serves as well; it has served whom they did. */
static void replace(prefix_store *p, prefix_entry *x)
{
    for (prefix_entry *y = p->list; y; y = y->next) {
        if (y->gone || !begins_with(x, y)) continue;
        x->served |= y->served;
        y->gone = true;
    }
    sweep(p);
}

status prefix_keep(prefix_store *p, const prefix_prompt *of, const session *s, size_t memory, err *e)
{
    prefix_entry *x;
    attn_bytes held = attn_seq_held(session_attn(s));
    size_t need = held.kv + held.index;
    if (memory > p->o.memory) memory = p->o.memory;
    if (need > memory || !prefix_shrink(p, memory - need))
        return err_set(e, ST_NOMEM, "%.1f MB of a prompt, %.1f MB are there for prompts", (double)need / 1e6,
                       (double)memory / 1e6);
    TRY(MEM_NEW(&x, 1, e));
    status st = fill(x, of, s, e);
    if (st != ST_OK) {
        entry_free(x);
        return st;
    }
    x->used = ++p->clock;
    if (of->any) replace(p, x);
    x->next = p->list;
    p->list = x;
    count(p, x, true);
    x->users++; /* what it takes is known now, and may be more: others go, or else it */
    bool fits = prefix_shrink(p, memory);
    x->users--;
    if (!fits) (void)prefix_shrink(p, memory);
    return ST_OK;
}

prefix_counts prefix_count(prefix_store *p)
{
    pthread_mutex_lock(&p->lock);
    prefix_counts c = p->counts;
    pthread_mutex_unlock(&p->lock);
    return c;
}
