/* SPDX-License-Identifier: MIT */
/* Rows in files (--kv-tier disk): the same bits as in memory, whatever the strategy and store; when rows go; failures.
 */
#include "config.h"

#define T_HEADS 8
#define T_KV    2
#define T_DIM   64

#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "attention/store.h"
#include "kernels/base/mem.h"
#include "tests/unit/oom.h"
#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

/* A life: a prompt, decode steps, a rewind where the strategy can, steps, another prompt, steps. */
enum { P1 = 70, P2 = 25, STEPS = 20, ALL = P1 + P2 + 3 * STEPS };
typedef struct {
    head_rows prompt1[T_LAYERS * P1], prompt2[T_LAYERS * P2], step[3][STEPS][T_LAYERS];
} life;

static const char *const strategies[] = {"quest:skip=0:budget=24:page=4",
                                         "quest:skip=1:budget=20:page=3:gqa=per_q",
                                         "quest:skip=0:budget=24:page=8:gqa=layer_mean",
                                         "fier:skip=0:budget=20:g=8",
                                         "fier:skip=0:budget=20:g=8:gqa=per_q:force_sink=3:force_recent=5",
                                         "fier:skip=0:budget=20:g=8",
                                         "quest:skip=0:budget=24:page=4:gqa=per_q:tail=sample:3",
                                         "codes:skip=0:budget=40",
                                         "pqcache:budget=20:sink=4:bits=3",
                                         "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0",
                                         "retroinfer:budget=24:sink=3:local=5:size=4:update=8",
                                         "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0:center=1",
                                         "pariskv:budget=20:sink=18:local=8:u=17:full_thr=0:skip=1",
                                         "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31",
                                         "infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31",
                                         "tokenselect:sink=3:local=8:window=8:budget=12",
                                         "magicpig:K=3:L=12:sink=3:local=6:skip=0",
                                         "full"};
static const char *const stores[] = {"f16",
                                     "f32",
                                     "bf16",
                                     "kivi2:g=8:r=16",
                                     "kivi4:g=8:r=24:key_residual=slide:rows=bf16",
                                     "kivi4:g=4:r=8:sink_fp=3",
                                     "logquant:g=8:r=24:rows=f32",
                                     "logquant4:r=12:quant=hf_axis0_g64",
                                     "hf2:r=12:sink_fp=3",
                                     "q8",
                                     "q4"};

static status open_seq(rig *r, attn_seq **out, const char *text, const char *store, const kv_tier *where, err *e)
{
    static attn_spec spec;
    attn_options o = {.tier = where};
    attn_limits lim = {.n_tokens = ALL, .chunk = (int64_t)r->rows};
    TRY(kv_format_parse(&o.kv, store, "--kv", e));
    TRY(attn_spec_parse(&spec, text, &o, e));
    return attn_seq_create(out, &spec, &r->shape, &lim, r->be, e);
}

/* Rewind distance: short, or into rows that are no longer in memory. */
static int64_t back_by = 9;

static world later; /* fed after rewinding: stale rows in a file would show */

/* Returns whether the strategy could go back. */
static bool live(rig *r, attn_seq *s, int64_t chunk, life *out)
{
    err e = {0};
    const world *w = r->w;
    rig_prompt(r, &s, 1, P1, chunk, out->prompt1);
    for (int i = 0; i < STEPS; i++) rig_decode(r, &s, 1, out->step[0][i]);
    bool back = attn_seq_rewind(s, attn_seq_length(s) - back_by, &e) == ST_OK;
    r->w = &later;
    for (int i = 0; i < STEPS; i++) rig_decode(r, &s, 1, out->step[1][i]);
    rig_prompt(r, &s, 1, P2, chunk, out->prompt2);
    for (int i = 0; i < STEPS; i++) rig_decode(r, &s, 1, out->step[2][i]);
    r->w = w;
    return back;
}

static kv_tier tier_of(const char *text)
{
    kv_tier t;
    err e = {0};
    if (kv_tier_parse(&t, text, &e) != ST_OK) ok(false, "%s: %s", text, e.msg);
    return t;
}

/* Fills released memory with NaN, even if the system would keep its content, so that reading it shows. */
static size_t given;
static void discard(backend *be, buf b, size_t bytes)
{
    (void)be;
    memset(b.p, 0xff, bytes);
    given += bytes;
}

