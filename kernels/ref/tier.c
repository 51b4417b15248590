/* SPDX-License-Identifier: MIT */
/* Residency of row pages, for backends that use host memory. */
#include "config.h"

#include "kernels/ref/ref.h"

#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/ref/tier_file.h"

enum {
    DEPTH = 128,     /* reads in flight */
    JOBS = 1024,     /* jobs of one batch */
    RUN = 1 << 20,   /* bytes of one staged read or write */
    STAGE = 8 * RUN, /* bytes of one batch */
    GAP = 16384,     /* bytes of unrequested pages read along if that saves a read */
    GONE = 4096,     /* pages whose memory is released together */
    NONE = -1
};

/* A read of missing[first] to missing[first + n - 1], which are close together in the file. stage NULL: a single page
 * that is read directly into its planes. */
typedef struct {
    size_t first, n;
    unsigned char *stage;
} piece;

struct tier {
    tier_options o;
    reader *rd;
    unsigned char *stage;
    read_job *job;  /* [JOBS] */
    piece *piece;   /* [JOBS] */
    uint64_t *gone; /* [GONE] area, head and page of each */
    size_t n_gone;
    tier_layer *layers;
    tier_counts count;
};

typedef struct {
    tier_area a;
    size_t page;    /* bytes of a page in the file */
    uint64_t at;    /* file offset of the first page */
    int32_t id;     /* id of page 0 of head 0; the other heads follow, then the next page */
    int64_t n_file; /* pages in the file */
    bool aligned;   /* a single page may be read past the page cache directly into its planes */
} area;

/* Pages of the file that are in memory form a list, most recently used first. */
struct tier_layer {
    tier *t;
    tier_layer *next;
    tier_file file;
    area area[TIER_AREAS];
    int32_t n_ids, first, last;
    size_t used; /* bytes of the pages in the list */
    uint32_t now;
    void *notes;
    uint32_t *stamp;                   /* [n_ids] last call that requested the page; 0: absent, or not in the file */
    int32_t *before, *after, *missing; /* [n_ids] */
    size_t n_missing;
};

_Static_assert(TIER_NOTE == sizeof(uint32_t) + 3 * sizeof(int32_t), "planned and allocated bytes must be equal");

static area *area_of(tier_layer *l, int32_t id)
{
    return &l->area[id >= l->area[TIER_CODES].id];
}

static size_t heads_of(const tier_layer *l)
{
    return l->t->o.n_heads;
}

/* ---- opening and closing ---- */

void ref_tier_close(backend *be, tier *t)
{
    if (!t) return;
    for (tier_layer *l = t->layers, *next; l; l = next) {
        next = l->next;
        tier_file_close(&l->file);
        if (l->notes) mem_unmap(l->notes, (size_t)l->n_ids * TIER_NOTE);
        mem_free(l);
    }
    reader_close(t->rd);
    mem_unmap(t->stage, STAGE);
    mem_free(t->job);
    mem_free(t->piece);
    mem_free(t->gone);
    mem_free(t);
}

status ref_tier_open(backend *be, tier **out, const tier_options *o, err *e)
{
    tier *t;
    *out = NULL;
    TRY(MEM_NEW(&t, 1, e));
    t->o = *o;
    status st = reader_open(&t->rd, DEPTH, e);
    if (st == ST_OK) st = mem_map_anon((void **)&t->stage, STAGE, "--kv-tier: staging", e);
    if (st == ST_OK) st = MEM_NEW(&t->job, JOBS, e);
    if (st == ST_OK) st = MEM_NEW(&t->piece, JOBS, e);
    if (st == ST_OK) st = MEM_NEW(&t->gone, GONE, e);
    if (st != ST_OK) ref_tier_close(be, t);
    else *out = t;
    return st;
}

static bool is_aligned(const area *a)
{
    enum { ALIGN = 512 };
    bool fits = true;
    for (int p = 0; p < a->a.n_planes; p++) {
        const tier_plane *x = &a->a.plane[p];
        fits &= (uintptr_t)x->at.p % ALIGN == 0 && x->stride % ALIGN == 0 && x->bytes % ALIGN == 0;
    }
    return fits;
}

