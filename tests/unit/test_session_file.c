/* SPDX-License-Identifier: MIT */
/* Sessions on disk: going on gives the bits of a run that was never interrupted, and no other file is taken. */
#include "config.h"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "kernels/base/temp_file.h"
#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/unit/files.h"
#include "tests/unit/oom.h"
#include "tests/unit/product.h"
#include "tests/unit/session_util.h"

enum { ROWS = 20, SHORT = 160, LONG = 20000 };
static char folder[64], path[80];

/* ---- the same bits ---- */

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

static bool goes(const engine_parts *p, const char *strategy, const char *store, int64_t ctx)
{
    session *s = NULL;
    bool good = session_new(&s, p, strategy, store, ctx, NULL) == ST_OK;
    session_free(s);
    return good;
}

/* Each strategy over one store that it goes with, `full` over all. `fewest`: strategies that the model can have. */
static void check_going_on(const char *name, const char *device, int64_t ctx, int points, int every, int fewest)
{
    engine_parts p, q;
    err e = {0};
    int n = 0;
    if (!is_ok(parts_open(&p, name, device, &e), &e, "%s opens", name)) return;
    is_ok(parts_open(&q, name, device, &e), &e, "and once more");
    for (int i = 1 - N_STORES; i < N_STRATEGIES; i++) {
        const char *strategy = strategies[i < 0 ? 0 : i].spec, *store = NULL;
        err why = {0};
        bool good = true;
        if (i > 0 && i % every) continue;
        for (int k = i + N_STORES; k < i + (i > 0 ? 2 * N_STORES : N_STORES + 1) && !store; k++)
            if (goes(&p, strategy, stores[k % N_STORES], ctx)) store = stores[k % N_STORES];
        n += store != NULL;
        if (!store || tap_leaves_out(i % 3 != 0)) continue;
        for (int at = i & 1; at < points; at += 2) good &= goes_on(&p, &q, strategy, store, ctx, at, &why);
        ok(good, "%s, %s over %s, context %lld: the same bits%s%s", name, strategy, store, (long long)ctx,
           why.msg[0] ? ": " : "", why.msg);
    }
    ok(n >= fewest, "%d strategies and stores", n);
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

/* ---- metadata outside the state ---- */

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
    attn_spec s, t;
    err e = {0};
    bool good = true;
    for (int i = 0; i < N_STRATEGIES; i++)
        for (int k = 0; k < N_STORES; k++) {
            attn_options o = {0};
            kv_format_parse(&o.kv, stores[k], "--kv", NULL);
            if (attn_spec_parse(&s, strategies[i].spec, &o, NULL) != ST_OK || s.two_stores) continue;
            attn_spec_write(&s, text, store);
            good &= attn_spec_read(&t, text, store, &e) == ST_OK && t.method == s.method && t.budget == s.budget &&
                    memcmp(t.value, s.value, sizeof t.value) == 0 && memcmp(&t.skip, &s.skip, sizeof t.skip) == 0 &&
                    t.kv.bits == s.kv.bits && t.kv.type == s.kv.type && t.kv.residual == s.kv.residual;
        }
    ok(good, "a strategy can be read as it was written");
    is_err(attn_spec_read(&s, "full", "f16", &e), &e, ST_FORMAT, "written by this version", "but not otherwise");
}

/* ---- what is refused ---- */