static void poison(rig *r)
{
    static backend_ops ops;
    ops = *r->be->ops;
    ops.discard = discard;
    r->be->ops = &ops;
}

/* ---- the same bits ---- */

/* True if the maximum memory of a sequence was planned. */
static bool is_planned(const rig *r, const attn_seq *s)
{
    attn_bytes p;
    size_t disk;
    err e = {0};
    const attn_limits lim = {.n_tokens = ALL, .chunk = (int64_t)r->rows};
    if (attn_plan(&p, attn_seq_spec(s), &r->shape, &lim, &e) != ST_OK ||
        attn_plan_slow(&disk, attn_seq_spec(s), &r->shape, &lim, &e) != ST_OK)
        return ok(false, "%s", e.msg), false;
    size_t most = attn_seq_peak(s).kv, in_file = attn_seq_tier(s).in_file;
    return ok(most <= p.kv && in_file <= disk, "held %zu of %zu planned, in files %zu of %zu", most, p.kv, in_file,
              disk);
}

static bool same_life(rig *r, const char *strategy, const char *store, const char *text, int64_t chunk, tier_counts *c)
{
    static life want, got;
    attn_seq *s;
    err e = {0};
    kv_tier t = tier_of(text);
    back_by = back_by == 9 ? 37 : 9;
    memset(&want, 0, sizeof want);
    memset(&got, 0, sizeof got);
    if (open_seq(r, &s, strategy, store, NULL, &e) != ST_OK) return ok(false, "%s", e.msg), false;
    bool back = live(r, s, chunk, &want);
    attn_seq_free(s);
    if (open_seq(r, &s, strategy, store, &t, &e) != ST_OK) return ok(false, "%s", e.msg), false;
    bool same = live(r, s, chunk, &got) == back && memcmp(&want, &got, sizeof want) == 0;
    /* Again after a reset, in other chunks. */
    *c = attn_seq_tier(s);
    attn_seq_reset(s);
    live(r, s, chunk, &got);
    same &= memcmp(&want, &got, sizeof want) == 0 && is_planned(r, s);
    attn_seq_free(s);
    if (backend_fault(r->be, &e) != ST_OK) return ok(false, "%s over %s: %s", strategy, store, e.msg), false;
    return same;
}

static void check_bits(const char *device, const world *w)
{
    /* Stores of 64 channels and rows in blocks are for the middle one; of other pairs each meets one. Of ref, which is
     * slow, a third. */
    static const struct {
        int heads, kv, dim;
        int64_t chunk;
        const char *tier;
    } shapes[] = {{8, 2, 8, 16, "disk:window=8:cache=0"},
                  {4, 2, 64, 24, "disk:window=20:cache=8192"},
                  {6, 1, 16, 80, "disk:window=1:cache=100k"}};
    rig r;
    err e = {0};
    if (!is_ok(rig_open(&r, device, w, 80, &e), &e, "%s opened", device)) return;
    poison(&r);
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
        if (!is_ok(rig_layout(&r, shapes[i].heads, shapes[i].kv, shapes[i].dim, &e), &e, "layout")) return;
        for (size_t a = 0; a < sizeof strategies / sizeof *strategies; a++)
            for (size_t k = 0; k < sizeof stores / sizeof *stores; k++) {
                if (strncmp(strategies[a], "codes", 5) == 0 && !strchr(stores[k], ':') && stores[k][0] != 'q') continue;
                if ((strstr(stores[k], "hf") || stores[k][0] == 'q' ? 1 : (k + a) % 3) != i) continue;
                size_t rest = strcmp(device, "cpu") == 0 ? 0 : k + 2 * a;
                if (rest % 3 != 0 || tap_leaves_out((k + 2 * a) % 9 != 0)) continue;
                tier_counts c;
                bool same = same_life(&r, strategies[a], stores[k], shapes[i].tier, shapes[i].chunk, &c);
                ok(same && c.written + c.in_file > 0, "%s: %s over %s, %s, head_dim %d: the same bits", device,
                   strategies[a], stores[k], shapes[i].tier, shapes[i].dim);
                if (!strchr(stores[k], ':') && strchr(strategies[a], ':') && shapes[i].kv > 1)
                    ok(c.missed > 0 && c.read > 0 && c.pages >= c.missed && c.rows >= c.pages,
                       "with reads in decode steps");
            }
    }
    rig_close(&r);
}