static status lay_out(tier_layer *l, const tier_area in[TIER_AREAS], bool *direct, err *e)
{
    int64_t ids = 0;
    uint64_t at = 0;
    *direct = true;
    for (int i = 0; i < TIER_AREAS; i++) {
        area *a = &l->area[i];
        *a = (area){.a = in[i], .at = at, .id = (int32_t)ids};
        for (int p = 0; p < in[i].n_planes; p++) {
            size_t span = (heads_of(l) - 1) * in[i].plane[p].stride + (size_t)in[i].n_pages * in[i].plane[p].bytes;
            mem_small_pages(in[i].plane[p].at.p, span);
            a->page += in[i].plane[p].bytes;
        }
        *direct &= a->page % TIER_SECTOR == 0;
        a->aligned = is_aligned(a);
        at += (in[i].n_pages * heads_of(l) * a->page + TIER_SECTOR - 1) / TIER_SECTOR * TIER_SECTOR;
        ids += in[i].n_planes ? in[i].n_pages * (int64_t)heads_of(l) : 0;
        if (ids > INT32_MAX)
            return err_set(e, ST_UNSUPPORTED, "--kv-tier: too many blocks in a layer; reduce the context");
    }
    l->n_ids = (int32_t)ids;
    l->first = l->last = NONE;
    return ST_OK;
}

status ref_tier_add(backend *be, tier_layer **out, tier *t, int layer, const tier_area in[TIER_AREAS], err *e)
{
    tier_layer *l;
    bool direct;
    *out = NULL;
    TRY(MEM_NEW(&l, 1, e));
    l->t = t;
    l->file.fd = -1;
    l->next = t->layers;
    t->layers = l; /* the tier frees it */
    TRY(lay_out(l, in, &direct, e));
    size_t n = (size_t)l->n_ids;
    TRY(mem_map_anon(&l->notes, n * TIER_NOTE, "--kv-tier: list of blocks", e));
    l->stamp = l->notes;
    l->before = (int32_t *)l->notes + n;
    l->after = l->before + n;
    l->missing = l->after + n;
    TRY(tier_file_open(&l->file, t->o.dir, layer, direct, t->stage, e));
    *out = l;
    return ST_OK;
}

/* ---- the list ---- */

static void unlink_block(tier_layer *l, int32_t id)
{
    int32_t b = l->before[id], a = l->after[id];
    if (b == NONE) l->first = a;
    else l->after[b] = a;
    if (a == NONE) l->last = b;
    else l->before[a] = b;
}

static void link_first(tier_layer *l, int32_t id)
{
    l->before[id] = NONE;
    l->after[id] = l->first;
    if (l->first == NONE) l->last = id;
    else l->before[l->first] = id;
    l->first = id;
}

/* Records that a page of the file is in memory. */
static void enter(tier_layer *l, int32_t id)
{
    tier_counts *c = &l->t->count;
    size_t bytes = area_of(l, id)->page;
    link_first(l, id);
    l->stamp[id] = l->now;
    l->used += bytes;
    c->here += bytes;
    if (c->here > c->most_here) c->most_here = c->here;
}

static void leave(tier_layer *l, int32_t id)
{
    size_t bytes = area_of(l, id)->page;
    unlink_block(l, id);
    l->stamp[id] = 0;
    l->used -= bytes;
    l->t->count.here -= bytes;
}

/* ---- releasing memory ---- */

static bool is_away(const tier_layer *l, const area *a, size_t head, int64_t b)
{
    return b >= a->a.stay && b < a->n_file &&
           l->stamp[a->id + (int32_t)(b * (int64_t)heads_of(l) + (int64_t)head)] == 0;
}

/* Releases pages [b, end) of a head. A system page holds parts of several pages and is released with the last of them,
 * so neighbours up to its ends are checked. */
