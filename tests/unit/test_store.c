/* SPDX-License-Identifier: MIT */
/* Stores with codes against a plain simulation of their rules: which tokens are exact, staged or
 * quantized, and the values that come back. Parsing of formats. */
#include "config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "kernels/base/rng.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"
#include "tests/unit/store_oracle.h"

enum { LAYERS = 2, HEADS = 2, MAX_D = 256, MAX_N = ORACLE_N, CHUNK = 64 };

/* Keys and values as they are fed; of a row the first d elements. */
static float fed[KV_HALVES][LAYERS][MAX_N][HEADS][MAX_D];

typedef struct {
    backend *be;
    attn_spec spec;
    attn_shape shape;
    attn_limits lim;
    int64_t length;
    bool layers[LAYERS];
    kv_store *s;
    const kv_format *f;
    size_t d;
    unsigned char fed_as[MAX_N]; /* of each token */
    buf k, v, out;
} rig;

static void rig_close(rig *r)
{
    const backend_ops *o = r->be->ops;
    size_t row = HEADS * r->d * sizeof(float);
    kv_store_free(r->s);
    if (r->k.p) o->free(r->be, r->k, CHUNK * row);
    if (r->v.p) o->free(r->be, r->v, CHUNK * row);
    if (r->out.p) o->free(r->be, r->out, 2 * MAX_N * row);
}

static int64_t longest; /* prompt of rigs to come; 0: any */

static status rig_open(rig *r, backend *be, const char *kv, size_t d, int64_t n_tokens, err *e)
{
    size_t row = HEADS * d * sizeof(float);
    memset(r, 0, sizeof *r);
    r->be = be;
    r->d = d;
    r->shape = (attn_shape){.n_layers = LAYERS, .n_heads = HEADS, .n_kv_heads = HEADS, .head_dim = (int)d};
    r->lim = (attn_limits){.n_tokens = n_tokens, .chunk = CHUNK};
    r->layers[0] = r->layers[1] = true;
    r->f = &r->spec.kv;
    const kv_store_options o = {.be = be,
                                .spec = &r->spec,
                                .shape = &r->shape,
                                .lim = &r->lim,
                                .layers = r->layers,
                                .n_heads = HEADS,
                                .slots = n_tokens};
    TRY(kv_format_parse(&r->spec.kv, kv, "--kv", e));
    r->lim.prompt = longest;
    TRY(kv_store_create(&r->s, &o, e));
    TRY(be->ops->alloc(be, &r->k, CHUNK * row, "k", e));
    TRY(be->ops->alloc(be, &r->v, CHUNK * row, "v", e));
    return be->ops->alloc(be, &r->out, 2 * MAX_N * row, "out", e);
}

static void upload_rows(rig *r, buf to, int half, int layer, int64_t first, size_t n)
{
    size_t row = r->d * sizeof(float);
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < HEADS; h++)
            r->be->ops->upload(r->be, buf_at(to, (i * HEADS + h) * row), fed[half][layer][first + (int64_t)i][h], row);
}

/* One forward of n tokens, in windows of `window` tokens. */
static void forward(rig *r, size_t n, unsigned flags, size_t window)
{
    kv_store_begin(r->s, r->length, (int64_t)n, flags);
    memset(r->fed_as + r->length, flags & ATTN_PROMPT ? FED_PROMPT : FED_STEP, n);
    if (flags & ATTN_PROMPT_END) r->fed_as[r->length + (int64_t)n - 1] = FED_END;
    for (int l = 0; l < LAYERS; l++) {
        for (size_t at = 0; at < n; at += window) {
            size_t rows = n - at < window ? n - at : window;
            const kv_target to = {.pos = r->length + (int64_t)at, .first = r->length + (int64_t)at, .n_lists = 1};
            upload_rows(r, r->k, KV_K, l, r->length + (int64_t)at, rows);
            upload_rows(r, r->v, KV_V, l, r->length + (int64_t)at, rows);
            const kv_write_job j = kv_store_job(r->s, l, to, r->k, r->v, rows);
            r->be->ops->kv_write(r->be, &j, 1);
        }
        kv_store_layer_end(r->s, l);
    }
    kv_store_end(r->s);
    r->length += (int64_t)n;
}