/* ---- sequences side by side ---- */

static void check_batch(const world *w)
{
    enum { N = 4, T = 50 };
    static const char *const texts[N] = {"quest:skip=0:budget=24:page=4", "fier:skip=1:budget=20:g=8",
                                         "quest:skip=0:budget=24:page=4",
                                         "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0"};
    static head_rows alone[N][STEPS][T_LAYERS], out[T_LAYERS * N], prompt[2][T_LAYERS * T];
    rig r;
    attn_seq *s[N];
    err e = {0};
    bool same = true;
    if (!is_ok(rig_open(&r, "cpu", w, 80, &e), &e, "opened")) return;
    poison(&r);
    for (int round = 0; round < 2; round++) { /* alone in memory; together in files */
        kv_tier t = tier_of(round ? "disk:window=8:cache=4k" : "device");
        for (int i = 0; i < N; i++) {
            if (!is_ok(open_seq(&r, &s[i], texts[i], "f16", i == 2 ? NULL : &t, &e), &e, "%s", texts[i])) return;
            if (!round) rig_prompt(&r, &s[i], 1, T, 32, prompt[0]);
        }
        if (round) rig_prompt(&r, s, N, T, 32, prompt[1]);
        for (int k = 0; k < STEPS; k++)
            for (int i = 0; i < N; i++) {
                if (!round) rig_decode(&r, &s[i], 1, alone[i][k]);
                else if (i == 0) rig_decode(&r, s, N, out);
                for (int l = 0; round && l < T_LAYERS; l++)
                    same &= memcmp(out[l * N + i], alone[i][k][l], sizeof *out) == 0;
            }
        for (int i = 0; i < N; i++) attn_seq_free(s[i]);
    }
    ok(same && memcmp(prompt[0], prompt[1], sizeof *prompt) == 0,
       "a shared prompt and a batch of strategies, three in files and one not: what each gets alone in memory");
    is_ok(backend_fault(r.be, &e), &e, "no fault");
    rig_close(&r);
}

/* ---- when rows go ---- */

typedef struct {
    const attn_seq *s;
    uint64_t before;
    bool still;
    int flushes;
} flush_watch;

/* In a decode step nothing is written before its end (U8: no layer sees what another one did). */
static void watch(void *ctx, const attn_seen *seen)
{
    flush_watch *f = ctx;
    uint64_t now = attn_seq_tier(f->s).written;
    if (seen->layer < 0) f->before = now;
    else if (seen->layer < T_LAYERS) f->still &= now == f->before;
    else if (now > f->before) {
        f->flushes++;
        f->still &= (now - f->before) % ((uint64_t)T_LAYERS * T_KV * TIER_PAGE * T_DIM * 4) == 0; /* all layers alike */
    }
}

static void check_flush(const world *w)
{
    enum { T = 40, N = 80 };
    static head_rows out[T_LAYERS];
    rig r;
    attn_seq *s, *all;
    err e = {0};
    kv_tier t = tier_of("disk:window=32:cache=0");
    if (!is_ok(rig_open(&r, "cpu", w, 80, &e), &e, "opened")) return;
    if (!is_ok(open_seq(&r, &s, "quest:skip=0:budget=24:page=4", "f16", &t, &e), &e, "quest")) return;
    if (!is_ok(open_seq(&r, &all, "quest:skip=0:budget=24:page=4", "f16", NULL, &e), &e, "quest")) return;
    rig_prompt(&r, &s, 1, T, 16, NULL);
    rig_prompt(&r, &all, 1, T, 16, NULL);
    const size_t block = TIER_PAGE * T_DIM * 4, row = block * T_LAYERS * T_KV; /* 16 tokens of all heads and layers */
    tier_counts c = attn_seq_tier(s);
    is_int(c.in_file, 0, "the newest 32 of 40 tokens stay, and 8 fill no block");
    flush_watch f = {.s = s, .still = true};
    attn_watch(r.work, watch, &f);
    bool window = true, held = true;
    for (int k = 1; k <= N; k++) {
        rig_decode(&r, &s, 1, out);
        int64_t n = T + k, in_file = n >= 48 ? (n - 32) / TIER_PAGE : 0;
        c = attn_seq_tier(s);
        window &= c.in_file == (size_t)in_file * row;
        held &= attn_seq_held(s).kv == n * row / TIER_PAGE - c.in_file + c.here;
    }
    attn_watch(r.work, NULL, NULL);
    ok(window, "a block goes when its last token leaves the window, for 80 steps");
    ok(f.still && f.flushes == 5, "in all layers at the end of a step: %d times", f.flushes);
    ok(held && c.here == 0 && attn_seq_peak(s).kv > attn_seq_held(s).kv, "bytes held are those not in files alone");
    is_int(c.written, c.in_file, "what was written in steps is what is in the files");
    ok(c.missed == c.pages && c.missed > 0 && c.read >= c.missed * block, "without a cache every block is read");
    attn_seq_free(s);
    attn_seq_free(all);
    rig_close(&r);
}

