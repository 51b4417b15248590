/* SPDX-License-Identifier: MIT */
/* Matrices held in another type: what is converted, the same results with and without the cache file,
 * files that are not what they should be, and running out of memory. */
#include "config.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/temp_file.h"
#include "kernels/ops_weights.h"
#include "model/session.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"
#include "tests/unit/model_blocks.h"

#define CACHE  "test_convert.tmp/cache/kvasir"
#define TIED   "tests/data/models/llama31-f32-tied"
#define UNTIED "tests/data/models/llama31-bf16-untied-sharded"
#define BIASED "tests/data/models/qwen2-f16"
#define GGUF   "tests/data/gguf/llama.gguf"

enum { N = 20, VOCAB_MAX = 1024 };

static backend *be;

/* Lines of the last model_convert. */
static char said[1024];

static void listen(void *ctx, const char *line)
{
    (void)ctx;
    size_t n = strlen(said);
    snprintf(said + n, sizeof said - n, "%s\n", line);
}

static status open_converted(model **m, const char *rel, dtype t, const char *dir, err *e)
{
    weights_options o = {.type = t, .cache_dir = dir, .report = listen};
    said[0] = 0;
    TRY(model_find(m, tap_path(rel), NULL, be, e));
    status st = model_load(*m, e);
    if (st == ST_OK) st = model_convert(*m, &o, e);
    if (st == ST_OK) return ST_OK;
    model_close(*m);
    *m = NULL;
    return st;
}

/* Logits of the token after N others. */
static status logits_with(const model *m, const decoder_options *o, float out[VOCAB_MAX], err *e)
{
    decoder *d = NULL;
    session *s = NULL;
    attn_spec spec;
    attn_options ao = {.kv = kv_plain(DT_F32)};
    float all[VOCAB_MAX];
    int32_t ids[N];
    for (int i = 0; i < N; i++) ids[i] = (i * 37 + 5) % m->config.vocab;
    TRY(attn_spec_parse(&spec, "full", &ao, e));
    TRY(decoder_create(&d, m, o, e));
    status st = session_create(&s, d, &spec, session_of(N + 1), e);
    prefill_options p = {.which = LOGITS_LAST};
    if (st == ST_OK) st = session_prefill(&s, 1, ids, N, &p, e);
    if (st == ST_OK) st = session_decode(&s, 1, ids, all, e);
    if (st == ST_OK) memcpy(out, all, sizeof(float) * (size_t)m->config.vocab);
    session_free(s);
    decoder_free(d);
    return st;
}

static status logits_of(const model *m, float out[VOCAB_MAX], err *e)
{
    const decoder_options exact = {.exact = true};
    return logits_with(m, &exact, out, e);
}

/* Path of the only file in the cache folder; "" without one, or with several. */
static const char *cached(void)
{
    static char path[512];
    DIR *d = opendir(CACHE);
    int n = 0;
    path[0] = 0;
    for (struct dirent *x; d && (x = readdir(d));)
        if (x->d_name[0] != '.' && n++ == 0) snprintf(path, sizeof path, CACHE "/%s", x->d_name);
    if (d) closedir(d);
    if (n > 1) path[0] = 0;
    return path;
}

static void clear(void)
{
    DIR *d = opendir(CACHE);
    for (struct dirent *x; d && (x = readdir(d));) {
        char path[512];
        snprintf(path, sizeof path, CACHE "/%s", x->d_name);
        if (x->d_name[0] != '.') unlink(path);
    }
    if (d) closedir(d);
}

/* ---- what is held ---- */

static void test_what_is_held(void)
{
    err e = {0};
    model *m, *plain;
    if (!is_ok(model_open(&plain, tap_path(TIED), be, &e), &e, "as in the file")) return;
    if (!is_ok(open_converted(&m, TIED, DT_Q8, NULL, &e), &e, "q8")) return;
    ok(m->embed.type == plain->embed.type && m->norm.type == plain->norm.type,
       "embedding and norms keep the file's type");
    ok(m->lm_head.type == DT_Q8 && attention_at(m, 0)->q.type == DT_Q8 && swiglu_at(m, 0)->down.type == DT_Q8,
       "projections and the tied output matrix are quantized");
    const model_config *c = &m->config;
    size_t q = weight_bytes(DT_Q8, (size_t)c->vocab, (size_t)c->hidden);
    ok(m->memory_bytes > q && m->weight_bytes > m->memory_bytes, "both copies of the embedding count");
    is_int((long long)(m->weight_bytes - m->decode_bytes), (long long)((c->vocab - 1) * c->hidden * 4),
           "a token reads one row of the embedding and all of the output matrix");
    is_str(said, "", "without a cache nothing is said");
    model_close(m);
    weights_options plan = {.type = DT_Q8, .plan = true};
    is_ok(model_convert(plain, &plan, &e), &e, "only planned");
    ok(plain->memory_bytes >= q && attention_at(plain, 0)->q.type == DT_Q8, "the plan has the sizes");
    model_close(plain);
    if (!is_ok(model_find(&m, tap_path(TIED), NULL, be, &e), &e, "found")) return;
    is_ok(model_convert(m, &plan, &e), &e, "planned before it is loaded");
    is_ok(model_load(m, &e), &e, "then loaded");
    ok(m->lm_head.type == DT_F32 && m->lm_head.p.p == m->embed.p.p, "the output matrix is the embedding again");
    model_close(m);
}