static void step(rig *r)
{
    forward(r, 1, 0, 1);
}

static void prompt(rig *r, int64_t n, int64_t chunk)
{
    for (int64_t done = 0; done < n; done += chunk) {
        int64_t k = n - done < chunk ? n - done : chunk;
        unsigned end = done + k == n ? ATTN_PROMPT_END : 0;
        forward(r, (size_t)k, ATTN_PROMPT | end, (size_t)(chunk % 3 ? k : 2));
    }
}

static void reset(rig *r)
{
    kv_store_reset(r->s);
    r->length = 0;
}

/* ---- comparisons ---- */

static int32_t map_of(rig *r, int half, int64_t token)
{
    const kv_codes *c = &kv_store_rows(r->s, 0)->codes;
    int32_t at;
    r->be->ops->download(r->be, &at, buf_at(half == KV_K ? c->k_at : c->v_at, (size_t)token * sizeof at), sizeof at);
    return at;
}

/* The maps: the right tokens exact, no row twice, groups of codes as simulated. */
static bool same_maps(rig *r, const naive *m)
{
    bool good = true, used[2 * MAX_N] = {0};
    int64_t group = r->f->hf ? 1 : r->f->group;
    for (int half = 0; half < KV_HALVES; half++)
        for (int64_t j = 0; j < m->n; j++) {
            int32_t at = map_of(r, half, j);
            int g = m->group[half][j];
            good &= (at >= 0) == (g < 0);
            if (at >= 0) {
                bool shared = half == KV_V && map_of(r, KV_K, j) == at; /* its own K */
                good &= at < r->lim.n_tokens && (shared || !used[at]);
                used[at] = true;
            } else {
                good &= (half == KV_K ? (-1 - at) / group : -1 - at) == g;
            }
        }
    return good;
}

/* Everything that is stored, fetched as the ops give it, against the simulation. */
static bool same_values(rig *r, const naive *m)
{
    size_t n = (size_t)m->n, half_bytes = MAX_N * HEADS * r->d * sizeof(float);
    kv_rows out = {
        .k = r->out, .v = buf_at(r->out, half_bytes), .type = DT_F32, .n_kv_heads = HEADS, .head_dim = r->d, .cap = n};
    fed_rows rows = {{&fed[KV_K][0][0][0][0], &fed[KV_V][0][0][0][0]}, MAX_N, HEADS, MAX_D, r->d};
    float worst = 0;
    static float got[MAX_N * HEADS * MAX_D];
    for (int l = 0; l < LAYERS; l++) {
        r->be->ops->codes->fetch(r->be, &out, kv_store_rows(r->s, l), 0, m->n, (buf){NULL});
        for (int half = 0; half < KV_HALVES; half++) {
            r->be->ops->download(r->be, got, half ? out.v : out.k, n * HEADS * r->d * sizeof(float));
            for (size_t h = 0; h < HEADS; h++)
                for (size_t j = 0; j < n; j++)
                    for (size_t c = 0; c < r->d; c++) {
                        float want = naive_element(m, r->f, &rows, half, l, (int64_t)j, h, c);
                        float off = fabsf(got[(h * n + j) * r->d + c] - want);
                        if (!(off <= worst)) worst = off;
                    }
        }
    }
    return worst < 1e-5f;
}

static bool same_bytes(rig *r, const naive *m)
{
    size_t d = r->d, exact = d * dtype_size(r->f->type), bits = (size_t)r->f->bits;
    size_t code = (d * bits + 7) / 8, runs = (d + (size_t)r->f->group - 1) / (size_t)r->f->group;
    size_t want = 0;
    for (int half = 0; half < KV_HALVES; half++) {
        for (int64_t j = 0; j < m->n; j++) want += m->group[half][j] < 0 ? exact : code;
        bool by_channel = half == KV_K && !r->f->hf;
        want += (size_t)m->n_groups[half] * 4 * (by_channel ? d : runs);
    }
    return kv_store_bytes(r->s, m->n) == HEADS * want;
}