static void discard(backend *be, const tier_layer *l, const area *a, size_t head, int64_t b, int64_t end)
{
    for (int p = 0; p < a->a.n_planes; p++) {
        const tier_plane *x = &a->a.plane[p];
        int64_t os_page = (int64_t)(4096 / x->bytes) + 1, lo = b, hi = end;
        while (lo > b - os_page && is_away(l, a, head, lo - 1)) lo--;
        while (hi < end + os_page && is_away(l, a, head, hi)) hi++;
        be->ops->discard(be, buf_at(x->at, head * x->stride + (size_t)lo * x->bytes), (size_t)(hi - lo) * x->bytes);
    }
}

enum { GONE_HEAD = 40, GONE_AREA = 62 };

static int by_key(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void flush_gone(backend *be, tier_layer *l)
{
    tier *t = l->t;
    const uint64_t *k = t->gone;
    qsort(t->gone, t->n_gone, sizeof *t->gone, by_key);
    for (size_t i = 0, n; i < t->n_gone; i += n) {
        for (n = 1; i + n < t->n_gone && k[i + n] == k[i] + n;) n++;
        int64_t b = (int64_t)(k[i] & (((uint64_t)1 << GONE_HEAD) - 1));
        size_t head = (size_t)(k[i] >> GONE_HEAD) & (((size_t)1 << (GONE_AREA - GONE_HEAD)) - 1);
        discard(be, l, &l->area[k[i] >> GONE_AREA], head, b, b + (int64_t)n);
    }
    t->n_gone = 0;
}

static void evict(backend *be, tier_layer *l, int32_t id)
{
    tier *t = l->t;
    const area *a = area_of(l, id);
    uint64_t at = (uint64_t)(id - a->id), heads = heads_of(l);
    leave(l, id);
    if (t->n_gone == GONE) flush_gone(be, l);
    t->gone[t->n_gone++] = (uint64_t)(a - l->area) << GONE_AREA | at % heads << GONE_HEAD | at / heads;
}

void ref_tier_trim(backend *be, tier_layer *l)
{
    while (l->used > l->t->o.cache) evict(be, l, l->last);
    flush_gone(be, l);
}

/* ---- writing ---- */

static unsigned char *page_plane(const area *a, size_t head, int64_t b, int plane)
{
    const tier_plane *x = &a->a.plane[plane];
    return x->at.p + head * x->stride + (size_t)b * x->bytes;
}

/* Copies a page from its planes to its layout in the file. */
static void gather(unsigned char *to, const area *a, size_t head, int64_t b)
{
    for (int p = 0; p < a->a.n_planes; to += a->a.plane[p++].bytes)
        memcpy(to, page_plane(a, head, b, p), a->a.plane[p].bytes);
}

static void scatter(const unsigned char *from, const area *a, size_t head, int64_t b)
{
    for (int p = 0; p < a->a.n_planes; from += a->a.plane[p++].bytes)
        memcpy(page_plane(a, head, b, p), from, a->a.plane[p].bytes);
}

static status write_blocks(tier_layer *l, const area *a, int64_t end, err *e)
{
    tier *t = l->t;
    int64_t heads = (int64_t)heads_of(l), i = a->n_file * heads;
    while (i < end * heads) {
        uint64_t at = a->at + (uint64_t)i * a->page;
        size_t n = 0;
        for (; i < end * heads && (n == 0 || n + a->page <= RUN); i++, n += a->page)
            gather(t->stage + n, a, (size_t)(i % heads), i / heads);
        TRY(tier_file_write(&l->file, at, t->stage, n, e));
        t->count.written += n;
    }
    return ST_OK;
}

/* Returns the bytes of the pages [first, end) that may be released. */
static size_t going(const tier_layer *l, const area *a, int64_t first, int64_t end)
{
    if (first < a->a.stay) first = a->a.stay;
    return end > first ? (size_t)(end - first) * heads_of(l) * a->page : 0;
}

void ref_tier_write(backend *be, tier_layer *l, int i, int64_t end)
{
    area *a = &l->area[i];
    int64_t start = clock_ns(), heads = (int64_t)heads_of(l), first = a->n_file;
    if (end > a->a.n_pages) end = a->a.n_pages;
    if (end <= first || be->fault.code || write_blocks(l, a, end, &be->fault) != ST_OK) return;
    a->n_file = end;
    l->now++;
    l->t->count.in_file += going(l, a, first, end);
    for (int64_t b = first > a->a.stay ? first : a->a.stay; b < end; b++)
        for (int64_t h = 0; h < heads; h++) enter(l, a->id + (int32_t)(b * heads + h));
    l->t->count.stall_ns += clock_ns() - start;
}

int64_t ref_tier_written(const tier_layer *l, int i)
{
    return l->area[i].n_file;
}

void ref_tier_forget(backend *be, tier_layer *l, int i, int64_t end)
{
    area *a = &l->area[i];
    int64_t heads = (int64_t)heads_of(l);
    if (end >= a->n_file) return;
    for (int64_t k = end * heads; k < a->n_file * heads; k++)
        if (l->stamp[a->id + (int32_t)k]) leave(l, a->id + (int32_t)k);
    l->t->count.in_file -= going(l, a, end, a->n_file);
    a->n_file = end;
}

/* ---- reading ---- */

/* Requests rows [from, to) of an area and head. */
static void want(tier_layer *l, area *a, int64_t from, int64_t to, size_t head)
{
    int64_t rows = a->a.rows, heads = (int64_t)heads_of(l);
    if (from < a->a.stay * rows) from = a->a.stay * rows;
    if (to > a->n_file * rows) to = a->n_file * rows;
    if (from >= to) return;
    l->t->count.rows += (uint64_t)(to - from);
    for (int64_t b = from / rows; b <= (to - 1) / rows; b++) {
        int32_t id = a->id + (int32_t)(b * heads + (int64_t)head);
        uint32_t stamp = l->stamp[id];
        if (stamp == l->now) continue;
        l->t->count.pages++;
        if (stamp == 0) {
            l->missing[l->n_missing++] = id;
            enter(l, id);
        } else {
            unlink_block(l, id);
            link_first(l, id);
            l->stamp[id] = l->now;
        }
    }
}

/* Requests the slots [from, to) of a head. */
static void want_slots(tier_layer *l, const kv_rows *r, int64_t from, int64_t to, size_t head)
{
    const int32_t *const at[] = {(const int32_t *)(const void *)r->codes.k_at.p,
                                 (const int32_t *)(const void *)r->codes.v_at.p};
    if (!r->codes.bits) {
        want(l, &l->area[TIER_EXACT], from, to, head);
        return;
    }
    for (int64_t s = from; s < to; s++)
        for (int half = 0; half < 2; half++) {
            int64_t row = at[half][s];
            if (half == 1 && row == at[0][s]) break;
            if (row >= 0) want(l, &l->area[TIER_EXACT], row, row + 1, head);
            else want(l, &l->area[TIER_CODES], -1 - row, -row, head);
        }
}

static int by_id(const void *a, const void *b)
{
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* Reads a batch and copies staged pages to their planes. */
static status run_batch(tier_layer *l, size_t n, err *e)
{
    tier *t = l->t;
    size_t heads = heads_of(l);
    TRY(tier_file_read(&l->file, t->rd, t->job, n, e));
    for (size_t i = 0; i < n; i++) {
        const piece *p = &t->piece[i];
        const int32_t *id = l->missing + p->first;
        const area *a = area_of(l, *id);
        t->count.read += (size_t)(id[p->n - 1] - *id + 1) * a->page;
        for (size_t k = 0; p->stage && k < p->n; k++) {
            size_t at = (size_t)(id[k] - a->id);
            scatter(p->stage + (size_t)(id[k] - *id) * a->page, a, at % heads, (int64_t)(at / heads));
        }
    }
    return ST_OK;
}

/* Sets job i of a batch. */
static void set_job(tier_layer *l, size_t i, const piece *p)
{
    int32_t id = l->missing[p->first];
    const area *a = area_of(l, id);
    size_t at = (size_t)(id - a->id), heads = heads_of(l);
    read_job *j = &l->t->job[i];
    unsigned char *stage = p->stage;
    l->t->piece[i] = *p;
    *j = (read_job){.fd = l->file.fd, .at = a->at + at * a->page, .n_to = stage ? 1 : a->a.n_planes};
    j->to[0] = (struct iovec){stage, (size_t)(l->missing[p->first + p->n - 1] - id + 1) * a->page};
    for (int k = 0; !stage && k < a->a.n_planes; k++)
        j->to[k] = (struct iovec){page_plane(a, at % heads, (int64_t)(at / heads), k), a->a.plane[k].bytes};
}

/* Returns how many of the missing pages from `first` on one read covers, and its bytes. */
static size_t one_read(tier_layer *l, size_t first, size_t *bytes)
{
    const int32_t *id = l->missing + first;
    const area *a = area_of(l, *id);
    size_t n = 1;
    *bytes = a->page;
    for (; first + n < l->n_missing && area_of(l, id[n]) == a; n++) {
        size_t gap = (size_t)(id[n] - id[n - 1] - 1) * a->page;
        if (gap > GAP || *bytes + gap + a->page > RUN) break;
        *bytes += gap + a->page;
    }
    return n;
}

/* Reads missing pages in the order of the file. */
static status read_missing(tier_layer *l, err *e)
{
    tier *t = l->t;
    size_t jobs = 0, staged = 0, bytes;
    qsort(l->missing, l->n_missing, sizeof *l->missing, by_id);
    for (size_t i = 0, n; i < l->n_missing; i += n) {
        const area *a = area_of(l, l->missing[i]);
        n = one_read(l, i, &bytes);
        bool placed = n == 1 && a->a.n_planes <= 2 && (a->aligned || !l->file.direct);
        if (placed) bytes = 0;
        if (jobs == JOBS || staged + bytes > STAGE) {
            TRY(run_batch(l, jobs, e));
            jobs = staged = 0;
        }
        set_job(l, jobs++, &(piece){i, n, placed ? NULL : t->stage + staged});
        staged += bytes;
    }
    return jobs ? run_batch(l, jobs, e) : ST_OK;
}

/* Reads all pages requested since `now` advanced. */
static void bring(backend *be, tier_layer *l)
{
    if (l->n_missing == 0) return;
    int64_t start = clock_ns();
    while (l->used > l->t->o.cache && l->stamp[l->last] != l->now) evict(be, l, l->last);
    flush_gone(be, l);
    l->t->count.missed += l->n_missing;
    read_missing(l, &be->fault);
    l->n_missing = 0;
    l->t->count.stall_ns += clock_ns() - start;
}

/* Returns the first entry of a contiguous list that a query sees. */
static int64_t first_seen(const attn_job *j)
{
    if (j->band <= 0 || !j->masked || !j->qpos.p || j->idx.p) return 0;
    int64_t i = *(const int64_t *)(const void *)j->qpos.p - j->band + 1 - j->kpos;
    return i > 0 ? i : 0;
}

void ref_tier_need(backend *be, const attn_job *j)
{
    tier_layer *l = j->rows.tier;
    if (!l || be->fault.code) return;
    size_t heads = heads_of(l);
    l->now++;
    for (size_t list = 0; list < j->n_lists; list++) {
        int64_t from = attn_job_first(j, list), to = from + attn_job_count(j, list);
        const int32_t *idx = (const int32_t *)(const void *)j->idx.p;
        if (idx) idx += list * j->idx_stride;
        size_t h = list * heads / j->n_lists, end = j->n_lists == 1 ? heads : h + 1;
        for (; h < end; h++) {
            if (!idx) want_slots(l, &j->rows, from + first_seen(j), to, h);
            for (int64_t i = from; idx && i < to; i++) want_slots(l, &j->rows, idx[i], (int64_t)idx[i] + 1, h);
        }
    }
    bring(be, l);
}

void ref_tier_span(backend *be, const kv_rows *rows, int64_t from, int64_t to)
{
    tier_layer *l = rows->tier;
    if (!l || be->fault.code) return;
    l->now++;
    for (size_t h = 0; h < heads_of(l); h++) want_slots(l, rows, from, to, h);
    bring(be, l);
}

void ref_tier_counts(const tier *t, tier_counts *out)
{
    *out = t->count;
}

size_t ref_tier_room(backend *be, const char *dir)
{
    struct statvfs s;
    return statvfs(dir, &s) == 0 ? (size_t)s.f_bavail * s.f_frsize : 0;
}