/* A copy of the file at `path` in memory. */
static unsigned char *read_all(size_t *n)
{
    err e = {0};
    char *text = NULL;
    is_ok(file_read(&text, n, path, (size_t)1 << 30, &e), &e, "the file");
    return (unsigned char *)text;
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

/* Each number of a saved state becomes one that it cannot be, under a right checksum: every error about the hash tables
 * of MagicPIG occurs. */
static void check_state(void)
{
    static const char *const errors[] = {"the size of a hash table", "the border of a hash bucket",
                                         "a token in a hash bucket"};
    enum { N_ERRORS = sizeof errors / sizeof *errors };
    engine_parts p;
    err e = {0};
    session *s = NULL;
    static float logits[ROWS * U_VOCAB];
    size_t n, seen[N_ERRORS] = {0};
    is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "model");
    is_ok(session_new(&s, &p, "magicpig:K=3:L=2:sink=3:local=6", "f16", SHORT, &e), &e, "session");
    live(s, 45, 3, logits, &e);
    is_ok(save_plain(s, path, &e), &e, "saved");
    unsigned char *file = read_all(&n);
    session_header h;
    memcpy(&h, file, sizeof h);
    size_t first = SESSION_HEADER + (size_t)session_tables(&h);
    for (size_t i = first; i + 4 <= first + (size_t)h.state_bytes; i += 4) {
        static const int32_t wrong = 0x7ffffff0;
        unsigned char old[4];
        err why = {0};
        memcpy(old, file + i, 4);
        memcpy(file + i, &wrong, 4);
        seal(file, n);
        write_file(path, file, n);
        if (load_plain(s, path, &why) == ST_FORMAT)
            for (size_t k = 0; k < N_ERRORS; k++) seen[k] += strstr(why.msg, errors[k]) != NULL;
        memcpy(file + i, old, 4);
    }
    for (size_t k = 0; k < N_ERRORS; k++) ok(seen[k] > 0, "an error about %s", errors[k]);
    mem_free(file);
    session_free(s);
    parts_close(&p);
}

/* A session that was saved as the first is not loaded as the second. tests/cli/session.t has other models, strategies
 * and sizes. */
static void refuse_as(const engine_parts *p, const char *store, const char *strategy, const char *as, const char *part)
{
    err e = {0};
    session *a = NULL, *b = NULL;
    status st = session_new(&a, p, "quest:budget=24:page=4", store, SHORT, &e);
    if (st == ST_OK) st = session_new(&b, p, strategy, as, SHORT, &e);
    if (st == ST_OK) st = save_plain(a, path, &e);
    is_ok(st, &e, "saved over %s", store);
    is_err(load_plain(b, path, &e), &e, ST_FORMAT, part, "as %s over %s", strategy, as);
    session_free(a);
    session_free(b);
}

/* Headers of another version or machine, whose checksum is right. */
static void check_foreign(void)
{
    static const struct {
        uint32_t version, order;
        const char *part;
    } heads[] = {{SESSION_FILE_VERSION + 1, SESSION_ORDER, "version 6 of session files, expected 5"},
                 {SESSION_FILE_VERSION, 0x04030201u, "another kind of machine"}};
    engine_parts p;
    err e = {0};
    size_t n;
    session *s;
    is_ok(parts_open(&p, "qwen3-bf16", "cpu", &e), &e, "model");
    refuse_as(&p, "f16", "quest:budget=24:page=4:force=none", "f16", "quest with force=last");
    refuse_as(&p, "f16", "quest:budget=24:page=4:force=none", "f16", "expected force=none");
    refuse_as(&p, "q8:rot=k", "quest:budget=24:page=4", "q8:rot=off", "stored as q8:rot=k, expected q8:rot=off");
    is_ok(session_new(&s, &p, "full", "f16", SHORT, &e), &e, "session");
    is_ok(save_plain(s, path, &e), &e, "saved");
    unsigned char *file = read_all(&n);
    session_header *h = (session_header *)(void *)file;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        err why = {0};
        h->version = heads[i].version;
        h->order = heads[i].order;
        seal(file, n);
        write_file(path, file, n);
        is_err(load_plain(s, path, &why), &why, ST_FORMAT, heads[i].part, "a header");
    }
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
        temp_file_test_fail_at(n);
        status st = save_plain(s, path, &why);
        temp_file_test_fail_at(0);
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
    is_int(files_in_folder(), 1, "and no temporary file is left");
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
    check_going_on("llama31-f32-tied", "cpu", SHORT, 4, 1, N_STRATEGIES);
    check_going_on("qwen3-bf16", "cpu", SHORT, 4, 3, N_STRATEGIES / 3);
    check_going_on("mistral-swa-bf16", "cpu", SHORT, 4, 5, N_STRATEGIES / 5);
    check_going_on("llama31-f32-tied", "cpu", LONG, 3, 5, N_STRATEGIES / 5);
    check_going_on("qwen3-bf16", "ref", SHORT, 2, 9, N_STRATEGIES / 9);
    check_mapping();
    check_notes();
    check_specs();
    check_damage();
    check_state();
    check_foreign();
    check_failing_writes();
    unlink(path);
    rmdir(folder);
    return tap_done();
}
