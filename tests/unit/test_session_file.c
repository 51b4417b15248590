/* SPDX-License-Identifier: MIT */
/* Sessions on disk: going on gives the bits of a run that was never interrupted, and no other file is taken. */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/draft.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/unit/oom.h"
#include "tests/unit/session_util.h"

enum { ROWS = 20, SHORT = 160, LONG = 20000 };
static char folder[64], path[80];

/* ---- the same bits ---- */

static const char *const strategies[] = {
    "full",
    "streaming:budget=24",
    "streaming:budget=24:pos=abs:prefill=banded",
    "streaming:budget=24:compat=kvfactory",
    "h2o:budget=24",
    "h2o:budget=24:pos=rank:gqa=per_q:skip=1",
    "h2o:budget=24:mode=oneshot:norm=count",
    "h2o:budget=24:prefill_evict=chunk",
    "snapkv:budget=24",
    "snapkv:budget=24:recompress_on_turn=1:skip=1",
    "tova:budget=24",
    "tova:budget=24:gqa=mean_s:prefill_evict=chunk",
    "h2o:budget=24:demote=token2",
    "tova:budget=24:demote=f16:gqa=mean_s",
    "tova:budget=24:demote=kivi4:demote_g=4",
    "h2o:budget=24:demote=token4:recall=5",
    "streaming:budget=24:demote=kivi2:demote_g=4",
    "streaming:budget=24:demote=token2:compat=kvfactory",
    "mikv:budget=24",
    "mikv:budget=20:bits=4:skip=1",
    "snapkv:budget=24:demote=token4:recall=0:recompress_on_turn=1",
    "oracle:skip=1:budget=24",
    "quest:skip=0:budget=24:page=4",
    "quest:skip=0:budget=24:page=4:score=mean",
    "quest:skip=1:budget=24:page=4:score=est:g=8",
    "fier:skip=0:budget=20:g=8",
    "fier:skip=0:budget=20:g=8:tail=sample:5:tail_seed=7",
    "fier:skip=1:budget=20:g=8:open=window:score=int8",
    "quest:skip=0:budget=12:page=4:coarse=8:coarse_keep=1",
    "fier:skip=0:budget=12:g=8:coarse=8:coarse_keep=1",
    "codes:budget=24:skip=1:kv=kivi4/r=16/g=8",
    "codes:budget=24:skip=0:gqa=per_q:kv=logquant/r=12/g=4",
#ifndef ON_CUDA /* no such ops */
    "codes:certify=0.2:min=2:skip=0:kv=kivi4/r=16/g=8",
#endif
    "pqcache:budget=20:sink=4:bits=3:p=0.7:min=1",
    "pqcache:budget=20:sink=4:bits=2:m=4:retrain=1:skip=1",
    "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0",
    "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0:center=1:skip=1",
    "retroinfer:budget=24:sink=3:local=5:size=4:update=8",
    "retroinfer:budget=24:sink=3:local=5:size=4:update=8:est=60:skip=1",
    "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31",
    "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31:pool_prefill=1",
    "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31:choose=random",
    "infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31",
    "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31:question=4",
    "tokenselect:sink=3:local=8:window=8:budget=12",
    "tokenselect:sink=3:local=8:window=8:budget=12:reuse=50:pool=3:skip=0+2",
    "magicpig:K=3:L=12:sink=3:local=6:skip=0",
    "magicpig:K=5:L=30:sink=0:local=0:flush=3:skip=1",
    "kivi:bits=2:r=16:g=8",
    "logquant:bits=4:r=12:g=4",
    "logquant:r=24",
};
static const char *const stores[] = {"f16",
                                     "bf16",
                                     "f32",
                                     "kivi2:r=16:g=8",
                                     "kivi4:r=16:g=8:key_residual=slide:sink_fp=3:rows=bf16",
                                     "logquant:r=12:g=4",
                                     "logquant4:r=24:g=8"};
enum { N_STRATEGIES = sizeof strategies / sizeof *strategies, N_STORES = sizeof stores / sizeof *stores };