static void check_counts(const world *w)
{
    enum { T = 70 };
    static head_rows out[T_LAYERS];
    rig r;
    attn_seq *s;
    err e = {0};
    if (!is_ok(rig_open(&r, "cpu", w, 80, &e), &e, "opened")) return;
    const uint64_t blocks = T_LAYERS * T_KV * 3; /* of 70 tokens the first 48 */
    for (int big = 0; big < 2; big++) {
        kv_tier t = tier_of(big ? "disk:window=20:cache=1M" : "disk:window=20:cache=0");
        if (!is_ok(open_seq(&r, &s, "full", "f16", &t, &e), &e, "full")) return;
        rig_prompt(&r, &s, 1, T, 70, NULL);
        rig_prompt(&r, &s, 1, 1, 1, NULL);
        for (int k = 0; k < 3; k++) rig_decode(&r, &s, 1, out);
        tier_counts c = attn_seq_tier(s);
        is_int(c.rows, 3 * blocks * TIER_PAGE, "three steps ask for all rows in the file");
        is_int(c.pages, 3 * blocks, "each block once a step");
        is_int(c.missed, big ? 0 : 3 * blocks, big ? "all of them stayed" : "none of them stayed");
        is_int(c.read, c.missed * TIER_PAGE * T_DIM * 4, "bytes read");
        ok(c.here == (big ? c.in_file : 0) && c.most_here >= blocks / T_LAYERS * TIER_PAGE * T_DIM * 4,
           "in memory: %zu, at most %zu", c.here, c.most_here);
        ok((c.stall_ns > 0) == !big && c.written == 0, "time and bytes of prompts count apart");
        attn_seq_free(s);
    }
    rig_close(&r);
}

/* Rows that a device reads from the host's memory: keys of all tokens, values of few. */
static void check_host(const world *w)
{
    static head_rows out[T_LAYERS];
    rig r;
    attn_seq *s;
    err e = {0};
    kv_tier t = tier_of("host");
    if (!is_ok(rig_open(&r, "cpu", w, 80, &e), &e, "opened")) return;
    if (!is_ok(open_seq(&r, &s, "tokenselect:sink=3:local=8:window=8:budget=12", "f16", &t, &e), &e, "host")) return;
    rig_prompt(&r, &s, 1, P1, 32, NULL);
    const double host = attn_seq_host(s).read;
    const attn_stats a = attn_seq_stats(s);
    for (int k = 0; k < 3; k++) rig_decode(&r, &s, 1, out);
    const attn_stats b = attn_seq_stats(s);
    const double k_read = b.k_read - a.k_read, read = b.kv_read - a.kv_read;
    ok(k_read > read - k_read, "%g bytes of keys and %g of values", k_read, read - k_read);
    ok(attn_seq_host(s).read - host == read, "bytes read in the host's memory: %g", attn_seq_host(s).read - host);
    attn_seq_free(s);
    rig_close(&r);
}

/* ---- files ---- */

/* Calls fn for each file without a name that the process has open; their number. */
static int each_unnamed(void (*fn)(int fd))
{
    int n = 0;
    for (int fd = 3; fd < 256; fd++) {
        char link[64], to[512];
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t k = readlink(link, to, sizeof to - 1);
        if (k <= 0) continue;
        to[k] = 0;
        if (!strstr(to, "(deleted)")) continue;
        n++;
        if (fn) fn(fd);
    }
    return n;
}

