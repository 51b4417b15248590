/* SPDX-License-Identifier: MIT */
/* Entries of the prefix store, and their eviction. */
#include "config.h"

#include "generate/prefix.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "model/session_file.h"

enum { MOST_IN_MEMORY = 256 }; /* entries; each has a file descriptor, of which processes often have 1,024 */

struct prefix_entry {
    prefix_entry *next;
    char key[SHA256_HEX], file_name[SHA256_HEX];
    int32_t *ids;
    size_t n;
    /* in memory if bytes is not 0 */
    session_file *file;
    int fd;                 /* file descriptor of `file` */
    prefix_extent *written; /* [n_written]: written ranges; the rest are holes */
    size_t n_written, bytes;
    /* on disk if `disk` is not 0 */
    session_file *read; /* open while in use */
    size_t disk;
    bool present;  /* found by the last scan of the folder */
    bool checked;  /* this process wrote the rows or compared their checksums */
    bool to_write; /* waiting to be written to disk */
    uint64_t used; /* time of last use in nanoseconds, strictly increasing */
    bool served;   /* used at least once */
    bool dropped;  /* no longer found by lookups; freed once unused */
    int users;     /* number of requests that use it, plus 1 while it is written */
};

struct prefix_store {
    prefix_options o;
    prefix_disk *disk; /* NULL: none */
    pthread_t writer;
    pthread_mutex_t lock; /* protects all later fields, and entries except their files */
    pthread_cond_t work, written;
    bool stopping;
    prefix_counts counts;
    prefix_entry *list;
    uint64_t clock;
};

/* ---- entries ---- */

static uint64_t now(prefix_store *p)
{
    uint64_t ns = (uint64_t)clock_real_ns();
    p->clock = ns > p->clock ? ns : p->clock + 1;
    return p->clock;
}

static prefix_name name_of(const prefix_entry *x)
{
    return (prefix_name){x->key, x->ids, x->n};
}

static status entry_new(prefix_entry **out, const prefix_name *name, err *e)
{
    prefix_entry *x;
    *out = NULL;
    TRY(MEM_NEW(&x, 1, e));
    status st = MEM_NEW(&x->ids, name->n, e);
    if (st != ST_OK) {
        mem_free(x);
        return st;
    }
    memcpy(x->key, name->key, sizeof x->key);
    memcpy(x->ids, name->ids, name->n * sizeof *x->ids);
    x->n = name->n;
    prefix_disk_name(x->file_name, name);
    *out = x;
    return ST_OK;
}

static void entry_free(prefix_entry *x)
{
    session_file_close(x->file);
    session_file_close(x->read);
    mem_free(x->written);
    mem_free(x->ids);
    mem_free(x);
}

static void drop_memory(prefix_store *p, prefix_entry *x)
{
    session_file_close(x->file);
    x->file = NULL;
    p->counts.bytes -= x->bytes;
    x->bytes = 0;
}

static void drop_disk(prefix_store *p, prefix_entry *x, const char *why)
{
    const prefix_name name = name_of(x);
    if (x->disk) prefix_disk_remove(p->disk, &name, why);
    p->counts.disk -= x->disk;
    x->disk = 0;
}

static void insert(prefix_store *p, prefix_entry *x)
{
    x->next = p->list;
    p->list = x;
    p->counts.entries++;
    p->counts.bytes += x->bytes;
    p->counts.disk += x->disk;
}

/* Frees unused entries that are dropped or neither in memory nor on disk. */
static void sweep(prefix_store *p)
{
    for (prefix_entry **at = &p->list; *at;) {
        prefix_entry *x = *at;
        if (x->users > 0 || (!x->dropped && (x->bytes || x->disk))) {
            at = &x->next;
            continue;
        }
        *at = x->next;
        p->counts.entries--;
        drop_memory(p, x);
        drop_disk(p, x, NULL);
        entry_free(x);
    }
}

static size_t same_ids(const int32_t *a, const int32_t *b, size_t n)
{
    size_t k = 0;
    while (k < n && a[k] == b[k]) k++;
    return k;
}

/* True if x begins with y. */
static bool begins_with(const prefix_entry *x, const prefix_entry *y)
{
    return x->n >= y->n && strcmp(x->key, y->key) == 0 && memcmp(x->ids, y->ids, y->n * sizeof *y->ids) == 0;
}