/* LogQuant's list and staging (methods.md 11.9). */
static bool same_list(const rig *r, const naive *m, const kv_quantized *c)
{
    int64_t w = r->f->residual / 3, n = m->n, deep = w;
    if (r->f->kind != KV_LOGQUANT) return true;
    bool good = c->n_list == m->n_list && c->n_staged == m->n_staged;
    for (int64_t i = 0; i < c->n_list && good; i++) good = c->list[i] == m->list[i];
    for (int64_t i = 0; i < c->n_staged && good; i++) good = c->staged[i] == m->staged[i];
    if (n <= 3 * w) return good;
    /* |A| in [2W, 3W) between two steps, which is [2W+1, 3W] after the next append. */
    good &= c->n_list >= 2 * w && c->n_list < 3 * w && c->list[0] == 0 && c->n_staged < r->f->group;
    for (int64_t i = 1; i < c->n_list; i++) good &= c->list[i] > c->list[i - 1];
    for (int64_t i = 0; i < w; i++) good &= c->list[c->n_list - 1 - i] == n - 1 - i;
    for (int64_t p = 1; p < w; p *= 2) deep += w;
    return good && (c->n_list < 2 || n - c->list[1] <= deep + 2 * w);
}

static bool same_state(rig *r)
{
    naive *m = naive_fed(r->f, r->length, r->fed_as);
    bool good = same_maps(r, m) && same_values(r, m) && same_bytes(r, m) && same_list(r, m, r->s->coded);
    free(m);
    return good;
}

/* ---- checks ---- */

/* Every prompt length, then steps one by one: U3 and the closed forms. */
static void check_lengths(backend *be, const char *kv, size_t d, int64_t n)
{
    err e = {0};
    rig r;
    if (!is_ok(rig_open(&r, be, kv, d, n, &e), &e, "%s, d=%d: created", kv, (int)d)) return;
    bool prompts = true, steps = true;
    for (int64_t t = 0; t <= n; t++) {
        reset(&r);
        prompt(&r, t, 1 + t % 9);
        prompts &= same_state(&r);
        while (r.length < n && r.length < t + 14) {
            step(&r);
            steps &= same_state(&r);
        }
    }
    ok(prompts, "%s, d=%d: state after every prompt of 0..%d tokens", kv, (int)d, (int)n);
    ok(steps, "%s, d=%d: state after the steps that follow", kv, (int)d);
    rig_close(&r);
}

/* Prompts and steps in any mix; a prompt under way changes nothing of what was there. */
static void check_mixed(backend *be, const char *kv, size_t d)
{
    static const int64_t turns[] = {5, 3, 20, 6, 1, 1, 33, 9, 2, 17, 40, 4};
    err e = {0};
    rig r;
    if (!is_ok(rig_open(&r, be, kv, d, MAX_N, &e), &e, "%s: created", kv)) return;
    bool good = true, waits = true;
    for (size_t i = 0; i < sizeof turns / sizeof *turns; i += 2) {
        kv_quantized *c = r.s->coded;
        int64_t before[KV_HALVES] = {c->n_coded[KV_K], c->n_coded[KV_V]};
        if (turns[i] > 1) {
            forward(&r, (size_t)turns[i] - 1, ATTN_PROMPT, 3);
            waits &= c->n_coded[KV_K] == before[KV_K] && c->n_coded[KV_V] == before[KV_V];
            for (int64_t j = r.length - turns[i] + 1; j < r.length; j++)
                waits &= map_of(&r, KV_K, j) >= 0 && map_of(&r, KV_V, j) >= 0;
        }
        forward(&r, 1, ATTN_PROMPT | ATTN_PROMPT_END, 1);
        good &= same_state(&r);
        for (int64_t k = 0; k < turns[i + 1]; k++) {
            step(&r);
            good &= same_state(&r);
        }
    }
    ok(good, "%s: prompts and steps in turns", kv);
    ok(waits, "%s: quantization waits for the end of a prompt", kv);
    rig_close(&r);
}

