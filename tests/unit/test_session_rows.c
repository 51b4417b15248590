/* SPDX-License-Identifier: MIT */
/* Rows of a saved session that are not as they were saved: refused with their place, mapped or copied, whatever the
 * strategy and the store. */
#include "config.h"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "kernels/base/sums.h"
#include "tests/unit/session_util.h"

enum { SHORT = 160, LONG = 20000, STEPS = 4 };

static char path[80];

/* A session that was saved. */
typedef struct {
    session *s;
    unsigned char *file;
    size_t bytes;
    session_header h;
    int fd;
} saved;

static const session_item *item_of(const saved *v, size_t i)
{
    return (const session_item *)(const void *)(v->file + SESSION_HEADER) + i;
}

static uint64_t place_of(const saved *v, const session_item *item, uint64_t piece, uint64_t byte)
{
    return session_rows_at(&v->h) + item->at + piece * item->stride + byte;
}

static bool save_one(saved *v, const engine_parts *p, const char *strategy, const char *store, int64_t ctx)
{
    static float logits[(1 + STEPS) * U_VOCAB];
    err e = {0};
    char *text = NULL;
    *v = (saved){.fd = -1};
    status st = session_new(&v->s, p, strategy, store, ctx, &e);
    if (st == ST_OK) st = live(v->s, 45, STEPS, logits, &e);
    if (st == ST_OK) st = save_plain(v->s, path, &e);
    if (st == ST_OK) st = file_read(&text, &v->bytes, path, (size_t)1 << 30, &e);
    v->file = (unsigned char *)text;
    if (!is_ok(st, &e, "%s over %s, context %lld: saved", strategy, store, (long long)ctx)) return false;
    memcpy(&v->h, v->file, sizeof v->h);
    v->fd = open(path, O_RDWR);
    return true;
}

static void forget(saved *v)
{
    close(v->fd);
    session_free(v->s);
    mem_free(v->file);
}

static void put(const saved *v, uint64_t at, const void *p, size_t n)
{
    if (pwrite(v->fd, p, n, (off_t)at) != (ssize_t)n) abort();
}

/* Gives the file its bytes back. */
static void restore(const saved *v, uint64_t at, size_t n)
{
    put(v, at, v->file + at, n);
}

static void flip(const saved *v, uint64_t at)
{
    unsigned char x = v->file[at] ^ (unsigned char)(1 << at % 8);
    put(v, at, &x, 1);
}

/* Numbers that follow `part` in a text. */
static bool names_place(const char *text, const char *part, uint64_t at)
{
    unsigned long long from, to;
    const char *p = strstr(text, part);
    return p && sscanf(p + strlen(part), "%llu to %llu", &from, &to) == 2 && from <= at && at <= to;
}

/* True if loading fails, and the message names file, rows, layer and a block that has `at`. */
static bool is_refused(const saved *v, const session_item *item, uint64_t at)
{
    err e = {0};
    char where[64];
    snprintf(where, sizeof where, "'%s' of layer %d: bytes ", item->name, (int)item->layer);
    return load_plain(v->s, path, &e) == ST_FORMAT && strstr(e.msg, "session_rows.") && names_place(e.msg, where, at) &&
           session_length(v->s) == 0;
}

/* ---- bits ---- */

/* A bit in the first, a middle and the last byte of the first and the last piece of every entry. */
static void check_bits(const engine_parts *p, const char *strategy, const char *store, int64_t ctx)
{
    saved v;
    err e = {0};
    int tried = 0, bad = 0, entries = 0;
    if (!save_one(&v, p, strategy, store, ctx)) return;
    for (size_t i = 0; i < v.h.n_items; i++) {
        const session_item *x = item_of(&v, i);
        if (x->kind != SESSION_ROWS || x->n == 0 || x->used == 0) continue;
        entries++;
        for (int k = 0; k < 6; k++) {
            uint64_t at = place_of(&v, x, k < 3 ? 0 : x->n - 1, k % 3 * (x->used - 1) / 2);
            flip(&v, at);
            bad += !is_refused(&v, x, at);
            tried++;
            restore(&v, at, 1);
        }
    }
    ok(bad == 0 && entries > 0, "%d bits in %d entries: %d not refused", tried, entries, bad);
    is_ok(load_plain(v.s, path, &e), &e, "and the file as it was is loaded");
    forget(&v);
}

/* ---- places ---- */