/* ---- eviction ---- */

static bool has_longer(const prefix_store *p, const prefix_entry *x)
{
    for (const prefix_entry *y = p->list; y; y = y->next)
        if (y != x && !y->dropped && begins_with(y, x)) return true;
    return false;
}

static bool evict_before(const prefix_entry *a, const prefix_entry *b)
{
    return a->served != b->served ? b->served : a->used < b->used;
}

/* Returns the next entry to evict: of the unused ones in memory, or of those on disk. NULL: none. */
static prefix_entry *next_to_evict(const prefix_store *p, bool memory)
{
    prefix_entry *worst = NULL;
    for (prefix_entry *x = p->list; x; x = x->next) {
        bool may = memory ? x->bytes && x->users == 0 : x->disk != 0;
        if (may && !x->dropped && (!worst || evict_before(x, worst)) && !has_longer(p, x)) worst = x;
    }
    return worst;
}

static size_t in_memory(const prefix_store *p)
{
    size_t n = 0;
    for (const prefix_entry *x = p->list; x; x = x->next) n += x->bytes > 0;
    return n;
}

static bool shrink(prefix_store *p, size_t bytes)
{
    prefix_entry *x;
    size_t used = 0;
    for (x = p->list; x; x = x->next) used += x->users > 0 ? x->bytes : 0;
    if (used > bytes) return false;
    while ((p->counts.bytes > bytes || in_memory(p) > MOST_IN_MEMORY) && (x = next_to_evict(p, true))) {
        drop_memory(p, x);
        sweep(p);
    }
    return p->counts.bytes <= bytes;
}

static void shrink_disk(prefix_store *p)
{
    for (prefix_entry *x; p->counts.disk > p->o.disk && (x = next_to_evict(p, false));) {
        drop_disk(p, x, NULL);
        sweep(p);
    }
}

bool prefix_shrink(prefix_store *p, size_t bytes)
{
    pthread_mutex_lock(&p->lock);
    bool fits = shrink(p, bytes);
    pthread_mutex_unlock(&p->lock);
    return fits;
}

/* ---- files in memory ---- */

static size_t bytes_of(int fd)
{
    struct stat s;
    return fstat(fd, &s) == 0 ? (size_t)s.st_blocks * 512 : 0;
}

/* Lists the written ranges of the file; one range for all of it if the system does not report holes. */
static status find_written(prefix_entry *x, err *e)
{
    size_t cap = 0;
    for (off_t at = 0, end; (at = lseek(x->fd, at, SEEK_DATA)) >= 0; at = end) {
        if ((end = lseek(x->fd, at, SEEK_HOLE)) < 0) break;
        TRY(MEM_ROOM(&x->written, &cap, x->n_written + 1, e));
        x->written[x->n_written++] = (prefix_extent){at, end};
    }
    struct stat s;
    if (x->n_written > 0 || fstat(x->fd, &s) != 0) return ST_OK;
    TRY(MEM_ROOM(&x->written, &cap, 1, e));
    x->written[x->n_written++] = (prefix_extent){0, s.st_size};
    return ST_OK;
}

/* Releases pages of holes. Access to a mapped hole allocates a page of zeros. */
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
    TRY(session_keep(&x->file, s, &notes, e));
    x->fd = session_file_fd(x->file);
    x->bytes = bytes_of(x->fd);
    return find_written(x, e);
}

/* ---- disk ---- */

/* Updates an entry that another process used or wrote again. */
static bool has_found(void *ctx, const char *file, size_t bytes, uint64_t used)
{
    prefix_store *p = ctx;
    for (prefix_entry *x = p->list; x; x = x->next) {
        if (strcmp(x->file_name, file) != 0) continue;
        x->present = true;
        if (used > x->used) x->used = used;
        if (x->disk == 0 && !x->to_write && !x->dropped) {
            x->disk = bytes;
            p->counts.disk += bytes;
        }
        return true;
    }
    return false;
}

static bool add_found(void *ctx, const prefix_name *name, size_t bytes, uint64_t used)
{
    prefix_store *p = ctx;
    prefix_entry *x;
    err e = {0};
    if (entry_new(&x, name, &e) != ST_OK) return false;
    x->disk = bytes;
    x->present = true;
    x->used = used;
    if (used > p->clock) p->clock = used;
    insert(p, x);
    return true;
}

