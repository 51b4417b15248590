/* SPDX-License-Identifier: MIT */
/* Loading to a device: large uploads without a wait, random weights and rows generated there, and the prompts that may
 * be rounded for its tensor cores. */
/* Builds: shim */
#include "config.h"

#include "eval/bench/bench_fill.h"
#include "model/weights.h"
#include "tests/unit/session_util.h"

#include "tests/cuda/cuda_util.h"

enum { LARGE = (20 << 20) + 12, FILLED = 96, RANDOM_BYTES = 8 << 20 };

/* The source may change as soon as the call returns, even if nothing has been copied. */
static void test_large(void)
{
    backend *be = open_cuda();
    device d = {.be = be};
    err e = {0};
    unsigned char *src = xmalloc(LARGE), *want = xmalloc(LARGE), *got = xmalloc(LARGE);
    for (size_t i = 0; i < LARGE; i++) want[i] = (unsigned char)(i * 7 + i / 1000);
    shim_lazy(true);
    buf a = put(&d, want, LARGE), b = {NULL};
    for (int i = 0; i < 2; i++) {
        memcpy(src, want, LARGE);
        long waits = shim_count(SHIM_WAITS);
        if (i == 0) be->ops->upload(be, a, src, LARGE);
        else if (!is_ok(be->ops->import(be, &b, src, LARGE, &e), &e, "import")) break;
        memset(src, 0xa5, LARGE);
        ok(shim_count(SHIM_WAITS) - waits <= 3, "%s: a wait for each reuse of a piece: %ld", i ? "import" : "upload",
           shim_count(SHIM_WAITS) - waits);
        be->ops->download(be, got, i ? b : a, LARGE);
        ok(memcmp(got, want, LARGE) == 0, "%s: what was there", i ? "import" : "upload");
    }
    be->ops->release(be, b, LARGE);
    drop(&d);
    shim_lazy(false);
    is_ok(backend_fault(be, &e), &e, "no fault");
    backend_close(be);
    is_int((long long)shim_pinned_held(), 0, "all pinned memory was given back");
    free(src), free(want), free(got);
}

/* ---- random weights ---- */

typedef struct {
    backend *be;
    uint64_t sum;
} weight_sums;

static void add_weight(weight_sums *s, const weight_spec *w)
{
    size_t n = weight_size(w, w->slot->type);
    unsigned char *p = xmalloc(n);
    s->be->ops->download(s->be, p, w->slot->p, n);
    for (size_t i = 0; i < n; i++) s->sum = (s->sum ^ p[i]) * 1099511628211u;
    free(p);
}

static uint64_t weights_of(const char *on, dtype t)
{
    weight_sums s = {.sum = 14695981039346656037u};
    backend_options o = {.device = on, .n_threads = 1};
    model *m;
    err e = {0};
    if (!is_ok(backend_open(&s.be, &o, &e), &e, "%s", on) ||
        !is_ok(model_open_shape(&m, "tiny", t, 7, s.be, &e), &e, "random weights in %s on %s", dtype_name(t), on))
        exit(1);
    for (const weight_spec *w = m->weights; w < weights_end(m); w++) add_weight(&s, w);
    model_close(m);
    backend_close(s.be);
    return s.sum;
}

static void test_weights(void)
{
    static const dtype types[] = {DT_BF16, DT_F16, DT_Q8, DT_Q4};
    for (size_t i = 0; i < sizeof types / sizeof *types; i++)
        ok(weights_of("ref", types[i]) == weights_of("cuda", types[i]), "%s: the same", dtype_name(types[i]));
}

/* ---- matrices in one allocation ---- */

typedef struct {
    const char *path; /* "tiny": random weights */
    dtype held;       /* DT_COUNT: as in the files */
    size_t n;         /* matrices in the allocation of another */
    bool copy;        /* converted by model_convert_copy */
} joined_case;