/* Pieces that change places, within a layer and between layers. */
static void check_swaps(const engine_parts *p, int64_t ctx)
{
    saved v;
    const session_item *a = NULL, *b = NULL;
    if (!save_one(&v, p, "full", "f16", ctx)) return;
    for (size_t i = 0; i < v.h.n_items; i++) {
        const session_item *x = item_of(&v, i);
        if (x->kind == SESSION_ROWS && (!a || x->layer != a->layer) && !b) *(a ? &b : &a) = x;
    }
    ok(a && b && a->used == b->used && a->n > 1, "two layers and two heads");
    const uint64_t from = place_of(&v, a, 0, 0), to[] = {place_of(&v, a, 1, 0), place_of(&v, b, 0, 0)};
    for (int i = 0; i < 2; i++) {
        put(&v, from, v.file + to[i], a->used);
        put(&v, to[i], v.file + from, a->used);
        ok(is_refused(&v, a, from), "context %lld: rows of two %s swapped", (long long)ctx, i ? "layers" : "heads");
        restore(&v, from, a->used);
        ok(is_refused(&v, i ? b : a, to[i]), "rows of one %s in place of another's", i ? "layer" : "head");
        restore(&v, to[i], a->used);
    }
    forget(&v);
}

/* Unused bytes: the file is loaded and continues with the same bits. */
static void check_padding(const engine_parts *p, int64_t ctx)
{
    saved v;
    err e = {0};
    static float want[(1 + STEPS) * U_VOCAB], got[(1 + STEPS) * U_VOCAB];
    if (!save_one(&v, p, "quest:skip=0:budget=24:page=4", "f16", ctx)) return;
    is_ok(live(v.s, 33, STEPS, want, &e), &e, "continues");
    static unsigned char noise[64];
    memset(noise, 0x5a, sizeof noise);
    uint64_t end = SESSION_HEADER + session_tables(&v.h) + v.h.state_bytes;
    put(&v, end, noise, sizeof noise);
    for (size_t i = 0; i < v.h.n_items; i++) {
        const session_item *x = item_of(&v, i);
        for (uint64_t g = 0; x->kind == SESSION_ROWS && g < x->n && x->stride >= x->used + sizeof noise; g++)
            put(&v, place_of(&v, x, g, x->used), noise, sizeof noise);
    }
    is_ok(load_plain(v.s, path, &e), &e, "context %lld: noise between the rows is no damage", (long long)ctx);
    is_ok(live(v.s, 33, STEPS, got, &e), &e, "continues");
    ok(memcmp(want, got, sizeof want) == 0, "with the same bits");
    forget(&v);
}

/* ---- the table ---- */

static void check_table(const engine_parts *p)
{
    saved v;
    err e = {0};
    if (!save_one(&v, p, "full", "f16", SHORT)) return;
    session_header *h = (session_header *)(void *)v.file;
    uint64_t *sum = (uint64_t *)(void *)(v.file + SESSION_HEADER + v.h.n_items * sizeof(session_item));
    sum[v.h.n_sums - 1]++;
    seal(v.file, v.bytes);
    put(&v, 0, v.file, v.bytes);
    is_err(load_plain(v.s, path, &e), &e, ST_FORMAT, "fail their checksum", "another checksum, sealed again");
    sum[v.h.n_sums - 1]--;
    static const struct {
        uint32_t version;
        int more;
        const char *part;
    } heads[] = {{SESSION_FILE_VERSION, -1, "damaged"},
                 {SESSION_FILE_VERSION, 1, "damaged"},
                 {SESSION_FILE_VERSION, -2, "damaged"},
                 {SESSION_FILE_UNSUMMED, 0, "checksums and"},
                 {SESSION_FILE_UNSUMMED - 1, 0, "version 3 of session files, expected 5"}};
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        e = (err){0};
        h->version = heads[i].version;
        h->n_sums = heads[i].more == -2 ? 0 : v.h.n_sums + (uint64_t)heads[i].more;
        seal(v.file, v.bytes);
        put(&v, 0, v.file, v.bytes);
        is_err(load_plain(v.s, path, &e), &e, ST_FORMAT, heads[i].part, "version %u with %llu checksums",
               (unsigned)h->version, (unsigned long long)h->n_sums);
    }
    forget(&v);
}