static bool same_counts(const session *a, const session *b)
{
    attn_stats x = attn_seq_stats(session_attn(a)), y = attn_seq_stats(session_attn(b));
    attn_bytes h = attn_seq_held(session_attn(a)), i = attn_seq_held(session_attn(b));
    attn_bytes p = attn_seq_peak(session_attn(a)), q = attn_seq_peak(session_attn(b));
    return memcmp(&x, &y, sizeof x) == 0 && memcmp(&h, &i, sizeof h) == 0 && memcmp(&p, &q, sizeof p) == 0;
}

/* One life, saved at a point of it: before anything, after its first prompt, after some more, or after going back where
 * that is possible. */
static bool goes_on(const engine_parts *p, const engine_parts *other, const char *strategy, const char *store,
                    int64_t ctx, int point, err *e)
{
    static float want[ROWS][U_VOCAB], got[ROWS][U_VOCAB];
    session *a = NULL, *b = NULL;
    status st = session_new(&a, p, strategy, store, ctx, e);
    if (st == ST_OK) st = session_new(&b, other, strategy, store, ctx, e);
    if (st == ST_OK && point > 0) st = live(a, 45, 0, want[0], e);
    if (st == ST_OK && point > 1) st = live(a, 11, 7, want[0], e);
    if (st == ST_OK && point > 2) session_rewind(a, session_length(a) - 3, NULL);
    if (st == ST_OK) st = save_plain(a, path, e);
    if (st == ST_OK && point > 1) st = live(b, 5, 2, got[0], e); /* what was there before is forgotten */
    if (st == ST_OK) st = load_plain(b, path, e);
    bool same = st == ST_OK && session_length(a) == session_length(b) && same_counts(a, b);
    memset(want, 0, sizeof want);
    memset(got, 0, sizeof got);
    if (st == ST_OK) st = live(a, 33, 6, want[0], e);
    if (st == ST_OK) st = live(a, 4, 9, want[8], e);
    if (st == ST_OK) st = live(b, 33, 6, got[0], e);
    if (st == ST_OK) st = live(b, 4, 9, got[8], e);
    same = same && st == ST_OK && memcmp(want, got, sizeof want) == 0 && same_counts(a, b);
    session_free(a);
    session_free(b);
    return same;
}

/* Rows in blocks, which need a head_dim of 32 at least. */
static void check_blocks(const char *name)
{
    static const char *const over[] = {"full", "h2o:budget=24", "quest:budget=24:page=4",
                                       "tokenselect:sink=3:local=8:window=8:budget=12", "codes:budget=24"};
    static const char *const blocks[] = {"q8", "q4:rot=k", "q8:rot=off", "q4", "q8"};
    engine_parts p, q;
    err e = {0};
    if (!is_ok(parts_open(&p, name, "cpu", &e), &e, "%s opens", name)) return;
    is_ok(parts_open(&q, name, "cpu", &e), &e, "and once more");
    for (size_t i = 0; i < sizeof over / sizeof *over; i++) {
        err why = {0};
        bool good = true;
        for (int at = 0; at < 4; at++) good &= goes_on(&p, &q, over[i], blocks[i], SHORT, at, &why);
        ok(good, "%s, %s over %s: the same bits%s%s", name, over[i], blocks[i], why.msg[0] ? ": " : "", why.msg);
    }
    session *a = NULL, *b = NULL;
    status st = session_new(&a, &p, "full", "q8:rot=k", SHORT, &e);
    if (st == ST_OK) st = session_new(&b, &p, "full", "q8:rot=off", SHORT, &e);
    if (st == ST_OK) st = save_plain(a, path, &e);
    is_ok(st, &e, "saved over q8:rot=k");
    is_err(load_plain(b, path, &e), &e, ST_FORMAT, "held as q8:rot=k, expected q8:rot=off",
           "is not loaded over q8:rot=off");
    session_free(a);
    session_free(b);
    parts_close(&q);
    parts_close(&p);
}