static const joined_case joined[] = {
    {"models/qwen2-f16", DT_COUNT, 6, false},         /* k and v, gate and up of 3 layers */
    {"models/llama31-f32-tied", DT_COUNT, 4, false},  /* 2 layers */
    {"models/llama31-f32-tied", DT_BF16, 4, false},   /* converted */
    {"models/llama31-f32-tied", DT_BF16, 4, true},    /* next to the original */
    {"models/llama2-linear-f16", DT_COUNT, 6, false}, /* q, k and v have one shape */
    {"models/phi3-longrope-f16", DT_COUNT, 4, false}, /* q, k and v in one tensor of the files */
    {"models/qwen2-moe-bf16", DT_COUNT, 18, false},   /* 2 of 3 layers have 7 experts */
    {"models/qwen3-bf16", DT_Q8, 4, false},           /* blocks */
    {"tiny", DT_BF16, 4, false},
};

static status open_joined(model **m, model **of, const joined_case *c, backend *be, err *e)
{
    const weights_options o = {.type = c->held};
    char path[128];
    *of = NULL;
    if (strcmp(c->path, "tiny") == 0) return model_open_shape(m, c->path, c->held, 7, be, e);
    snprintf(path, sizeof path, "tests/data/%s", c->path);
    TRY(model_open(m, tap_path(path), be, e));
    if (c->held == DT_COUNT) return ST_OK;
    if (!c->copy) return model_convert(*m, &o, e);
    *of = *m;
    return model_convert_copy(m, *of, &o, e);
}

/* Returns a hash of the weights. Each joined matrix follows the previous one. */
static uint64_t hash_joined(const joined_case *c, const char *on, size_t *n)
{
    weight_sums s = {.sum = 14695981039346656037u};
    backend_options o = {.device = on, .n_threads = 1};
    model *m, *of;
    err e = {0};
    bool follows = true;
    *n = 0;
    if (!is_ok(backend_open(&s.be, &o, &e), &e, "%s", on)) exit(1);
    const size_t before = shim_held();
    if (!is_ok(open_joined(&m, &of, c, s.be, &e), &e, "%s in %s on %s", c->path,
               c->held == DT_COUNT ? "its type" : dtype_name(c->held), on))
        exit(1);
    if (s.be->ops->imports_copy)
        is_int((long long)(shim_held() - before), (long long)(m->weight_bytes + (of ? of->weight_bytes : 0)),
               "  its weights take what the plan says");
    for (const weight_spec *w = m->weights; w < weights_end(m); w++) {
        add_weight(&s, w);
        if (!w->joined) continue;
        const weight *last = w[-1].slot;
        follows = follows && w->slot->p.p == last->p.p + weight_bytes(last->type, last->rows, last->cols);
        ++*n;
    }
    ok(follows, "  %zu matrices follow another", *n);
    model_close(m);
    model_close(of);
    is_int((long long)(shim_held() - before), 0, "  nothing is held");
    backend_close(s.be);
    return s.sum;
}

static void test_joined(void)
{
    for (size_t i = 0; i < sizeof joined / sizeof *joined; i++) {
        size_t n, none;
        const uint64_t got = hash_joined(&joined[i], "cuda", &n), want = hash_joined(&joined[i], "ref", &none);
        ok(got == want, "%s: the same weights", joined[i].path);
        ok(n == joined[i].n && none == 0, "%s: %zu matrices share an allocation, on a CPU %zu", joined[i].path, n,
           none);
    }
}

/* A conversion that runs out of memory at any weight gives everything back. */
static void test_joined_room(void)
{
    const joined_case c = {.path = "models/qwen3-bf16", .held = DT_COUNT};
    const weights_options o = {.type = DT_F32};
    backend *be = open_cuda();
    size_t held = shim_held(), failed = 0;
    status st = ST_NOMEM;
    for (size_t room = 0; st == ST_NOMEM; room += 4000, failed++) {
        model *m, *of;
        err e = {0};
        if (!is_ok(open_joined(&m, &of, &c, be, &e), &e, "open")) return;
        shim_memory(shim_held() + room);
        st = model_convert(m, &o, &e);
        model_close(m);
        shim_memory((size_t)1 << 30);
        ok(shim_held() == held && (st == ST_NOMEM || st == ST_OK), "%zu bytes of room: %s", room, e.msg);
    }
    ok(failed > 5, "failed %zu times", failed);
    backend_close(be);
}

/* ---- calls of backend ops ---- */