static void test_element_types(const char *rel)
{
    static const dtype types[] = {DT_F32, DT_F16, DT_BF16};
    for (size_t i = 0; i < 3; i++) {
        err e = {0};
        model *plain, *m;
        static float a[VOCAB_MAX], b[VOCAB_MAX];
        if (!is_ok(model_open(&plain, tap_path(rel), be, &e), &e, "%s", rel)) return;
        is_ok(logits_of(plain, a, &e), &e, "  logits");
        dtype from = plain->type;
        size_t vocab = (size_t)plain->config.vocab;
        model_close(plain);
        if (!is_ok(open_converted(&m, rel, types[i], CACHE, &e), &e, "  as %s", dtype_name(types[i]))) return;
        ok(m->type == types[i] && (from == types[i]) == (m->memory_bytes == 0), "  converted only if it differs");
        is_ok(logits_of(m, b, &e), &e, "  logits");
        double limit = from == types[i] || types[i] == DT_F32 ? 0 : types[i] == DT_F16 ? 1e-5 : 1e-3;
        is_near(b, a, vocab, limit, "  of %s as %s", dtype_name(from), dtype_name(types[i]));
        model_close(m);
    }
    is_str(cached(), "", "no cache file for element types");
}

/* ---- the file ---- */

static float want[VOCAB_MAX];

/* Opens TIED as q8 with the cache: the logits must be `want`, and `part` must have been said. */
static void check_run(const char *part, const char *name)
{
    err e = {0};
    model *m;
    float got[VOCAB_MAX];
    memset(got, 0, sizeof got);
    if (!is_ok(open_converted(&m, TIED, DT_Q8, CACHE, &e), &e, "%s", name)) return;
    is_ok(logits_of(m, got, &e), &e, "  logits");
    ok(memcmp(got, want, sizeof(float) * (size_t)m->config.vocab) == 0, "  are those without a cache");
    ok(strstr(said, part) != NULL, "  \"%s\" is said", part);
    if (!strstr(said, part)) printf("# %s", said);
    model_close(m);
}

static void change_file(off_t at, const void *bytes, size_t n, off_t size)
{
    int fd = open(cached(), O_RDWR);
    if (fd < 0 || (n && pwrite(fd, bytes, n, at) != (ssize_t)n) || (size >= 0 && ftruncate(fd, size) != 0))
        printf("# %s could not be changed\n", cached());
    close(fd);
}

static void check_bad_file(const char *why, const char *name)
{
    check_run(why, name);
    check_run("mapped from", "  and it was made again");
}

static void test_cache(void)
{
    err e = {0};
    model *m;
    struct stat s;
    if (!is_ok(open_converted(&m, TIED, DT_Q8, NULL, &e), &e, "q8 in memory")) return;
    is_ok(logits_of(m, want, &e), &e, "logits");
    model_close(m);
    check_run("cached in " CACHE, "the first start makes the file");
    check_run("mapped from " CACHE, "the second maps it");
    stat(cached(), &s);
    change_file(0, NULL, 0, s.st_size - 1);
    check_bad_file("expected", "one byte is missing");
    change_file(0, NULL, 0, 0);
    check_bad_file("0 bytes, expected", "an empty file");
    change_file(0, NULL, 0, s.st_size + 4096);
    check_bad_file("expected", "a longer file");
    for (off_t at = 0; at < 200; at += 13) {
        char text[64];
        snprintf(text, sizeof text, "byte %d of the header is another", (int)at);
        change_file(at, "\xc3", 1, -1);
        check_bad_file("of another model", text);
    }
    is_int(cached()[0] != 0, 1, "nothing else lies in the folder");
    unlink(cached());
}