static size_t taken; /* by rows and codes */
static const backend_ops *below;

static status count_taken(backend *be, buf *out, size_t bytes, const char *what, err *e)
{
    if (strstr(what, "rows") || strstr(what, "codes")) taken += bytes;
    return below->alloc(be, out, bytes, what, e);
}

/* If the longest prompt is known, the store has as many exact rows as it needs, and a memory plan made at once equals
 * the memory used. */
static void check_bounded(backend *be, const char *kv, size_t d)
{
    err e = {0};
    rig r;
    size_t plan[2];
    below = be->ops;
    backend_ops spy = *below;
    spy.alloc = count_taken;
    be->ops = &spy;
    for (int k = 0; k < 2; k++) {
        taken = 0;
        longest = k ? 40 : 0; /* as check_mixed's */
        is_ok(rig_open(&r, be, kv, d, MAX_N, &e), &e, "%s", kv);
        r.lim.at_once = true;
        is_ok(kv_plan_bytes(&plan[k], r.f, &r.shape, &r.lim, HEADS, MAX_N, &e), &e, "planned");
        is_int((long long)taken, (long long)(LAYERS * plan[k]), "%s: as much is taken at once as planned", kv);
        rig_close(&r);
    }
    be->ops = below;
    ok(plan[1] < plan[0], "%s: %zu bytes a layer for prompts of 40 tokens, %zu for any", kv, plan[1], plan[0]);
    check_mixed(be, kv, d);
    longest = 0;
}

/* Exact rows are used again: a long run of steps stays within the first few. */
static void check_reuse(backend *be, const char *kv, int64_t most)
{
    err e = {0};
    rig r;
    if (!is_ok(rig_open(&r, be, kv, 8, MAX_N, &e), &e, "%s: created", kv)) return;
    int32_t top = 0;
    for (int i = 0; i < MAX_N; i++) {
        step(&r);
        for (int half = 0; half < KV_HALVES; half++)
            if (map_of(&r, half, i) > top) top = map_of(&r, half, i);
    }
    ok(top < most && same_state(&r), "%s: %d steps need %d exact rows, at most %d", kv, MAX_N, top + 1, (int)most);
    reset(&r);
    prompt(&r, 90, 64);
    ok(same_state(&r) && kv_store_bytes(r.s, 90) > 0, "%s: reset", kv);
    rig_close(&r);
}

static size_t given;

static void count_given(backend *be, buf b, size_t bytes)
{
    (void)be;
    memset(b.p, 0xff, bytes); /* reading it would show */
    given += bytes;
}

/* At the end of a prompt the exact rows of what was quantized go back, and nobody reads them. */
static void check_given(backend *be, const char *kv)
{
    enum { N = 256 };
    err e = {0};
    rig r;
    const backend_ops *real = be->ops;
    backend_ops spy = *real;
    spy.discard = count_given;
    be->ops = &spy;
    given = 0;
    is_ok(rig_open(&r, be, kv, 32, MAX_N, &e), &e, "%s", kv);
    prompt(&r, N, CHUNK);
    const kv_quantized *c = r.s->coded;
    int64_t exact = 0;
    for (int64_t j = 0; j < N; j++) exact += c->at[KV_K][j] >= 0 || c->at[KV_V][j] >= 0;
    size_t row = (size_t)2 * LAYERS * HEADS * r.d * dtype_size(r.f->type);
    ok(given <= (size_t)(N - exact) * row && given + KV_RUN * row > (size_t)(N - exact) * row,
       "%s: %zu bytes of %d quantized tokens are given back", kv, given, (int)(N - exact));
    rig_close(&r);
    be->ops = real;
}