/* Applies changes that other processes made to the folder. Called with the lock held. */
static void rescan(prefix_store *p)
{
    const prefix_found found = {has_found, add_found, p};
    if (!p->disk) return;
    for (prefix_entry *x = p->list; x; x = x->next) x->present = false;
    if (!prefix_disk_scan(p->disk, &found)) return;
    for (prefix_entry *x = p->list; x; x = x->next) {
        if (x->present || x->disk == 0) continue;
        p->counts.disk -= x->disk;
        x->disk = 0;
    }
    sweep(p);
}

static prefix_entry *next_to_write(const prefix_store *p)
{
    for (prefix_entry *x = p->list; x; x = x->next)
        if (x->to_write) return x;
    return NULL;
}

/* Writes an entry to disk. Called with the lock held, which is released during the write. */
static void write_one(prefix_store *p, prefix_entry *x)
{
    const prefix_name name = name_of(x);
    size_t bytes = 0;
    err e = {0};
    if (!x->dropped) {
        pthread_mutex_unlock(&p->lock);
        status st = prefix_disk_write(p->disk, &name, x->fd, x->written, x->n_written, &bytes, &e);
        pthread_mutex_lock(&p->lock);
        if (st != ST_OK) prefix_log_line(&p->o.log, "%s", e.msg);
        else prefix_disk_touch(p->disk, &name, x->used);
    }
    x->disk = bytes;
    p->counts.disk += bytes;
    x->checked = true;
    x->to_write = false;
    x->users--;
    sweep(p);
    rescan(p);
    shrink_disk(p);
    pthread_cond_signal(&p->written);
}

static void *write_all(void *arg)
{
    prefix_store *p = arg;
    pthread_mutex_lock(&p->lock);
    for (;;) {
        prefix_entry *x = next_to_write(p);
        if (x) write_one(p, x);
        else if (p->stopping) break;
        else pthread_cond_wait(&p->work, &p->lock);
    }
    pthread_mutex_unlock(&p->lock);
    return NULL;
}

static status open_disk(prefix_store *p, err *e)
{
    const prefix_found found = {has_found, add_found, p};
    if (!p->o.dir) return ST_OK;
    TRY(prefix_disk_open(&p->disk, p->o.dir, &p->o.log, &found, e));
    shrink_disk(p);
    if (pthread_create(&p->writer, NULL, write_all, p) == 0) return ST_OK;
    prefix_disk_close(p->disk);
    p->disk = NULL;
    return err_set(e, ST_NOMEM, "cannot create the writer thread of the prefix store");
}

/* ---- the store ---- */

status prefix_open(prefix_store **out, const prefix_options *o, err *e)
{
    prefix_store *p;
    *out = NULL;
    TRY(MEM_NEW(&p, 1, e));
    p->o = *o;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->work, NULL);
    pthread_cond_init(&p->written, NULL);
    status st = open_disk(p, e);
    if (st != ST_OK) prefix_close(p);
    else *out = p;
    return st;
}

void prefix_close(prefix_store *p)
{
    if (!p) return;
    pthread_mutex_lock(&p->lock);
    p->stopping = true;
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
    if (p->disk) pthread_join(p->writer, NULL);
    for (prefix_entry *x; (x = p->list);) {
        p->list = x->next;
        entry_free(x);
    }
    prefix_disk_close(p->disk);
    pthread_cond_destroy(&p->work);
    pthread_cond_destroy(&p->written);
    pthread_mutex_destroy(&p->lock);
    mem_free(p);
}

/* Returns the number of a prompt's tokens for which an entry can be used. */
static size_t serves(const prefix_store *p, const prefix_entry *x, const prefix_prompt *of)
{
    if (x->dropped || strcmp(x->key, of->key) != 0) return 0;
    size_t n = same_ids(x->ids, of->ids, x->n < of->n ? x->n : of->n);
    if (!of->any) return n == x->n ? n : 0;
    return n / p->o.chunk * p->o.chunk;
}