/* Bits of codes and scales, of the checksums after them, and blocks in place of others. */
static void test_damaged_content(void)
{
    struct stat s;
    clear();
    check_run("cached in", "a fresh file");
    stat(cached(), &s);
    const off_t at[] = {4096, 4096 + 37, s.st_size / 2, s.st_size - 200, s.st_size - 1};
    for (size_t i = 0; i < sizeof at / sizeof *at; i++) {
        unsigned char x = 0;
        int fd = open(cached(), O_RDONLY);
        ok(pread(fd, &x, 1, at[i]) == 1, "byte %lld", (long long)at[i]);
        close(fd);
        x ^= 4;
        change_file(at[i], &x, 1, -1);
        check_bad_file(at[i] < s.st_size - 1 ? "damaged: bytes 4096 to" : "of another model", "a bit of it is another");
    }
    static unsigned char noise[4096];
    memset(noise, 0x5a, sizeof noise);
    change_file(8192, noise, sizeof noise, -1);
    check_bad_file("damaged: bytes 4096 to", "noise in place of weights");
    clear();
}

/* The content determines the name. */
static void test_keys(void)
{
    err e = {0};
    model *m;
    char first[512];
    clear();
    is_ok(open_converted(&m, TIED, DT_Q8, CACHE, &e), &e, "q8");
    model_close(m);
    snprintf(first, sizeof first, "%s", cached());
    is_ok(open_converted(&m, TIED, DT_Q4, CACHE, &e), &e, "q4");
    ok(strstr(said, "quantizing to q4") != NULL, "another type has another file");
    model_close(m);
    is_ok(open_converted(&m, UNTIED, DT_Q8, CACHE, &e), &e, "another model");
    ok(strstr(said, "quantizing to q8") != NULL, "has another file");
    model_close(m);
    is_ok(open_converted(&m, TIED, DT_Q8, CACHE, &e), &e, "the first again");
    ok(strstr(said, "mapped from") && strstr(said, first), "is still there");
    model_close(m);
    clear();
}

static void test_unusable_folder(void)
{
    err e = {0};
    model *m;
    float got[VOCAB_MAX];
    is_ok(open_converted(&m, TIED, DT_Q8, "/proc/no/such/folder", &e), &e, "a folder that cannot be made");
    ok(strncmp(said, "warning: weights cache ", 23) == 0 && strchr(said, '\n') == said + strlen(said) - 1,
       "is one line of warning");
    printf("# %s", said);
    ok(m->memory_bytes > 0, "and the weights are in memory");
    is_ok(logits_of(m, got, &e), &e, "logits");
    ok(memcmp(got, want, sizeof(float) * (size_t)m->config.vocab) == 0, "are the same");
    model_close(m);
}

static void test_out_of_memory(const char *dir)
{
    oom_run o = {0};
    while (oom_next(&o)) {
        model *m = NULL;
        clear();
        mem_test_fail_at(o.n);
        oom_saw(&o, open_converted(&m, TIED, DT_Q4, dir, &o.e), &m);
        model_close(m);
    }
    oom_ok(&o, 9, dir ? "with a cache" : "without");
    clear();
}

/* Conversion, and products of few rows with x in 8 bits: the same bits for any chunk and number of threads. */
static void test_bits(const char *rel, dtype t)
{
    static const struct {
        int threads;
        size_t chunk;
    } set[] = {{1, 1}, {2, 1}, {2, 7}, {1, 15}};
    float first[VOCAB_MAX], got[VOCAB_MAX];
    backend *before = be;
    for (size_t i = 0; i < sizeof set / sizeof *set; i++) {
        err e = {0};
        model *m;
        backend_options bo = {.device = "cpu", .n_threads = set[i].threads};
        const decoder_options o = {.chunk = set[i].chunk};
        if (!is_ok(backend_open(&be, &bo, &e), &e, "%d threads", set[i].threads)) break;
        if (is_ok(open_converted(&m, rel, t, NULL, &e), &e, "  %s as %s", rel,
                  t == DT_COUNT ? "held" : dtype_name(t))) {
            is_ok(logits_with(m, &o, i ? got : first, &e), &e, "  chunks of %zu", set[i].chunk);
            ok(!i || memcmp(got, first, sizeof(float) * (size_t)m->config.vocab) == 0, "  the same bits");
            model_close(m);
        }
        backend_close(be);
    }
    be = before;
}

/* Random models are made in their type at once. */
static void test_shapes(void)
{
    static const dtype types[] = {DT_Q8, DT_Q4};
    for (size_t i = 0; i < 2; i++) {
        err e = {0};
        model *m;
        float got[VOCAB_MAX];
        char name[96];
        if (!is_ok(model_open_shape(&m, "tiny", types[i], 7, be, &e), &e, "tiny as %s", dtype_name(types[i]))) return;
        ok(m->embed.type == DT_BF16 && m->lm_head.type == types[i] && m->norm.type == DT_BF16 && m->type == types[i],
           "  types as of a quantized model");
        is_ok(model_find_nonfinite(m, name, sizeof name), &e, "  all finite");
        is_ok(logits_of(m, got, &e), &e, "  runs");
        model_close(m);
    }
}