static void check_going_on(const char *name, const char *device, int64_t ctx, size_t n_stores, int points)
{
    engine_parts p, q;
    err e = {0};
    if (!is_ok(parts_open(&p, name, device, &e), &e, "%s opens", name)) return;
    is_ok(parts_open(&q, name, device, &e), &e, "and once more");
    for (size_t i = 0; i < N_STRATEGIES; i++)
        for (size_t k = 0; k < n_stores; k++) {
            if (tap_leaves_out((i + k) % 3 != 0)) continue;
            bool own = strncmp(strategies[i], "kivi", 4) == 0 || strncmp(strategies[i], "logq", 4) == 0;
            own |= strncmp(strategies[i], "oracle", 6) == 0; /* exact keys */
            err why = {0};
            bool good = true;
            own |= strstr(strategies[i], ":kv=") != NULL;
            if ((own || strstr(strategies[i], "demote") || strstr(strategies[i], "mikv")) && k > 2)
                continue; /* no other store with codes */
            for (int at = k == 0 ? 0 : 2; at < points; at++)
                good &= goes_on(&p, &q, strategies[i], stores[k], ctx, at, &why);
            ok(good, "%s, %s over %s, context %lld: the same bits%s%s", name, strategies[i], stores[k], (long long)ctx,
               why.msg[0] ? ": " : "", why.msg);
        }
    parts_close(&q);
    parts_close(&p);
}

/* ---- mapping ---- */

static struct {
    backend_ops ops;
    const backend_ops *real;
    size_t mapped;
} spy;

static bool spy_map(backend *be, buf b, size_t bytes, int fd, uint64_t offset)
{
    bool did = spy.real->map_file(be, b, bytes, fd, offset);
    spy.mapped += did ? bytes : 0;
    return did;
}

/* Rows of long contexts are mapped; a backend that cannot has them uploaded, with the same result. */
static void check_mapping(void)
{
    engine_parts p, q;
    err e = {0};
    is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "model");
    is_ok(parts_open(&q, "llama31-f32-tied", "cpu", &e), &e, "once more");
    spy.real = q.be->ops;
    spy.ops = *spy.real;
    spy.ops.map_file = spy_map;
    q.be->ops = &spy.ops;
    ok(goes_on(&p, &q, "quest:skip=0:budget=24:page=4", "f16", LONG, 2, &e), "mapped rows give the same bits");
    is_int((long long)spy.mapped, 4LL * LONG * 2 * 16 * 2, "K and V of both layers were mapped");
    spy.ops.map_file = NULL;
    ok(goes_on(&p, &q, "quest:skip=0:budget=24:page=4", "f16", LONG, 2, &e), "and so do uploaded ones");
    struct stat s;
    ok(stat(path, &s) == 0 && s.st_size > 4 * LONG * 64 && s.st_blocks < s.st_size / 512 / 4,
       "the file has room for the context, and takes the disk of what is in it");
    is_int(s.st_mode & 0777, 0600, "the file is the user's alone");
    parts_close(&q);
    parts_close(&p);
}

/* ---- what is beside the state ---- */

static void check_notes(void)
{
    engine_parts p;
    err e = {0};
    session *s = NULL;
    session_file *f = NULL;
    session_notes n;
    float logits[2][U_VOCAB];
    int32_t ids[11];
    for (int i = 0; i < 11; i++) ids[i] = some_id(i);
    is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "model");
    is_ok(session_new(&s, &p, "full", "f16", SHORT, &e), &e, "session");
    live(s, 10, 0, logits[0], &e);
    session_notes with = {.ids = ids, .n_ids = 10, .logits = logits[0], .random = 0x123456789abcdef0u};
    is_ok(session_save(s, path, &with, &e), &e, "saved with logits");
    is_ok(session_file_open(&f, path, &e), &e, "opened");
    is_ok(session_load(s, f, &n, &e), &e, "loaded");
    ok(n.n_ids == 10 && memcmp(n.ids, ids, 10 * sizeof *ids) == 0, "token ids");
    ok(n.logits && memcmp(n.logits, logits[0], sizeof logits[0]) == 0, "logits");
    ok(n.random == with.random, "random state");
    is_int(session_file_context(f), SHORT, "context");
    ok(strcmp(session_file_strategy(f), "full:skip=0") == 0, "strategy");
    ok(strcmp(session_file_store(f), "f16") == 0, "store");
    session_file_close(f);
    is_ok(session_save(s, path, &(session_notes){.ids = ids, .n_ids = 11}, &e), &e, "with a token that is not fed");
    is_ok(session_file_open(&f, path, &e), &e, "opened");
    is_ok(session_load(s, f, &n, &e), &e, "loaded");
    ok(n.n_ids == 11 && !n.logits, "which needs no logits");
    session_file_close(f);
    err bad = {0};
    is_ok(session_save(s, path, &(session_notes){.ids = ids, .n_ids = 10}, &e), &e, "neither");
    is_err(load_plain(s, path, &bad), &bad, ST_FORMAT, "10 token ids for 10 tokens", "is refused");
    int32_t half[8] = {0};
    prefill_options o = {.after = 8};
    is_int(session_length(s), 0, "and leaves the session empty");
    is_ok(session_prefill(&s, 1, half, 8, &o, &e), &e, "half a prompt");
    bad = (err){0};
    is_err(save_plain(s, path, &bad), &bad, ST_UNSUPPORTED, "in the middle of a prompt", "cannot be saved");
    session_free(s);
    parts_close(&p);
}

