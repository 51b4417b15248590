/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "attention/tier.h"

#include "attention/store_impl.h"

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
    if (disk) t->place = KV_DISK;
    else if (host) t->place = KV_HOST;
    else if (strcmp(text, "device") != 0)
        return err_set(e, ST_USAGE,
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
        if (host) return err_set(e, ST_USAGE, "--kv-tier: '%.60s' behind 'host:', expected cache=SIZE or window=N", text);
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

const char *kv_place_name(kv_place p)
{
    static const char *const names[] = {[KV_DEVICE] = "device", [KV_HOST] = "host", [KV_DISK] = "disk"};
    return names[p];
}

/* ---- what stays in memory ---- */

void attn_tier_regions(attn_tier *t, const attn_spec *s)
{
    t->first = t->newest = 0;
    if (s->method->always) s->method->always(s, &t->first, &t->newest);
    if (t->newest < s->tier.window) t->newest = s->tier.window;
    t->flush = s->tier.window / 2 > TIER_BLOCK ? s->tier.window / 2 : TIER_BLOCK;
}

status attn_tier_open(attn_tier *t, const attn_spec *s, const attn_shape *shape, backend *be, err *e)
{
    size_t n = 0;
    for (int l = 0; l < shape->n_layers; l++) n += !attn_is_dense(s, shape, l);
    attn_tier_regions(t, s);
    if (n == 0) return ST_OK;
    const tier_options o = {kv_tier_dir(&s->tier), s->tier.cache / n, (size_t)shape->n_kv_heads};
    return be->ops->tier->open(be, &t->t, &o, e);
}

/* In a prompt one layer at a time is whole in memory, and what its chunk brings is in all of them. */
void attn_tier_plan(attn_bytes *part, size_t *disk, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                    int n)
{
    attn_tier t;
    attn_tier_regions(&t, s);
    const kv_format *f = &s->kv;
    size_t exact = 2 * (size_t)(shape->n_kv_heads * shape->head_dim) * dtype_size(f->type);
    size_t layer = part->kv / (size_t)n, blocks = 2 * ((size_t)lim->n_tokens / TIER_BLOCK + 1) * (size_t)shape->n_kv_heads;
    int64_t rows = t.first + t.newest + t.flush + lim->chunk + 4 * TIER_BLOCK;
    /* Codes go as soon as there are blocks of them; what is not yet coded stays. */
    if (f->kind != KV_EXACT) rows = 3 * f->residual + 4 * f->group + f->sink + t.flush + lim->chunk;
    size_t stays = (size_t)rows * exact < layer ? (size_t)rows * exact : layer;
    size_t all = part->kv, most = (size_t)n * stays + layer;
    *disk += all;
    part->kv = s->tier.cache < all && most < all - s->tier.cache ? most + s->tier.cache : all;
    part->scratch += (size_t)n * blocks * TIER_NOTE;
}

/* ---- what the device holds of the host's rows ---- */

/* The largest power of two that is at most n; 0: none is. */
static int64_t power_below(int64_t n)
{
    int64_t p = n > 0;
    while (p > 0 && p <= n / 2) p *= 2;
    return p;
}

static int count_of(const bool *layers, int n_layers)
{
    int n = 0;
    for (int l = 0; l < n_layers; l++) n += layers[l];
    return n;
}

near_places attn_near_places(const attn_spec *s, const attn_shape *shape, int64_t cap, const bool *layers)
{
    attn_tier t;
    near_places p;
    size_t row = 2 * (size_t)(shape->n_kv_heads * shape->head_dim) * dtype_size(s->kv.type);
    size_t slots = s->tier.cache / (size_t)count_of(layers, shape->n_layers) / row;
    attn_tier_regions(&t, s);
    p.first = t.first < cap ? t.first : cap;
    int64_t rest = cap - p.first, newest = t.newest < rest ? t.newest : rest;
    /* All that is always attended has its place: rounded up, and more than there are slots need none. */
    p.window = newest > 0 ? 2 * power_below(newest - 1) : 0;
    if (newest == 1) p.window = 1;
    p.slots = power_below(slots < (size_t)rest ? (int64_t)slots : rest);
    return p;
}

void attn_host_plan(attn_bytes *part, size_t *host, const attn_spec *s, const attn_shape *shape, const attn_limits *lim,
                    const bool *layers)
{
    const kv_format *f = &s->kv;
    size_t row = 2 * (size_t)(shape->n_kv_heads * shape->head_dim) * dtype_size(f->type), near = 0;
    size_t n = (size_t)count_of(layers, shape->n_layers), all = part->kv;
    *host += all;
    part->kv = 0;
    if (!f->at_once) return;
    if (kv_exact_near(f)) {
        near = n * (size_t)kv_exact_rows(f, lim->n_tokens) * row;
        *host -= near;
    } else if (!kv_has_codes(f)) {
        near_places p = attn_near_places(s, shape, lim->n_tokens, layers);
        near = n * (size_t)(p.first + p.window + p.slots) * row;
        part->scratch += n * (size_t)(p.window + shape->n_kv_heads * p.slots) * sizeof(int32_t);
        part->scratch += (size_t)(shape->n_kv_heads * p.slots) * sizeof(int32_t);
    }
    part->kv = near;
}
