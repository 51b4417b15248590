/* SPDX-License-Identifier: MIT */
/* Families whose rotation or queries depend on more than a token's position in a table: steps of a batch, steps after a
 * rewind and steps of a loaded session have the logits of plain steps. */
#include "config.h"

#include <string.h>

#include "model/session_file.h"
#include "tests/tap.h"

enum { VOCAB = 384, N_STEPS = 12, CHUNK = 16, LIMIT = 96 };

static const char *const models[] = {"phi3-longrope-f16", "ministral3-vision-f16", "mixtral-f16", "qwen2-moe-bf16",
                                     "qwen3-vl-moe-bf16"};
static const char *const strategies[] = {"full",
                                         "streaming:budget=40",
                                         "quest:budget=48",
                                         "fier:budget=32",
                                         "snapkv:budget=32",
                                         "h2o:budget=40",
                                         "tokenselect:budget=8:sink=2:local=8:window=16",
                                         "infllm:budget=40:sink=2:local=16:block=4:window=16"};

typedef struct {
    backend *be;
    model *m;
    decoder *d;
    attn_spec spec;
    float want[2][N_STEPS][VOCAB]; /* logits of the steps of two sequences alone */
} parts;

/* Tokens of two sequences of different length. */
static int32_t id_at(size_t sequence, size_t i)
{
    return (int32_t)((i * 37 + sequence * 11 + i * i % 7) % VOCAB);
}

static size_t prompt_of(size_t sequence)
{
    return sequence ? 21 : 43;
}

static status start(parts *p, session **s, size_t sequence, err *e)
{
    int32_t ids[LIMIT];
    const prefill_options o = {.which = LOGITS_LAST};
    for (size_t i = 0; i < prompt_of(sequence); i++) ids[i] = id_at(sequence, i);
    TRY(session_create(s, p->d, &p->spec, session_of(LIMIT), e));
    return session_prefill(s, 1, ids, prompt_of(sequence), &o, e);
}

/* Runs steps [first, N_STEPS) of a sequence, and returns true if their logits have the wanted bits. record: sets them.
 */
static bool steps(parts *p, session *s, size_t sequence, size_t first, bool record, err *e)
{
    static float got[VOCAB];
    bool same = true;
    for (size_t i = first; i < N_STEPS && e->code == ST_OK; i++) {
        int32_t id = id_at(sequence, prompt_of(sequence) + i);
        if (session_decode(&s, 1, &id, got, e) != ST_OK) return false;
        if (record) memcpy(p->want[sequence][i], got, sizeof got);
        same &= memcmp(p->want[sequence][i], got, sizeof got) == 0;
    }
    return same;
}

static void check_batch(parts *p, const char *name, err *e)
{
    static float got[2][VOCAB];
    session *s[2] = {NULL};
    bool same = true;
    status st = start(p, &s[0], 0, e);
    if (st == ST_OK) st = start(p, &s[1], 1, e);
    for (size_t i = 0; i < N_STEPS && st == ST_OK; i++) {
        const int32_t ids[2] = {id_at(0, prompt_of(0) + i), id_at(1, prompt_of(1) + i)};
        st = session_decode(s, 2, ids, got[0], e);
        for (size_t k = 0; k < 2; k++) same &= memcmp(p->want[k][i], got[k], sizeof got[k]) == 0;
    }
    if (is_ok(st, e, "%s: a batch of two lengths", name)) ok(same, "%s: the bits of single steps", name);
    session_free(s[0]);
    session_free(s[1]);
}

/* Rewinds before the last steps and loads the session into another one. */
static void check_again(parts *p, session *s, const char *name, err *e)
{
    session *copy = NULL;
    session_file *f = NULL;
    session_notes notes = {0};
    const int64_t back = (int64_t)prompt_of(0) + 4;
    if (session_rewind(s, back, e) != ST_OK) { /* rows were evicted */
        is_int(e->code, ST_UNSUPPORTED, "%s: a rewind is refused", name);
        *e = (err){0};
        return;
    }
    status st = session_keep(&f, s, &notes, e);
    ok(steps(p, s, 0, 4, false, e), "%s: the same bits after a rewind", name);
    if (st == ST_OK) st = session_create(&copy, p->d, &p->spec, session_of(LIMIT), e);
    if (st == ST_OK) st = session_load(copy, f, &notes, e);
    if (is_ok(st, e, "%s: a session is loaded", name)) ok(steps(p, copy, 0, 4, false, e), "%s: its steps", name);
    session_free(copy);
    session_file_close(f);
}

static void check_strategy(parts *p, const char *folder, const char *strategy)
{
    char name[160];
    err e = {0};
    session *s[2] = {NULL};
    const attn_options ao = {.kv = kv_plain(DT_F32)};
    snprintf(name, sizeof name, "%s, %s", folder, strategy);
    status st = attn_spec_parse(&p->spec, strategy, &ao, &e);
    for (size_t k = 0; k < 2 && st == ST_OK; k++) {
        st = start(p, &s[k], k, &e);
        if (st == ST_OK) steps(p, s[k], k, 0, true, &e);
    }
    if (is_ok(e.code, &e, "%s: runs", name)) {
        check_batch(p, name, &e);
        check_again(p, s[0], name, &e);
    }
    session_free(s[0]);
    session_free(s[1]);
}

int main(void)
{
    static parts p;
    const backend_options bo = {.device = "cpu", .n_threads = 1};
    const decoder_options opt = {.chunk = CHUNK, .max_batch = 2, .exact = true};
    for (size_t i = 0; i < sizeof models / sizeof *models; i++) {
        char rel[160];
        err e = {0};
        snprintf(rel, sizeof rel, "tests/data/models/%s", models[i]);
        status st = backend_open(&p.be, &bo, &e);
        if (st == ST_OK) st = model_open(&p.m, tap_path(rel), p.be, &e);
        if (st == ST_OK) st = decoder_create(&p.d, p.m, &opt, &e);
        if (is_ok(st, &e, "%s: opens", models[i]))
            for (size_t k = 0; k < sizeof strategies / sizeof *strategies; k++)
                check_strategy(&p, models[i], strategies[k]);
        decoder_free(p.d);
        model_close(p.m);
        backend_close(p.be);
        p = (parts){0};
    }
    return tap_done();
}