static void check_specs(void)
{
    char text[ATTN_WRITTEN], store[128];
    bool good = true;
    for (size_t i = 0; i < N_STRATEGIES; i++)
        for (size_t k = 0; k < N_STORES; k++) {
            attn_spec s, t;
            attn_options o = {0};
            err e = {0};
            kv_format_parse(&o.kv, stores[k], "--kv", &e);
            if (attn_spec_parse(&s, strategies[i], &o, &e) != ST_OK || s.two_stores) continue;
            attn_spec_write(&s, text, store);
            good &= attn_spec_read(&t, text, store, &e) == ST_OK && t.method == s.method && t.budget == s.budget &&
                    memcmp(t.value, s.value, sizeof t.value) == 0 && memcmp(&t.skip, &s.skip, sizeof t.skip) == 0 &&
                    t.kv.bits == s.kv.bits && t.kv.type == s.kv.type && t.kv.residual == s.kv.residual;
        }
    ok(good, "a strategy can be read as it was written");
    attn_spec s;
    err e = {0};
    is_err(attn_spec_read(&s, "full", "f16", &e), &e, ST_FORMAT, "as this version writes it", "but not otherwise");
}

/* ---- what is refused ---- */

/* A copy of the file at `path` in memory, and one of memory in the file. */
static unsigned char *read_all(size_t *n)
{
    err e = {0};
    char *text = NULL;
    is_ok(file_read(&text, n, path, (size_t)1 << 30, &e), &e, "the file");
    return (unsigned char *)text;
}

static void write_all(const unsigned char *p, size_t n)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
    if (write(fd, p, n) != (ssize_t)n) abort();
    close(fd);
}

static bool is_refused(session *s, status want)
{
    err e = {0};
    return load_plain(s, path, &e) == want && strstr(e.msg, "session_file.") && session_length(s) == 0;
}