prefix_entry *prefix_find(prefix_store *p, const prefix_prompt *of, size_t *n_cached)
{
    prefix_entry *best = NULL;
    *n_cached = 0;
    pthread_mutex_lock(&p->lock);
    rescan(p);
    for (prefix_entry *x = p->list; x; x = x->next) {
        size_t n = serves(p, x, of);
        if (n > *n_cached) best = x, *n_cached = n;
    }
    if (best) best->users++;
    pthread_mutex_unlock(&p->lock);
    return best;
}

void prefix_release(prefix_store *p, prefix_entry *x)
{
    pthread_mutex_lock(&p->lock);
    if (--x->users == 0) {
        if (x->bytes) punch_holes(x);
        session_file_close(x->read);
        x->read = NULL;
    }
    sweep(p);
    pthread_mutex_unlock(&p->lock);
}

static status load(prefix_store *p, prefix_entry *x, session *s, size_t n, err *e)
{
    const prefix_name name = name_of(x);
    session_notes notes;
    if (!x->bytes && !x->read) {
        TRY(prefix_disk_read(p->disk, &name, &x->read, e));
        if (x->checked) session_file_trust(x->read);
    }
    session_file *f = x->bytes ? x->file : x->read;
    session_file_is_prompt(f);
    TRY(session_load(s, f, &notes, e));
    return n < x->n ? session_rewind(s, (int64_t)n, e) : ST_OK;
}

status prefix_load(prefix_store *p, prefix_entry *x, session *s, size_t n, err *e)
{
    const prefix_name name = name_of(x);
    status st = load(p, x, s, n, e);
    if (st != ST_OK) session_reset(s);
    pthread_mutex_lock(&p->lock);
    if (st == ST_OK) {
        x->used = now(p);
        x->served = x->checked = true;
        if (x->disk) prefix_disk_touch(p->disk, &name, x->used);
    } else {
        x->dropped = true;
        drop_disk(p, x, e->msg);
    }
    pthread_mutex_unlock(&p->lock);
    return st;
}

/* Drops entries that are prefixes of the new entry, which inherits their `served`. For entries that can be used in
 * part. */
static void replace(prefix_store *p, prefix_entry *x)
{
    for (prefix_entry *y = p->list; y; y = y->next) {
        if (y == x || y->dropped || !begins_with(x, y)) continue;
        x->served |= y->served;
        y->dropped = true;
    }
    sweep(p);
}

/* Adds an entry, whose size is now known and may exceed the estimate. Evicts others, or else the entry itself. */
static void add(prefix_store *p, prefix_entry *x, bool any, size_t memory)
{
    pthread_mutex_lock(&p->lock);
    x->used = now(p);
    x->users = 1;
    insert(p, x);
    if (any) replace(p, x);
    bool fits = shrink(p, memory);
    x->to_write = p->disk != NULL; /* counted as a user until written */
    if (!x->to_write) x->users = 0;
    if (!fits) (void)shrink(p, memory);
    pthread_cond_signal(&p->work);
    pthread_mutex_unlock(&p->lock);
}

status prefix_keep(prefix_store *p, const prefix_prompt *of, const session *s, size_t memory, err *e)
{
    prefix_entry *x;
    const prefix_name name = {of->key, of->ids, of->n};
    attn_bytes held = attn_seq_held(session_attn(s));
    size_t need = held.kv + held.index;
    if (memory > p->o.memory) memory = p->o.memory;
    if (need > memory || !prefix_shrink(p, memory - need))
        return err_set(e, ST_NOMEM, "no room for a prompt of %.1f MB within the %.1f MB for prompts",
                       (double)need / 1e6, (double)memory / 1e6);
    TRY(entry_new(&x, &name, e));
    status st = fill(x, of, s, e);
    if (st != ST_OK) entry_free(x);
    else add(p, x, of->any, memory);
    return st;
}

void prefix_flush(prefix_store *p)
{
    pthread_mutex_lock(&p->lock);
    while (next_to_write(p)) pthread_cond_wait(&p->written, &p->lock);
    pthread_mutex_unlock(&p->lock);
}

prefix_counts prefix_count(prefix_store *p)
{
    pthread_mutex_lock(&p->lock);
    prefix_counts c = p->counts;
    pthread_mutex_unlock(&p->lock);
    return c;
}