static status faulty_import(backend *of, buf *out, const void *p, size_t bytes, err *e)
{
    (void)of, (void)out, (void)p, (void)bytes;
    return err_set(e, ST_DEVICE, "the device is gone");
}

/* A device that fails while it takes converted matrices, or after it. */
static void test_fault(void)
{
    for (int i = 0; i < 2; i++) {
        err e = {0};
        model *m;
        const weights_options o = {.type = DT_Q8};
        const backend_ops *real = be->ops;
        backend_ops faulty = *real;
        if (!is_ok(model_open(&m, tap_path(TIED), be, &e), &e, "open")) return;
        if (i == 0) faulty.import = faulty_import;
        else err_set(&be->fault, ST_DEVICE, "the device is gone");
        be->ops = &faulty;
        is_err(model_convert(m, &o, &e), &e, ST_DEVICE, "the device is gone", "a fault is not lost");
        be->ops = real;
        be->fault = (err){0};
        model_close(m);
    }
}

/* ---- progress ---- */

typedef struct {
    int64_t calls, last, total, stop_at; /* stop_at: call that interrupts; 0: none */
} watcher;

static bool watch(void *ctx, int64_t done, int64_t total)
{
    watcher *w = ctx;
    w->calls++;
    if (done <= 0 || done > total) w->total = -1;
    else w->total = w->total < 0 ? -1 : total;
    w->last = done;
    return w->calls != w->stop_at;
}

/* Progress reaches the end; an interruption leaves no file and no name. */
static void test_progress(const char *dir)
{
    for (int64_t stop = 0; stop < 3; stop++) {
        err e = {0};
        model *m;
        watcher w = {.stop_at = stop};
        const weights_options o = {.type = DT_Q8, .cache_dir = dir, .progress = watch, .ctx = &w};
        clear();
        if (!is_ok(model_open(&m, tap_path(UNTIED), be, &e), &e, "open")) return;
        status st = model_convert(m, &o, &e);
        if (stop) is_err(st, &e, ST_INTERRUPTED, "interrupted", "interrupted at call %d", (int)stop);
        else is_ok(st, &e, "converted with progress");
        ok(w.calls >= (stop ? stop : 2) && w.total > 0 && w.last <= w.total, "  %d calls within the total",
           (int)w.calls);
        ok((cached()[0] != 0) == (dir && !stop), "  a cache file only if it is complete");
        model_close(m);
    }
    clear();
}

/* Failing writes cost a warning, and the weights are kept in memory. */
static void test_write_errors(void)
{
    int failed = 0;
    for (long n = 1; n < 200; n++) {
        err e = {0};
        model *m;
        float got[VOCAB_MAX];
        clear();
        temp_file_test_fail_at(n);
        bool good = is_ok(open_converted(&m, TIED, DT_Q8, CACHE, &e), &e, "system call %ld fails", n);
        temp_file_test_fail_at(0);
        if (!good) return;
        bool warned = strstr(said, "warning: weights cache") != NULL;
        failed += warned;
        is_ok(logits_of(m, got, &e), &e, "  logits");
        ok(memcmp(got, want, sizeof(float) * (size_t)m->config.vocab) == 0, "  are those without a cache");
        ok(!warned || !cached()[0], "  no file remains");
        model_close(m);
        if (!warned && n > 2) break; /* the first two calls have an alternative */
    }
    ok(failed >= 5, "%d calls can fail", failed);
    clear();
}

int main(void)
{
    err e = {0};
    backend_options o = {.device = "cpu", .n_threads = 2};
    if (!is_ok(backend_open(&be, &o, &e), &e, "open")) return tap_done();
    mkdir("test_convert.tmp", 0700);
    clear();
    test_what_is_held();
    test_element_types(TIED);
    test_element_types(UNTIED);
    test_element_types(BIASED);
    test_cache();
    test_damaged_content();
    test_keys();
    test_unusable_folder();
    test_out_of_memory(NULL);
    test_out_of_memory(CACHE);
    test_bits(UNTIED, DT_Q8);
    test_bits(UNTIED, DT_Q4);
    test_bits(GGUF, DT_Q8);
    test_bits(GGUF, DT_COUNT);
    test_shapes();
    test_fault();
    test_progress(NULL);
    test_progress(CACHE);
    test_write_errors();
    rmdir(CACHE);
    rmdir("test_convert.tmp/cache");
    rmdir("test_convert.tmp");
    backend_close(be);
    return tap_done();
}