static struct {
    const backend_ops *real;
    backend_ops ops;
    int rounded, all; /* prompts: calls of attention */
    size_t uploaded;  /* bytes */
} spy;

static void spy_prefill(backend *be, const attn_job *j)
{
    spy.all++;
    spy.rounded += j->rounded;
    spy.real->attn_prefill(be, j);
}

static void spy_upload(backend *be, buf dst, const void *src, size_t bytes)
{
    spy.uploaded += bytes;
    spy.real->upload(be, dst, src, bytes);
}

/* Replaces the backend's ops until they are restored. */
static void spy_on(backend *be)
{
    spy.real = be->ops;
    spy.ops = *be->ops;
    spy.ops.attn_prefill = spy_prefill;
    spy.ops.upload = spy_upload;
    spy.all = spy.rounded = 0;
    spy.uploaded = 0;
    be->ops = &spy.ops;
}

/* ---- random rows ---- */

static void logits_behind(const char *on, float *out, size_t *uploaded, size_t *rows)
{
    engine_parts p;
    session *s;
    err e = {0};
    int32_t id = 3;
    const fill_options o = {.n_tokens = FILLED, .seed = 5};
    if (!is_ok(parts_open(&p, "qwen2-f16", on, &e), &e, "a model on %s", on) ||
        !is_ok(session_new(&s, &p, "full", "f16", FILLED + 8, &e), &e, "a session"))
        exit(1);
    const attn_shape *sh = decoder_attn_shape(p.dec);
    *rows = (size_t)(FILLED * sh->n_layers * 2 * sh->n_kv_heads * sh->head_dim) * sizeof(float);
    spy_on(p.be);
    is_ok(fill_sessions(&s, 1, &o, &e), &e, "random rows on %s", on);
    *uploaded = spy.uploaded;
    p.be->ops = spy.real;
    is_ok(session_decode(&s, 1, &id, out, &e), &e, "a step after them");
    session_free(s);
    parts_close(&p);
}

static void test_rows(void)
{
    static float want[U_VOCAB], got[U_VOCAB];
    size_t uploaded, rows;
    shim_lazy(true);
    logits_behind("ref", want, &uploaded, &rows);
    logits_behind("cuda", got, &uploaded, &rows);
    shim_lazy(false);
    is_near(got, want, U_VOCAB, 1e-6, "the same rows");
    ok(uploaded - RANDOM_BYTES < rows / 4, "what is uploaded is a pool once, and little a chunk: %zu bytes of %zu",
       uploaded - RANDOM_BYTES, rows);
}

/* ---- prompts that may be rounded ---- */

static void check_rounded(const char *name, const char *rows, bool exact, bool want)
{
    engine_parts p;
    session *s;
    float logits[U_VOCAB];
    err e = {0};
    decoder_options opt = {.chunk = U_CHUNK, .max_batch = 1, .exact = exact};
    decoder *dec;
    if (!is_ok(parts_open(&p, name, "cuda", &e), &e, "%s", name) ||
        !is_ok(decoder_create(&dec, p.m, &opt, &e), &e, "a decoder"))
        exit(1);
    decoder_free(p.dec);
    p.dec = dec;
    if (is_ok(session_new(&s, &p, "full", rows, 64, &e), &e, "rows in %s", rows)) {
        spy_on(p.be);
        is_ok(live(s, 20, 0, logits, &e), &e, "a prompt");
        p.be->ops = spy.real;
        session_free(s);
    }
    is_int(spy.rounded, want ? spy.all : 0, "%s, rows in %s%s: %d of attention may be rounded", name, rows,
           exact ? ", exact" : "", want ? spy.all : 0);
    ok(spy.all > 0, "there was some");
    parts_close(&p);
}

int main(void)
{
    test_large();
    test_weights();
    test_joined();
    test_joined_room();
    test_rows();
    check_rounded("qwen2-f16", "f16", false, true);
    check_rounded("qwen2-f16", "f16", true, false);
    check_rounded("qwen2-f16", "f32", false, false);
    check_rounded("qwen2-f16", "bf16", false, false);
    check_chunk("cuda", 2048);
    is_int((long long)shim_held(), 0, "nothing is held");
    return tap_done();
}