/* Rewinds 58 tokens to `least` or more, as if there had never been more; to fewer is refused and changes nothing. */
static void check_rewind(backend *be, const char *kv, int64_t least)
{
    enum { FULL = 58 };
    err e = {0};
    rig r;
    bool good = true;
    if (!is_ok(rig_open(&r, be, kv, 8, 120, &e), &e, "%s: created", kv)) return;
    prompt(&r, FULL, 16);
    for (int64_t n = FULL; n > 36; n--) {
        bool back = kv_store_rewind(r.s, n);
        good &= back == (n >= least);
        if (back) r.length = n;
        good &= same_state(&r);
        while (r.length < FULL) step(&r);
        good &= same_state(&r);
    }
    ok(good, "%s: from %d tokens back to %d, and no farther", kv, FULL, (int)least);
    reset(&r);
    prompt(&r, 3, 3);
    ok(kv_store_plain(r.s) && kv_store_rewind(r.s, 1), "%s: nothing quantized, rewind to 1", kv);
    r.length = 1;
    step(&r);
    ok(same_state(&r), "%s: as if the tokens had never been there", kv);
    bool again = true;
    for (int i = 0; i < 200; i++) { /* more often than there are rows */
        again &= kv_store_rewind(r.s, 1);
        r.length = 1;
        step(&r);
    }
    ok(again && same_state(&r), "%s: rows of what is taken back are used again", kv);
    rig_close(&r);
}

/* hf: rewinding before a flush is impossible; the counts of methods.md 11.11. */
static void check_flushes(backend *be)
{
    err e = {0};
    rig r;
    if (!is_ok(rig_open(&r, be, "hf2:r=8", 64, 60, &e), &e, "hf2: created")) return;
    prompt(&r, 10, 4);
    bool counts = r.s->coded->n_coded[KV_K] == 10, back = true;
    for (int64_t m = 1; m <= 16; m++) {
        step(&r);
        counts &= r.s->coded->n_coded[KV_K] == 10 + m / 8 * 8 && r.s->coded->n_coded[KV_V] == 10 + m / 8 * 8;
    }
    ok(counts, "hf2: after a prompt of 10 and m steps 10 + 8 floor(m / 8) tokens are in codes");
    for (int i = 0; i < 5; i++) step(&r);
    back = kv_store_rewind(r.s, 27);
    r.length = 27;
    ok(back && same_state(&r) && !kv_store_rewind(r.s, 25), "hf2: back to what is exact, and no farther");
    for (int i = 0; i < 9; i++) step(&r);
    ok(same_state(&r), "hf2: and on from there");
    rig_close(&r);
}

/* Bytes where only some tokens are left. */
static void check_holes(backend *be, const char *kv, size_t d)
{
    err e = {0};
    rig r;
    rng g = {17};
    if (!is_ok(rig_open(&r, be, kv, d, 100, &e), &e, "%s: created", kv)) return;
    prompt(&r, 90, 64);
    naive *m = naive_fed(r.f, 90, r.fed_as);
    size_t exact = d * dtype_size(r.f->type), code = (d * (size_t)r.f->bits + 7) / 8;
    size_t runs = (d + (size_t)r.f->group - 1) / (size_t)r.f->group;
    bool good = true;
    for (int round = 0; round < 50; round++) {
        int64_t pos[100], n = 0;
        size_t want = 0;
        bool left[MAX_N] = {0};
        for (int64_t j = 0; j < 90; j++) {
            if (rng_float(&g) * 50 > (float)round) continue;
            pos[n++] = j;
            int k = m->group[KV_K][j];
            want += m->group[KV_V][j] < 0 ? exact : code + 4 * runs;
            if (k < 0) want += exact;
            else if (!left[k]) {
                left[k] = true;
                want += (size_t)m->n_member[KV_K][k] * code + 4 * (r.f->hf ? runs : d);
            }
        }
        good &= kv_store_bytes_of(r.s, pos, n) == want;
    }
    ok(good, "%s: a group counts while one of its tokens is left", kv);
    int64_t all[90];
    for (int64_t j = 0; j < 90; j++) all[j] = j;
    is_int((long long)(HEADS * kv_store_bytes_of(r.s, all, 90)), (long long)kv_store_bytes(r.s, 90), "%s: all tokens",
           kv);
    free(m);
    rig_close(&r);
}