static void check_damage(void)
{
    engine_parts p;
    err e = {0};
    session *s = NULL;
    static float logits[ROWS * U_VOCAB];
    size_t n;
    is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "model");
    is_ok(session_new(&s, &p, "h2o:budget=24", "kivi2:r=16:g=8", SHORT, &e), &e, "session");
    live(s, 45, 3, logits, &e);
    is_ok(save_plain(s, path, &e), &e, "saved");
    unsigned char *file = read_all(&n);
    session_header h;
    memcpy(&h, file, sizeof h);
    size_t state = SESSION_HEADER + (size_t)(session_tables(&h) + h.state_bytes);
    session_reset(s);
    /* One by one in place, which is quicker than whole files. */
    int fd = open(path, O_RDWR);
    size_t bad = 0;
    for (size_t i = 0; i < state; i++) {
        unsigned char x = file[i] ^ (unsigned char)(1 << i % 8);
        if (pwrite(fd, &x, 1, (off_t)i) != 1 || !is_refused(s, ST_FORMAT)) bad++;
        if (pwrite(fd, &file[i], 1, (off_t)i) != 1) bad++;
    }
    is_int((long long)bad, 0, "each of %zu bytes of header, directory, checksums and state, damaged, is refused",
           state);
    is_ok(load_plain(s, path, &e), &e, "the file as it was is not");
    session_reset(s);
    bad = 0;
    const size_t cuts[] = {0,
                           1,
                           15,
                           100,
                           SESSION_HEADER - 1,
                           SESSION_HEADER,
                           SESSION_HEADER + 1,
                           state - 1,
                           state,
                           SESSION_ALIGN,
                           SESSION_ALIGN + 1,
                           n / 2,
                           n - SESSION_ALIGN,
                           n - 1,
                           n + 1,
                           n + SESSION_ALIGN};
    for (size_t i = 0; i < sizeof cuts / sizeof *cuts; i++)
        if (ftruncate(fd, (off_t)cuts[i]) != 0 || pwrite(fd, file, cuts[i] < n ? cuts[i] : n, 0) < 0 ||
            !is_refused(s, ST_FORMAT))
            bad++;
    is_int((long long)bad, 0, "files of another length are refused");
    close(fd);
    unlink(path);
    ok(is_refused(s, ST_IO), "a file that is not there");
    mkdir(path, 0700);
    ok(is_refused(s, ST_IO), "a folder");
    err why = {0};
    live(s, 5, 0, logits, &e);
    is_err(save_plain(s, path, &why), &why, ST_IO, "not a regular file", "nor is a session put in its place");
    rmdir(path);
    mem_free(file);
    session_free(s);
    parts_close(&p);
}

/* A session that was saved as the first is not loaded as the second. */
static void refuse_as(const engine_parts *p, const char *strategy, const char *store, int64_t ctx, const char *part)
{
    err e = {0}, why = {0};
    session *a = NULL, *b = NULL;
    static float logits[U_VOCAB];
    is_ok(session_new(&a, p, "quest:budget=24:page=4", "f16", SHORT, &e), &e, "session");
    is_ok(session_new(&b, p, strategy, store, ctx, &e), &e, "%s", strategy);
    live(a, 12, 0, logits, &e);
    is_ok(save_plain(a, path, &e), &e, "saved");
    is_err(load_plain(b, path, &why), &why, ST_FORMAT, part, "as %s over %s", strategy, store);
    ok(strstr(why.msg, "session_file.") != NULL, "the message names the file");
    session_free(a);
    session_free(b);
}

static void check_foreign(void)
{
    engine_parts p, q;
    err e = {0};
    is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "model");
    refuse_as(&p, "full", "f16", SHORT, "strategy 'quest', expected 'full'");
    refuse_as(&p, "quest:budget=24:page=4:force=none", "f16", SHORT, "quest with force=last");
    refuse_as(&p, "quest:budget=24:page=4:force=none", "f16", SHORT, "expected force=none");
    refuse_as(&p, "quest:budget=24:page=4", "bf16", SHORT, "held as f16, expected bf16");
    refuse_as(&p, "quest:budget=24:page=4", "f16", SHORT + 1, "context of 160 tokens, expected 161");
    is_ok(parts_open(&q, "qwen2-f16", "cpu", &e), &e, "another model");
    refuse_as(&p, "full", "f16", SHORT, "strategy");
    session *s;
    err why = {0};
    is_ok(session_new(&s, &q, "quest:budget=24:page=4", "f16", SHORT, &e), &e, "session of another model");
    is_err(load_plain(s, path, &why), &why, ST_FORMAT, "another model", "is refused");
    session_free(s);
    parts_close(&q);
    decoder_free(p.dec);
    decoder_options opt = {.chunk = 32, .exact = true};
    is_ok(decoder_create(&p.dec, p.m, &opt, &e), &e, "other chunks");
    is_ok(session_new(&s, &p, "quest:budget=24:page=4", "f16", SHORT, &e), &e, "session");
    why = (err){0};
    is_err(load_plain(s, path, &why), &why, ST_FORMAT, "--chunk 16, expected 32", "are refused");
    /* A header of another version or machine, whose sum is right. */
    size_t n;
    unsigned char *file = read_all(&n);
    session_header *h = (session_header *)(void *)file;
    h->version++;
    seal(file, n);
    write_all(file, n);
    why = (err){0};
    is_err(load_plain(s, path, &why), &why, ST_FORMAT, "version 6 of session files, expected 5", "a later version");
    h->version--;
    h->order = 0x04030201u;
    seal(file, n);
    write_all(file, n);
    why = (err){0};
    is_err(load_plain(s, path, &why), &why, ST_FORMAT, "another kind of machine", "another byte order");
    mem_free(file);
    session_free(s);
    parts_close(&p);
}