static bool is_private = true;
static void look(int fd)
{
    struct stat st;
    is_private &= fstat(fd, &st) == 0 && st.st_nlink == 0 && (st.st_mode & 0777) == 0600 && st.st_size > 0;
}

static void cut(int fd)
{
    if (ftruncate(fd, 100) != 0) ok(false, "cut");
}

/* Steps until a fault; its message. */
static const char *fault_of(rig *r, attn_seq *s, err *e)
{
    static head_rows out[T_LAYERS];
    *e = (err){0};
    for (int k = 0; k < 40 && r->be->fault.code == ST_OK; k++) rig_decode(r, &s, 1, out);
    return backend_fault(r->be, e) == ST_OK ? "" : e->msg;
}

static bool open_one(rig *r, const world *w, attn_seq **s, const char *text, err *e)
{
    kv_tier t = tier_of(text);
    *e = (err){0};
    if (!is_ok(rig_open(r, "cpu", w, 80, e), e, "opened")) return false;
    return is_ok(open_seq(r, s, "fier:skip=0:budget=20:g=8", "f16", &t, e), e, "%s", text);
}

static void check_files(const world *w)
{
    rig r;
    attn_seq *s;
    err e;
    int before = each_unnamed(NULL);
    if (!open_one(&r, w, &s, "disk:window=8:cache=0", &e)) return;
    rig_prompt(&r, &s, 1, 70, 32, NULL);
    is_int(each_unnamed(look) - before, T_LAYERS, "a file for each layer, without a name");
    ok(is_private, "that nobody else can open");
    each_unnamed(cut);
    const char *msg = fault_of(&r, s, &e);
    ok(e.code == ST_IO && strstr(msg, "file of layer 0: ") && strstr(msg, "byte"), "one that was cut: %s", msg);
    attn_seq_free(s);
    rig_close(&r);
    is_int(each_unnamed(NULL), before, "nothing stays open");

    /* A disk that takes no more. */
    const struct rlimit none = {8192, RLIM_INFINITY}, all = {RLIM_INFINITY, RLIM_INFINITY};
    signal(SIGXFSZ, SIG_IGN);
    if (!open_one(&r, w, &s, "disk:window=8:cache=0", &e)) return;
    if (setrlimit(RLIMIT_FSIZE, &none) != 0) tap_skip("no limit for files");
    rig_prompt(&r, &s, 1, 70, 32, NULL);
    msg = fault_of(&r, s, &e);
    setrlimit(RLIMIT_FSIZE, &all);
    ok(e.code == ST_IO && strstr(msg, "file of layer 0: writing at byte 8192: File too large"), "a full disk: %s", msg);
    attn_seq_free(s);
    rig_close(&r);
}

/* Each system call that makes, writes or reads a file fails in turn. */
static void check_failures(const world *w, const char *store)
{
    bool good = true;
    for (long n = 1; n < 2000; n++) {
        if (tap_leaves_out(n % 7 != 1)) continue;
        rig r;
        attn_seq *s = NULL;
        err e = {0};
        kv_tier t = tier_of("disk:window=8:cache=0");
        static head_rows out[T_LAYERS];
        if (rig_open(&r, "cpu", w, 80, &e) != ST_OK) return;
        tier_test_fail_at(n);
        status st = open_seq(&r, &s, "quest:skip=1:budget=16:page=4:min_pages=1", store, &t, &e);
        if (st == ST_OK) {
            rig_prompt(&r, &s, 1, 40, 20, NULL);
            for (int k = 0; k < 20; k++) rig_decode(&r, &s, 1, out);
            if (attn_seq_rewind(s, attn_seq_length(s) - 12, &e) != ST_OK) e = (err){0}; /* codes */
            for (int k = 0; k < 3; k++) rig_decode(&r, &s, 1, out);
            st = backend_fault(r.be, &e);
        }
        bool left = e.code == ST_OK;
        tier_test_fail_at(0);
        attn_seq_free(s);
        rig_close(&r);
        if (left) {
            ok(good && n > 20, "%s: each failing call before %ld is an error that names the file", store, n);
            return;
        }
        good &= st == ST_IO && strstr(e.msg, "file of layer ") && strstr(e.msg, "Input/output error") &&
                (strstr(e.msg, "byte") || strstr(e.msg, "create it"));
        if (!good) return ok(false, "call %ld: %s", n, e.msg), (void)0;
    }
    ok(false, "%s: calls never end", store);
}

