/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/method.h"
#include "attention/store_impl.h"
#include "kernels/base/mem.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { WINDOW = 256 };
#define CACHE ((size_t)512 << 20)

/* ---- as users write it ---- */

/* A number with k, M or G behind it, up to `end`. */
static bool read_size(uint64_t *out, const char *text, const char *end)
{
    char *stop;
    if (text == end || *text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long v = strtoull(text, &stop, 10);
    int shift = *stop == 'k' || *stop == 'K' ? 10 : *stop == 'm' || *stop == 'M' ? 20 : *stop == 'G' ? 30 : 0;
    if (shift) stop++;
    if (stop != end || errno || v > (UINT64_MAX >> 1) >> shift) return false;
    *out = (uint64_t)v << shift;
    return true;
}

/* The word at `text` up to `end` as key=value; 0: it is none, -1: it has no such value. */
static int read_key(kv_tier *t, const char *text, const char *end)
{
    const char *value = memchr(text, '=', (size_t)(end - text));
    uint64_t v;
    if (!value) return 0;
    size_t n = (size_t)(value++ - text);
    bool cache = n == 5 && memcmp(text, "cache", n) == 0, window = n == 6 && memcmp(text, "window", n) == 0;
    if (!cache && !window) return 0;
    if (!read_size(&v, value, end) || (window && v > (uint64_t)1 << 40)) return -1;
    if (cache) t->cache = (size_t)v;
    else t->window = (int64_t)v;
    return 1;
}

status kv_tier_parse(kv_tier *t, const char *text, err *e)
{
    *t = (kv_tier){.window = WINDOW, .cache = CACHE};
    size_t n = strcspn(text, ":");
    bool disk = n == 4 && memcmp(text, "disk", n) == 0, host = n == 4 && memcmp(text, "host", n) == 0;
    if (disk) t->kind = KV_DISK;
    else if (host) t->kind = KV_HOST;
    else if (strcmp(text, "device") != 0)
        return err_set(
            e, ST_USAGE,
            "--kv-tier: '%.60s' is not one of: device host[:cache=SIZE][:window=N] disk[:cache=SIZE][:window=N][:DIR]",
            text);
    for (text += n; *text == ':';) {
        text++;
        const char *end = text + strcspn(text, ":");
        int is = read_key(t, text, end);
        if (is < 0) return err_set(e, ST_USAGE, "--kv-tier: '%.60s': expected a number such as 512M or 256", text);
        if (is > 0) {
            text = end;
            continue;
        }
        if (host)
            return err_set(e, ST_USAGE, "--kv-tier: '%.60s' behind 'host:', expected cache=SIZE or window=N", text);
        if (!*text || strlen(text) >= sizeof t->dir)
            return err_set(e, ST_USAGE, "--kv-tier: the folder behind 'disk:' is %s", *text ? "too long" : "missing");
        strcpy(t->dir, text);
        break;
    }
    return ST_OK;
}

const char *kv_tier_dir(const kv_tier *t)
{
    const char *tmp = getenv("TMPDIR");
    if (t->dir[0]) return t->dir;
    return tmp && *tmp ? tmp : ".";
}

const char *kv_tier_name(kv_tier_kind p)
{
    static const char *const names[] = {[KV_DEVICE] = "device", [KV_HOST] = "host", [KV_DISK] = "disk"};
    return names[p];
}

/* ---- a tier ---- */

int row_tier_count(const bool *layers, int n_layers)
{
    int n = 0;
    for (int l = 0; l < n_layers; l++) n += layers[l];
    return n;
}

void row_tier_regions(row_tier *p, const attn_spec *s)
{
    attn_regions r = attn_regions_of(s);
    p->first = r.first;
    p->newest = max64(r.newest, s->tier.window);
    p->flush = max64(s->tier.window / 2, TIER_PAGE);
}

status row_tier_open(row_tier **out, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                     const bool *layers, backend *be, err *e)
{
    row_tier *p;
    int n = row_tier_count(layers, shape->n_layers);
    *out = NULL;
    if (s->tier.kind == KV_DEVICE || n == 0) return ST_OK;
    TRY(MEM_NEW(&p, 1, e));
    *p = (row_tier){.be = be, .where = s->tier, .n_layers = shape->n_layers};
    row_tier_regions(p, s);
    status st = ST_OK;
    if (s->tier.kind == KV_DISK) {
        const tier_options o = {kv_tier_dir(&s->tier), s->tier.cache / (size_t)n, (size_t)shape->n_kv_heads};
        st = be->ops->tier->open(be, &p->files, &o, e);
    } else if (be->ops->host->bring) {
        st = host_open(p, s, shape, lim, layers, e);
    }
    if (st != ST_OK) row_tier_close(p);
    else *out = p;
    return st;
}

void row_tier_close(row_tier *p)
{
    if (!p) return;
    if (p->files) p->be->ops->tier->close(p->be, p->files);
    host_close(p);
    mem_free(p);
}

void row_tier_plan(attn_bytes *part, size_t *slow, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                   const bool *layers)
{
    row_tier p;
    int n = row_tier_count(layers, shape->n_layers);
    row_tier_regions(&p, s);
    if (s->tier.kind == KV_DISK) disk_plan(part, slow, &p, s, shape, lim, n);
    if (s->tier.kind == KV_HOST) host_plan(part, slow, s, shape, lim, layers);
}

/* Whether a buffer lies in the host's memory. */
static bool is_far(const row_tier *p, bool exact)
{
    return p && p->where.kind == KV_HOST && !(exact && p->exact_near && p->near);
}

status row_tier_alloc(row_tier *p, backend *be, buf *out, size_t bytes, bool exact, const char *what, err *e)
{
    return (is_far(p, exact) ? be->ops->host->alloc : be->ops->alloc)(be, out, bytes, what, e);
}

void row_tier_free(row_tier *p, backend *be, buf b, size_t bytes, bool exact)
{
    (is_far(p, exact) ? be->ops->host->free : be->ops->free)(be, b, bytes);
}

status row_tier_add(row_tier *p, kv_rows *r, int layer, const kv_format *f, err *e)
{
    if (p && p->near) r->near = &p->near[layer];
    return p && p->files ? disk_add(p, r, layer, f, e) : ST_OK;
}

void row_tier_before_read(backend *be, const attn_job *jobs, size_t n, bool decode)
{
    for (size_t i = 0; i < n; i++) {
        if (jobs[i].rows.tier) be->ops->tier->need(be, &jobs[i]);
        if (jobs[i].rows.near && decode) be->ops->host->bring(be, &jobs[i]);
    }
}

tier_counts row_tier_counts(const row_tier *p)
{
    tier_counts c = {0};
    if (p && p->files) p->be->ops->tier->counts(p->files, &c);
    return c;
}

buf row_tier_moved(const row_tier *p)
{
    return p ? p->moved : (buf){NULL};
}

size_t row_tier_far_bytes(const kv_format *f, const attn_shape *shape, const attn_limits *lim)
{
    size_t d = (size_t)shape->head_dim, heads = (size_t)shape->n_kv_heads, sum = 0;
    int64_t group = kv_code_group(f);
    if (!kv_has_codes(f)) return kv_exact_bytes(f, heads, d, 1);
    for (int h = 0; h < KV_HALVES; h++) sum += kv_half_bytes(f, d, h, group, group) / (size_t)group;
    return heads * sum + (lim->prompt > 0 ? 0 : kv_exact_bytes(f, heads, d, 1));
}