/* ---- failing writes ---- */

static int files_in_folder(void)
{
    char cmd[128];
    snprintf(cmd, sizeof cmd, "ls -A %s | wc -l", folder);
    FILE *f = popen(cmd, "r");
    int n = -1;
    if (f && fscanf(f, "%d", &n) != 1) n = -1;
    if (f) pclose(f);
    return n;
}

static void check_failing_writes(void)
{
    engine_parts p;
    err e = {0};
    session *s = NULL;
    static float logits[ROWS * U_VOCAB];
    is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "model");
    is_ok(session_new(&s, &p, "snapkv:budget=24", "f16", SHORT, &e), &e, "session");
    live(s, 45, 3, logits, &e);
    unlink(path);
    bool good = true;
    for (long n = 1;; n++) {
        err why = {0};
        file_draft_test_fail_at(n);
        status st = save_plain(s, path, &why);
        file_draft_test_fail_at(0);
        if (st == ST_OK && n > 1) { /* the first is made up for: it asks for a file without a name */
            ok(good && n > 8, "each of %ld failing calls is an error, and leaves nothing", n - 1);
            break;
        }
        if (n > 1) good &= st == ST_IO && strstr(why.msg, "session_file.") && access(path, F_OK) != 0;
        unlink(path);
    }
    is_ok(save_plain(s, path, &e), &e, "saved");
    size_t n;
    unsigned char *before = read_all(&n);
    signal(SIGXFSZ, SIG_IGN);
    struct rlimit old, small;
    getrlimit(RLIMIT_FSIZE, &old);
    good = true;
    for (size_t most = 0; most < n; most += n / 40) {
        err why = {0};
        small = (struct rlimit){most, old.rlim_max};
        setrlimit(RLIMIT_FSIZE, &small);
        status st = save_plain(s, path, &why);
        setrlimit(RLIMIT_FSIZE, &old);
        good &= st == ST_IO && strstr(why.msg, "byte") && strstr(why.msg, "File too large");
    }
    size_t m;
    unsigned char *after = read_all(&m);
    ok(good, "a file that may not grow is an error that names the byte");
    ok(n == m && memcmp(before, after, n) == 0, "the session that was there stays");
    is_int(files_in_folder(), 1, "and nothing is left beside it");
    mem_free(before);
    mem_free(after);
    oom_run o = {0};
    while (oom_next(&o)) {
        status st = save_plain(s, path, &o.e);
        if (st == ST_OK) st = load_plain(s, path, &o.e);
        oom_saw(&o, st, NULL);
        if (st == ST_OK) break;
        session_reset(s);
        live(s, 45, 3, logits, &e);
    }
    oom_ok(&o, 5, "saving and loading");
    session_free(s);
    parts_close(&p);
}

int main(void)
{
    /* Memory where there is some: every session waits for the disk. */
    snprintf(folder, sizeof folder, "%s/session_file.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".");
    if (!mkdtemp(folder)) return 1;
    snprintf(path, sizeof path, "%s/a.kv", folder);
    check_going_on("llama31-f32-tied", "cpu", SHORT, N_STORES, 4);
    check_going_on("mistral-swa-bf16", "cpu", SHORT, 2, 4);
    check_going_on("llama31-f32-tied", "cpu", LONG, 1, 3);
    check_going_on("qwen3-bf16", "ref", SHORT, 1, 2);
    check_blocks("qwen3-bf16");
    check_mapping();
    check_notes();
    check_specs();
    check_damage();
    check_foreign();
    check_failing_writes();
    unlink(path);
    rmdir(folder);
    return tap_done();
}