static void check_memory(const world *w)
{
    rig r;
    err e = {0};
    kv_tier t = tier_of("disk:window=8:cache=0");
    oom_run o = {0};
    if (!is_ok(rig_open(&r, "cpu", w, 80, &e), &e, "opened")) return;
    while (oom_next(&o)) {
        attn_seq *s;
        oom_saw(&o, open_seq(&r, &s, "quest:skip=1:budget=16:page=4", "kivi2:g=8:r=16", &t, &o.e), &s);
        attn_seq_free(s);
    }
    oom_ok(&o, 20, "a sequence on disk");
    rig_close(&r);
}

/* ---- what is refused ---- */

static void check_refusals(const world *w)
{
    static const char *const bad[] = {"",
                                      "disc",
                                      "disk:",
                                      "disk:cache=",
                                      "disk:cache=12x",
                                      "disk:window=-1",
                                      "disk:cache=1G:",
                                      "host:/tmp",
                                      "host:",
                                      "device:cache=1",
                                      "disk:cache=99999999999999999999"};
    static const char *const evict[] = {"streaming", "h2o", "snapkv", "tova"};
    rig r;
    err e = {0};
    attn_seq *s;
    kv_tier t;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        e = (err){0};
        ok(kv_tier_parse(&t, bad[i], &e) == ST_USAGE && strstr(e.msg, "--kv-tier"), "'%s' is refused: %s", bad[i],
           e.msg);
    }
    t = tier_of("disk:window=1k:cache=2M:/a/b:c");
    ok(t.kind == KV_DISK && t.window == 1024 && t.cache == 2 << 20 && strcmp(t.dir, "/a/b:c") == 0,
       "all words are read");
    t = tier_of("host:window=8:cache=0");
    ok(t.kind == KV_HOST && t.window == 8 && t.cache == 0, "also after host");
    if (!is_ok(rig_open(&r, "cpu", w, 80, &e), &e, "opened")) return;
    t = tier_of("disk");
    for (size_t i = 0; i < sizeof evict / sizeof *evict; i++) {
        e = (err){0};
        ok(open_seq(&r, &s, evict[i], "f16", &t, &e) == ST_UNSUPPORTED &&
               strstr(e.msg, "it drops tokens, and each step reads all others"),
           "%s", e.msg);
    }
    e = (err){0};
    t = tier_of("disk:/no/such/folder");
    ok(open_seq(&r, &s, "fier:skip=0", "f16", &t, &e) == ST_IO && strstr(e.msg, "No such file"), "%s", e.msg);
    static backend_ops without;
    without = *r.be->ops;
    without.tier = NULL;
    without.host = NULL;
    r.be->ops = &without;
    e = (err){0};
    t = tier_of("disk");
    ok(open_seq(&r, &s, "fier:skip=0", "f16", &t, &e) == ST_UNSUPPORTED && strstr(e.msg, "missing operations: tier"),
       "%s", e.msg);
    e = (err){0};
    t = tier_of("host");
    ok(open_seq(&r, &s, "fier:skip=0", "f16", &t, &e) == ST_UNSUPPORTED && strstr(e.msg, "missing operations: host"),
       "%s", e.msg);
    rig_close(&r);
}

int main(void)
{
    static world w;
    world_fill(&w, 5);
    world_fill(&later, 6);
    /* Small files that no disk is waited for. */
    if (access("/dev/shm", W_OK) == 0) setenv("TMPDIR", "/dev/shm", 1);
    check_bits("cpu", &w);
    check_bits("ref", &w);
    check_batch(&w);
    check_flush(&w);
    check_counts(&w);
    check_host(&w);
    check_files(&w);
    check_failures(&w, "f16");
    check_failures(&w, "kivi2:g=8:r=16");
    check_memory(&w);
    check_refusals(&w);
    return tap_done();
}