static void check_formats(void)
{
    static const struct {
        const char *text, *full, *name;
    } good[] = {
        {"f16", "f16", "f16"},
        {"bf16", "bf16", "bf16"},
        {"f32", "f32", "f32"},
        {"q8", "q8:rot=kv", "q8"},
        {"q4:rot=off", "q4:rot=off", "q4"},
        {"q4:rot=k", "q4:rot=k", "q4"},
        {"kivi2", "kivi2:g=32:r=128:key_residual=block:sink_fp=0:rows=f16", "kivi2"},
        {"kivi4:r=64", "kivi4:g=32:r=64:key_residual=block:sink_fp=0:rows=f16", "kivi4"},
        {"kivi2:g=16:r=48:key_residual=slide:sink_fp=4:rows=bf16",
         "kivi2:g=16:r=48:key_residual=slide:sink_fp=4:rows=bf16", "kivi2"},
        {"logquant", "logquant:g=32:r=128:quant=kivi:rows=f16", "logquant"},
        {"logquant4:r=192:rows=f32", "logquant4:g=32:r=192:quant=kivi:rows=f32", "logquant4"},
        {"logquant:quant=hf_axis0_g64", "logquant:g=64:r=128:quant=hf_axis0_g64:rows=f16", "logquant"},
        {"hf2", "hf2:r=128:zero=int:sink_fp=0:rows=f16", "hf2"},
        {"hf4:zero=float:rows=bf16:r=1:sink_fp=2", "hf4:r=1:zero=float:sink_fp=2:rows=bf16", "hf4"},
    };
    static const struct {
        const char *text, *part;
    } bad[] = {
        {"", "known: f16 bf16 f32 q8 q4 kivi2 kivi4 logquant logquant4 hf2 hf4"},
        {"hqq", "HQQ cache"},
        {"HQQ4:r=8", "store 'HQQ4': Hugging Face's HQQ cache is not supported"},
        {"hf2:g=32", "no parameter 'g'; known: r zero sink_fp rows"},
        {"hf2:r=0", "expected a number from 1"},
        {"hf4:zero=half", "expected one of: int float"},
        {":", "unknown store"},
        {"kivi", "unknown store 'kivi'"},
        {"kivi3:r=32", "unknown store 'kivi3'"},
        {"F16", "unknown store 'F16'"},
        {"q8:rot=v", "--kv: rot='v', expected one of: off k kv"},
        {"q4:rows=f16", "store 'q4' has no parameter 'rows'; known: rot"},
        {"q4:bits=8", "no parameter 'bits'; known: rot"},
        {"q5", "unknown store 'q5'"},
        {"f16:r=3", "store 'f16' has no parameters"},
        {"kivi2:r", "'r' is not key=value"},
        {"kivi2:bits=4", "no parameter 'bits'; known: g r key_residual sink_fp rows"},
        {"logquant:sink_fp=4", "no parameter 'sink_fp'; known: g r quant rows"},
        {"kivi2:r=100", "r=100 is not a multiple of g=32"},
        {"kivi2:g=0", "expected a number from 1 to"},
        {"kivi2:r=12x", "expected a number"},
        {"logquant:r=2", "expected a number from 3"},
        {"kivi2:rows=f64", "expected one of: f16 bf16 f32"},
        {"kivi2:key_residual=ring", "expected one of: block slide"},
        {"kivi2:r=00000000000000000000000000000000000000000000000000000000000000000000000000000000000000000000128",
         "too long"},
    };
    char text[128];
    kv_format f;
    for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
        err e = {0};
        if (!is_ok(kv_format_parse(&f, good[i].text, "--kv", &e), &e, "format '%s'", good[i].text)) continue;
        kv_format_text(&f, text, sizeof text);
        is_str(text, good[i].full, "its parameters");
        is_str(kv_format_name(&f), good[i].name, "its name");
        char twice[128] = "";
        if (kv_format_parse(&f, text, "--kv", &e) == ST_OK) kv_format_text(&f, twice, sizeof twice);
        is_str(twice, text, "its text is the same format");
    }
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        err e = {0};
        is_err(kv_format_parse(&f, bad[i].text, "--kv", &e), &e, ST_USAGE, bad[i].part, "format '%s'", bad[i].text);
    }
}

