/* SPDX-License-Identifier: MIT */
/* A session file from outside, its sum made right again: whatever is loaded must run. The input is a strategy, a store,
 * a point of a session's life (plus 3: checksums of rows are compared), and bytes of its file that are changed, five
 * bytes each: place, value. A session of each strategy and store is made once and reset. */
#include "config.h"

#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"
#include "tests/unit/session_util.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const strategies[] = {"full",
                                         "streaming:budget=24",
                                         "streaming:budget=24:pos=abs",
                                         "h2o:budget=24:skip=1",
                                         "h2o:budget=24:gqa=per_q",
                                         "snapkv:budget=24",
                                         "tova:budget=24:prefill_evict=chunk",
                                         "quest:skip=0:budget=24:page=4",
                                         "fier:skip=0:budget=20:g=8",
                                         "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0:center=1",
                                         "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31",
                                         "infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31",
                                         "mikv:skip=0:kv=f16",
                                         "tokenselect:sink=3:local=8:window=8:budget=12:reuse=50",
                                         "retroinfer:budget=24:sink=3:local=5:size=4:update=8"};
static const char *const stores[] = {"f16", "kivi2:r=16:g=8", "logquant:r=12:g=4"};
enum {
    N_STRATEGIES = sizeof strategies / sizeof *strategies,
    N_STORES = sizeof stores / sizeof *stores,
    N_POINTS = 3,
    CTX = 64,
    EDIT = 5,
    MOST_EDITS = 8
};

/* A file that was saved, in memory, and under a name. */
typedef struct {
    unsigned char *as_saved, *p;
    size_t bytes, state; /* of all, and up to the rows */
    int fd;
    char path[64];
} sample;

static engine_parts parts;
static sample samples[N_STRATEGIES][N_STORES][N_POINTS];
static session *sessions[N_STRATEGIES][N_STORES];
static float logits[16 * U_VOCAB];

static void make(sample *s, session *live_one, int point)
{
    err e = {0};
    session_header h;
    char tmp[] = "/tmp/fuzz_session.XXXXXX";
    close(mkstemp(tmp));
    session_reset(live_one);
    status st = point > 0 ? live(live_one, 22, 0, logits, &e) : ST_OK;
    if (st == ST_OK && point > 1) st = live(live_one, 17, 5, logits, &e);
    if (st == ST_OK) st = save_plain(live_one, tmp, &e);
    if (st == ST_OK) st = file_read((char **)&s->as_saved, &s->bytes, tmp, (size_t)1 << 28, &e);
    if (st == ST_OK) st = mem_alloc((void **)&s->p, s->bytes, 1, "file", &e);
    if (st != ST_OK) abort();
    unlink(tmp);
    memcpy(&h, s->as_saved, sizeof h);
    memcpy(s->p, s->as_saved, s->bytes);
    s->state = SESSION_HEADER + (size_t)(session_tables(&h) + h.state_bytes);
    s->fd = memfd_create("session", 0);
    snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", s->fd);
    if (write(s->fd, s->p, s->bytes) != (ssize_t)s->bytes) abort();
}

static status load(session *it, const char *path, bool check, err *e)
{
    session_file *f;
    session_notes n;
    TRY(session_file_open(&f, path, e));
    if (!check) session_file_trust(f);
    status st = session_load(it, f, &n, e);
    session_file_close(f);
    return st;
}

static void run(const sample *s, session *it, bool check)
{
    err e = {0};
    static int64_t positions[CTX];
    session_reset(it);
    if (load(it, s->path, check, &e) == ST_OK) {
        attn_seq_held(session_attn(it));
        for (int l = 0; l < 2; l++) {
            int64_t n = attn_seq_positions(session_attn(it), l, 1, positions);
            for (int64_t i = 0; i < n; i++)
                if (positions[i] < 0 || positions[i] >= session_length(it)) abort();
        }
        e = (err){0};
        live(it, 7, 1, logits, &e); /* a context that is full is an error, and so are logits that are no numbers */
    } else if (session_length(it) != 0) {
        abort();
    }
}

/* n bytes from memory to the file. */
static void put(const sample *s, size_t at, size_t n)
{
    if (pwrite(s->fd, s->p + at, n, (off_t)at) != (ssize_t)n) abort();
}

/* Returns the position of a change: as often in the rows as before them. */
static size_t place_of(const sample *s, uint32_t x)
{
    size_t at = x % (2 * s->state);
    return at < s->state ? at : (size_t)(session_align(s->state) + 37 * (at - s->state)) % s->bytes;
}

/* The changed bytes in memory and in the file; changed: as the input says, else as they were saved. */
static void edit(const sample *s, const uint8_t *data, size_t size, bool changed)
{
    for (size_t at = 0; at + EDIT <= size; at += EDIT) {
        uint32_t x;
        memcpy(&x, data + at, sizeof x);
        size_t place = place_of(s, x);
        s->p[place] = changed ? data[at + sizeof x] : s->as_saved[place];
        put(s, place, 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    err e = {0};
    if (size < 3 || size > 3 + EDIT * MOST_EDITS) return 0;
    int i = data[0] % N_STRATEGIES, k = data[1] % N_STORES, point = data[2] % N_POINTS;
    sample *s = &samples[i][k][point];
    session **it = &sessions[i][k];
    if (!parts.be && parts_open(&parts, "llama31-f32-tied", "cpu", &e) != ST_OK) abort();
    if (!*it && session_new(it, &parts, strategies[i], stores[k], CTX, &e) != ST_OK) abort();
    if (!s->p) make(s, *it, point);
    edit(s, data + 3, size - 3, true);
    seal(s->p, s->bytes);
    put(s, 0, SESSION_HEADER);
    run(s, *it, data[2] / N_POINTS % 2 == 1);
    memcpy(s->p, s->as_saved, SESSION_HEADER);
    edit(s, data + 3, size - 3, false);
    put(s, 0, SESSION_HEADER);
    return 0;
}