/* A file as version 4 has it: without the table. */
static void check_version4(const engine_parts *p)
{
    saved v;
    err e = {0};
    session_file *f = NULL;
    session_notes n;
    static float want[(1 + STEPS) * U_VOCAB], got[(1 + STEPS) * U_VOCAB];
    if (!save_one(&v, p, "fier:skip=0:budget=20:g=8", "f16", SHORT)) return;
    is_ok(live(v.s, 33, STEPS, want, &e), &e, "continues");
    session_header h = v.h;
    uint64_t list = SESSION_HEADER + h.n_items * sizeof(session_item), rows = session_rows_at(&v.h);
    h.version = SESSION_FILE_UNSUMMED;
    h.n_sums = 0;
    h.file_bytes = session_rows_at(&h) + (v.bytes - rows);
    memmove(v.file + list, v.file + SESSION_HEADER + session_tables(&v.h), h.state_bytes);
    memcpy(v.file, &h, sizeof h);
    seal(v.file, v.bytes);
    if (ftruncate(v.fd, 0) != 0) abort();
    put(&v, 0, v.file, list + h.state_bytes);
    put(&v, session_rows_at(&h), v.file + rows, v.bytes - rows);
    is_ok(session_file_open(&f, path, &e), &e, "a file of version 4");
    if (f) is_ok(session_load(v.s, f, &n, &e), &e, "is loaded");
    ok(f && !session_file_summed(f), "and known to have no checksums of rows");
    session_file_close(f);
    is_ok(live(v.s, 33, STEPS, got, &e), &e, "continues");
    ok(memcmp(want, got, sizeof want) == 0, "with the same bits");
    forget(&v);
}

/* ---- trust ---- */

static void check_trust(const engine_parts *p, int64_t ctx)
{
    saved v;
    err e = {0};
    session_notes n;
    session_file *f = NULL;
    size_t i = 0;
    if (!save_one(&v, p, "full", "f16", ctx)) return;
    while (item_of(&v, i)->kind != SESSION_ROWS) i++;
    is_ok(session_file_open(&f, path, &e), &e, "opened");
    is_ok(session_load(v.s, f, &n, &e), &e, "and loaded");
    flip(&v, place_of(&v, item_of(&v, i), 0, 0));
    is_ok(session_load(v.s, f, &n, &e), &e, "context %lld: a file that was checked is not read again", (long long)ctx);
    session_file_close(f);
    is_ok(session_file_open(&f, path, &e), &e, "opened");
    is_err(session_load(v.s, f, &n, &e), &e, ST_FORMAT, "checksum", "and refused");
    session_file_trust(f);
    e = (err){0};
    is_ok(session_load(v.s, f, &n, &e), &e, "without a check it is loaded");
    session_file_close(f);
    restore(&v, 0, SESSION_HEADER);
    flip(&v, SESSION_HEADER + 3);
    e = (err){0};
    is_err(session_file_open(&f, path, &e), &e, ST_FORMAT, "damaged: checksum", "the tables are checked in any case");
    forget(&v);
}

static void check_model(const char *name, const char *device, const char *const (*list)[2], size_t n, int64_t ctx)
{
    engine_parts p;
    err e = {0};
    if (is_ok(parts_open(&p, name, device, &e), &e, "%s on %s", name, device))
        for (size_t i = 0; i < n; i++)
            if (!tap_leaves_out(i % 3 != 0)) check_bits(&p, list[i][0], list[i][1], ctx);
    parts_close(&p);
}

int main(void)
{
    static const char *const all[][2] = {{"full", "f16"},
                                         {"full", "kivi2:r=16:g=8"},
                                         {"h2o:budget=24", "logquant:r=12:g=4"},
                                         {"quest:skip=0:budget=24:page=4", "bf16"},
                                         {"fier:skip=0:budget=20:g=8", "f32"},
                                         {"pqcache:budget=20:sink=4:bits=3:p=0.7:min=1", "f16"},
                                         {"pariskv:budget=6:sink=4:local=8:u=5:full_thr=0", "f16"},
                                         {"retroinfer:budget=24:sink=3:local=5:size=4:update=8", "f16"},
                                         {"magicpig:K=3:L=12:sink=3:local=6:skip=0", "f16"},
                                         {"h2o:budget=24:demote=token2", "f16"}};
    static const char *const blocks[][2] = {{"full", "q8"}, {"quest:budget=24:page=4", "q4:rot=k"}};
    engine_parts p;
    err e = {0};
    snprintf(path, sizeof path, "%s/session_rows.XXXXXX", access("/dev/shm", W_OK) == 0 ? "/dev/shm" : ".");
    int fd = mkstemp(path);
    if (fd < 0) return 1;
    close(fd);
    check_model("llama31-f32-tied", "cpu", all, sizeof all / sizeof *all, SHORT);
    check_model("llama31-f32-tied", "cpu", all, sizeof all / sizeof *all, LONG);
    check_model("llama31-f32-tied", "ref", all, 1, SHORT);
    check_model("qwen3-bf16", "cpu", blocks, sizeof blocks / sizeof *blocks, SHORT);
    if (is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "model")) {
        for (int i = 0; i < 2; i++) check_swaps(&p, i ? LONG : SHORT);
        for (int i = 0; i < 2; i++) check_padding(&p, i ? LONG : SHORT);
        for (int i = 0; i < 2; i++) check_trust(&p, i ? LONG : SHORT);
        check_table(&p);
        check_version4(&p);
    }
    parts_close(&p);
    unlink(path);
    return tap_done();
}