static void check_oom(backend *be)
{
    oom_run o = {0};
    while (oom_next(&o)) {
        rig r;
        oom_saw(&o, rig_open(&r, be, "logquant:r=12:g=4", 8, 60, &o.e), NULL);
        rig_close(&r);
    }
    oom_ok(&o, 14, "a store");
}

int main(void)
{
    static const char *const devices[] = {"ref", "cpu"};
    rng g = {3};
    float *p = &fed[0][0][0][0][0];
    for (size_t i = 0; i < sizeof fed / sizeof *p; i++) p[i] = 4 * rng_float(&g) - 1.5f;
    check_formats();
    for (int dev = 0; dev < 2; dev++) {
        backend *be;
        err e = {0};
        backend_options o = {.device = devices[dev], .n_threads = 2};
        if (!is_ok(backend_open(&be, &o, &e), &e, "%s backend", devices[dev])) return tap_done();
        check_lengths(be, "kivi2:g=4:r=8", 8, 40);
        check_lengths(be, "kivi4:g=4:r=4", 6, 22);
        check_lengths(be, "kivi2:g=4:r=12:key_residual=slide", 8, 40);
        check_lengths(be, "kivi2:g=3:r=6:sink_fp=2:rows=bf16", 8, 30);
        check_lengths(be, "kivi4:g=1:r=1:rows=f32", 4, 9);
        check_lengths(be, "logquant:g=4:r=12", 8, 48);
        check_lengths(be, "logquant4:g=5:r=7:rows=f32", 8, 40);
        check_lengths(be, "logquant:g=2:r=3", 2, 12);
        check_lengths(be, "logquant:r=9:quant=hf_axis0_g64", 64, 24);
        check_lengths(be, "hf2:r=8", 64, 20);
        check_lengths(be, "hf4:r=3:zero=float:sink_fp=2:rows=f32", 64, 12);
        check_lengths(be, "hf2:r=1:zero=float", 128, 6);
        check_mixed(be, "kivi2:g=4:r=8", 8);
        check_mixed(be, "kivi4:g=8:r=16:key_residual=slide:sink_fp=5", 10);
        check_mixed(be, "logquant:g=4:r=12", 8);
        check_mixed(be, "logquant4:r=24:quant=hf_axis0_g64", 64);
        check_mixed(be, "hf2:r=7:sink_fp=4", 64);
        check_mixed(be, "hf4:r=16:zero=float", 64);
        check_bounded(be, "kivi2:g=4:r=8", 8);
        check_bounded(be, "hf2:r=8:sink_fp=4", 64);
        check_bounded(be, "kivi4:g=8:r=16:key_residual=slide:sink_fp=5", 10);
        check_bounded(be, "logquant4:g=4:r=12", 8);
        check_reuse(be, "kivi2:g=8:r=32", 33);
        check_reuse(be, "kivi2:g=8:r=32:key_residual=slide", 40);
        check_reuse(be, "logquant:g=8:r=30", 30 + 7);
        check_reuse(be, "logquant:g=32:r=128", 126 + 31);
        check_reuse(be, "hf2:r=32", 32);
        check_rewind(be, "kivi2:g=4:r=8", 58);
        check_rewind(be, "kivi4:g=8:r=24:key_residual=slide", 58);
        check_rewind(be, "logquant:g=4:r=15", 55);
        check_rewind(be, "logquant:g=16:r=15", 45); /* tokens are listed again at 50 and 55 and stay exact */
        check_given(be, "kivi2:g=8:r=16");
        check_given(be, "kivi4:g=8:r=16:key_residual=slide");
        check_given(be, "logquant:g=8:r=24");
        check_given(be, "hf4:r=8:sink_fp=3");
        check_flushes(be);
        check_holes(be, "kivi2:g=8:r=16", 80);
        check_holes(be, "logquant:g=8:r=24", 16);
        check_holes(be, "logquant4:r=24:quant=hf_axis0_g64", 64);
        check_holes(be, "hf2:r=24:sink_fp=3", 64);
        check_oom(be);
        backend_close(be);
    }
    return tap_done();
}
