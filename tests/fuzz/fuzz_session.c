/* SPDX-License-Identifier: MIT */
/* A session file from outside, its sum made right again: whatever is loaded must run. The input is a strategy, a store,
 * a point of a session's life, and bytes of its file that are changed, five bytes each: place, value. */
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
                                         "streaming:budget=24:compat=kvfactory",
                                         "h2o:budget=24:skip=1",
                                         "h2o:budget=24:pos=rank:gqa=per_q",
                                         "snapkv:budget=24",
                                         "tova:budget=24:prefill_evict=chunk",
                                         "quest:skip=0:budget=24:page=4:pool=entropy",
                                         "fier:skip=0:budget=20:g=8",
                                         "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0:center=1",
                                         "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31"};
static const char *const stores[] = {"f16", "kivi2:r=16:g=8", "logquant:r=12:g=4"};
enum {
    N_STRATEGIES = sizeof strategies / sizeof *strategies,
    N_STORES = sizeof stores / sizeof *stores,
    N_POINTS = 3,
    CTX = 100,
    EDIT = 5,
    MORE = 1u << 31 /* of a place: the next change belongs to the same file */
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
static float logits[16 * U_VOCAB];

static void make(sample *s, const char *strategy, const char *store, int point)
{
    err e = {0};
    session *live_one;
    session_header h;
    char tmp[] = "/tmp/fuzz_session.XXXXXX";
    close(mkstemp(tmp));
    if (!parts.be && parts_open(&parts, "llama31-f32-tied", "cpu", &e) != ST_OK) abort();
    status st = session_new(&live_one, &parts, strategy, store, CTX, &e);
    if (st == ST_OK && point > 0) st = live(live_one, 22, 0, logits, &e);
    if (st == ST_OK && point > 1) st = live(live_one, 27, 5, logits, &e);
    if (st == ST_OK) st = save_plain(live_one, tmp, &e);
    if (st == ST_OK) st = file_read((char **)&s->as_saved, &s->bytes, tmp, (size_t)1 << 28, &e);
    if (st == ST_OK) st = mem_alloc((void **)&s->p, s->bytes, 1, "file", &e);
    if (st != ST_OK) abort();
    session_free(live_one);
    unlink(tmp);
    memcpy(&h, s->as_saved, sizeof h);
    memcpy(s->p, s->as_saved, s->bytes);
    s->state = SESSION_HEADER + (size_t)(h.n_items * sizeof(session_item) + h.state_bytes);
    s->fd = memfd_create("session", 0);
    snprintf(s->path, sizeof s->path, "/proc/self/fd/%d", s->fd);
    if (write(s->fd, s->p, s->bytes) != (ssize_t)s->bytes) abort();
}

static void run(const sample *s, const char *strategy, const char *store)
{
    err e = {0};
    session *it;
    static int64_t positions[CTX];
    if (session_new(&it, &parts, strategy, store, CTX, &e) != ST_OK) abort();
    if (load_plain(it, s->path, &e) == ST_OK) {
        attn_seq_held(session_attn(it));
        for (int l = 0; l < 2; l++) {
            int64_t n = attn_seq_positions(session_attn(it), l, 1, positions);
            for (int64_t i = 0; i < n; i++)
                if (positions[i] < 0 || positions[i] >= session_length(it)) abort();
        }
        e = (err){0};
        live(it, 17, 6, logits, &e); /* a context that is full is an error, and so are logits that are no numbers */
    } else if (session_length(it) != 0) {
        abort();
    }
    session_free(it);
}

/* n bytes from memory to the file. */
static void put(const sample *s, size_t at, size_t n)
{
    if (pwrite(s->fd, s->p + at, n, (off_t)at) != (ssize_t)n) abort();
}

/* Where a change lies: as often in the rows as before them. */
static size_t place_of(const sample *s, uint32_t x)
{
    size_t at = (x & ~(uint32_t)MORE) % (2 * s->state);
    return at < s->state ? at : (size_t)(session_align(s->state) + 37 * (at - s->state)) % s->bytes;
}

static void restore(const sample *s, const uint8_t *data, size_t size)
{
    memcpy(s->p, s->as_saved, s->bytes);
    for (size_t at = 0; at + EDIT <= size; at += EDIT) {
        uint32_t x;
        memcpy(&x, data + at, sizeof x);
        put(s, place_of(s, x), 1);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 3) return 0;
    int i = data[0] % N_STRATEGIES, k = data[1] % N_STORES, point = data[2] % N_POINTS;
    sample *s = &samples[i][k][point];
    if (!s->p) make(s, strategies[i], stores[k], point);
    for (size_t at = 3, from = 3; at + EDIT <= size; at += EDIT) {
        uint32_t x;
        memcpy(&x, data + at, sizeof x);
        s->p[place_of(s, x)] = data[at + sizeof x];
        put(s, place_of(s, x), 1);
        if (x & MORE && at + 2 * EDIT <= size) continue;
        seal(s->p, s->bytes);
        put(s, 0, s->state);
        run(s, strategies[i], stores[k]);
        restore(s, data + from, at + EDIT - from);
        from = at + EDIT;
    }
    return 0;
}
