/* SPDX-License-Identifier: MIT */
/* The lens: records against what sessions of their own read, and against a plain softmax over full attention's rotated
 * queries and keys. */
#include "config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lens/lens_impl.h"
#include "lens/page.h"
#include "tests/unit/oom.h"
#include "tests/unit/session_util.h"

enum {
    T_PROMPT = 70,
    T_NEW = 5,
    T_CAP = T_PROMPT + T_NEW,
    T_LAYERS = 2,
    T_HEADS = 4,
    T_KV = 2,
    T_LINES = 64,
    T_SPECS = 3
};

static engine_parts p;
static tokenizer *tok;
static int32_t prompt[600];
static attn_spec full_spec, specs[LENS_STRATEGIES];

/* ---- records ---- */

typedef struct {
    json_t *line[T_LINES];
    int n;
} records;

static status take(void *ctx, const char *text, size_t n, err *e)
{
    records *r = ctx;
    if (r->n == T_LINES || text[n - 1] != '\n') return err_set(e, ST_IO, "too many lines, or half a line");
    r->line[r->n] = json_loadb(text, n, JSON_ALLOW_NUL, NULL);
    return r->line[r->n++] ? ST_OK : err_set(e, ST_FORMAT, "a line is no JSON");
}

static status take_none(void *ctx, const char *text, size_t n, err *e)
{
    (void)ctx;
    (void)text;
    (void)n;
    (void)e;
    return ST_OK;
}

static void records_free(records *r)
{
    for (int i = 0; i < r->n; i++) json_decref(r->line[i]);
    r->n = 0;
}

static bool is_kind(const json_t *j, const char *kind)
{
    return strcmp(json_string_value(json_object_get(j, "kind")), kind) == 0;
}

static const json_t *step_of(const records *r, int i, int s)
{
    for (int k = 0; k < r->n; k++)
        if (is_kind(r->line[k], "step") && json_integer_value(json_object_get(r->line[k], "i")) == i &&
            json_integer_value(json_object_get(r->line[k], "s")) == s)
            return r->line[k];
    return NULL;
}

static double real(const json_t *j, const char *name)
{
    return json_number_value(json_object_get(j, name));
}

/* Bytes of base64; their number. */
static size_t bytes_of(uint8_t *out, const char *text)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t n = 0;
    unsigned bits = 0, have = 0;
    for (; *text && *text != '='; text++) {
        bits = bits << 6 | (unsigned)(strchr(digits, *text) - digits);
        have += 6;
        if (have < 8) continue;
        have -= 8;
        out[n++] = (uint8_t)(bits >> have);
    }
    return n;
}

/* ---- a lens ---- */

static lens_options options(size_t n, records *r)
{
    return (lens_options){.dec = p.dec,
                          .tok = tok,
                          .model = "tiny",
                          .id = "x",
                          .full = &full_spec,
                          .spec = specs,
                          .n = n,
                          .ids = prompt,
                          .n_ids = T_PROMPT,
                          .n_new = T_NEW,
                          .ignore_eos = true,
                          .line = r ? take : take_none,
                          .ctx = r};
}

static status run_all(lens *l, err *e)
{
    bool done = false;
    while (!done) TRY(lens_advance(l, &done, e));
    return ST_OK;
}

static bool parse(attn_spec *out, const char *text)
{
    err e = {0};
    attn_options o = {.kv = kv_plain(DT_F32), .skip = "0"};
    return is_ok(attn_spec_parse(out, text, &o, &e), &e, "%s", text);
}

/* ---- what sessions of their own say ---- */

/* Full attention, one layer: rotated keys of all positions, and the query of the step. */
static struct {
    float k[T_LAYERS][T_CAP][T_KV][64], q[T_LAYERS][T_HEADS][64];
    int64_t n[T_LAYERS];
    size_t dim;
} seen;

static void watch_full(void *ctx, const attn_seen *x)
{
    (void)ctx;
    if (x->layer < 0 || x->layer >= T_LAYERS) return;
    const float *k = (const void *)x->k.p, *q = (const void *)x->q.p;
    for (size_t i = 0; i < x->step->n_tok; i++, seen.n[x->layer]++)
        for (int h = 0; h < T_KV; h++, k += seen.dim)
            memcpy(seen.k[x->layer][seen.n[x->layer]][h], k, seen.dim * sizeof *k);
    for (int h = 0; h < T_HEADS; h++) memcpy(seen.q[x->layer][h], q + (size_t)h * seen.dim, seen.dim * sizeof *q);
}

/* The softmax of a query head, from the definition. */
static void softmax_of(double out[T_CAP], int layer, int head)
{
    double sum = 0, s[T_CAP];
    for (int64_t i = 0; i < seen.n[layer]; i++) {
        s[i] = 0;
        for (size_t c = 0; c < seen.dim; c++)
            s[i] += (double)seen.q[layer][head][c] * (double)seen.k[layer][i][head / (T_HEADS / T_KV)][c];
        sum += s[i] = exp(s[i] / sqrt((double)seen.dim));
    }
    for (int64_t i = 0; i < seen.n[layer]; i++) out[i] = s[i] / sum;
}

/* Positions read by heads: [layer][head][position]. */
typedef bool read_set[T_LAYERS][T_HEADS][T_CAP];

static read_set quest_read;

static void watch_quest(void *ctx, const attn_seen *x)
{
    int32_t pos[2 * T_CAP];
    int64_t from, to;
    (void)ctx;
    if (x->layer < 0 || x->layer >= T_LAYERS) return;
    for (int h = 0; h < T_HEADS; h++) {
        int64_t n = attn_last_selection(decoder_attn_work(p.dec), 0, h, pos, &from, &to);
        memset(quest_read[x->layer][h], 0, sizeof quest_read[0][0]);
        for (int64_t i = 0; i < n; i++)
            if (pos[i] < T_CAP) quest_read[x->layer][h][pos[i]] = true;
    }
}

/* One record against what was read. */
static bool same_record(const json_t *j, read_set read, int64_t n, int s)
{
    double attended = 0, missed = 0, by[T_LAYERS * T_KV] = {0}, at[T_CAP] = {0}, share[T_CAP], worst = 0;
    uint8_t reads[LENS_BINS] = {0}, heads[T_LAYERS * T_KV] = {0};
    bool good = j != NULL;
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < T_HEADS; h++) {
            softmax_of(share, l, h);
            for (int64_t i = 0; i < n; i++) {
                attended += read[l][h][i];
                if (read[l][h][i]) continue;
                missed += share[i];
                at[i] += share[i];
                by[l * T_KV + h / 2] += share[i] / 2;
            }
        }
    const double all = T_LAYERS * T_HEADS;
    good &= fabs(real(j, "attended") - attended / all) < 1e-3 && fabs(real(j, "missed") - missed / all) < 1e-5;
    const json_t *w = json_object_get(j, "worst"), *list = json_object_get(j, "missed_at");
    for (int i = 0; i < T_LAYERS * T_KV; i++) worst = fmax(worst, by[i]);
    good &= fabs(json_number_value(json_array_get(w, 2)) - worst) < 1e-5;
    good &= fabs(by[json_integer_value(json_array_get(w, 0)) * T_KV + json_integer_value(json_array_get(w, 1))] -
                 worst) < 1e-9;
    good &= bytes_of(reads, json_string_value(json_object_get(j, "reads"))) == T_PROMPT;
    for (int i = 0; i < T_PROMPT; i++) { /* a bin a position */
        int heads_of = 0;
        for (int l = 0; l < T_LAYERS; l++)
            for (int h = 0; h < T_HEADS; h++) heads_of += read[l][h][i];
        good &= reads[i] == (uint8_t)lround(255 * heads_of / all);
    }
    good &= bytes_of(heads, json_string_value(json_object_get(j, "missed_by"))) == T_LAYERS * T_KV;
    for (int i = 0; i < T_LAYERS * T_KV; i++) good &= abs(heads[i] - (int)lround(255 * by[i])) <= 1;
    double last = 2;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        double here = json_number_value(json_array_get(x, 1));
        good &= fabs(here - at[json_integer_value(json_array_get(x, 0))] / all) < 1e-5 && here <= last + 1e-9;
        last = here;
    }
    int more = 0;
    for (int64_t i = 0; i < n; i++) more += at[i] / all > 1e-4 && (json_array_size(list) < LENS_MISSED);
    good &= json_array_size(list) == LENS_MISSED || more == (int)json_array_size(list);
    return good && json_integer_value(json_object_get(j, "s")) == s;
}

/* Streaming keeps the first 4 and the newest: by its definition. */
static void stream_read(read_set read, int64_t n, int64_t budget)
{
    for (int l = 0; l < T_LAYERS; l++)
        for (int h = 0; h < T_HEADS; h++)
            for (int64_t i = 0; i < T_CAP; i++) read[l][h][i] = i < n && (i < 4 || i >= n - 1 - (budget - 4));
}

static status start_session(session **s, const attn_spec *spec, void (*watch)(void *, const attn_seen *), err *e)
{
    const prefill_options o = {.which = LOGITS_LAST};
    TRY(session_create(s, p.dec, spec, session_of(T_CAP), e));
    attn_watch(decoder_attn_work(p.dec), watch, NULL);
    status st = session_prefill(s, 1, prompt, T_PROMPT - 1, &o, e);
    attn_watch(decoder_attn_work(p.dec), NULL, NULL);
    return st;
}

static status step_session(session *s, int32_t id, void (*watch)(void *, const attn_seen *), int32_t *choice, err *e)
{
    static float logits[U_VOCAB];
    attn_watch(decoder_attn_work(p.dec), watch, NULL);
    status st = session_decode(&s, 1, &id, logits, e);
    attn_watch(decoder_attn_work(p.dec), NULL, NULL);
    *choice = logits_argmax(logits, U_VOCAB);
    return st;
}

/* Replays the lens by sessions one by one. */
static void check_steps(const records *r)
{
    err e = {0};
    session *full = NULL, *quest = NULL;
    static read_set stream;
    int32_t id = prompt[T_PROMPT - 1], next = 0, own = 0;
    memset(&seen, 0, sizeof seen);
    seen.dim = (size_t)decoder_attn_shape(p.dec)->head_dim;
    bool tokens = true, quests = true, streams = true;
    status st = start_session(&full, &full_spec, watch_full, &e);
    if (st == ST_OK) st = start_session(&quest, &specs[0], NULL, &e);
    for (int i = 0; i < T_NEW && st == ST_OK; i++) {
        int64_t n = T_PROMPT + i;
        st = step_session(full, id, watch_full, &next, &e);
        if (st == ST_OK) st = step_session(quest, id, watch_quest, &own, &e);
        const json_t *a = step_of(r, i, 1), *b = step_of(r, i, 2);
        tokens &= a && json_integer_value(json_object_get(a, "id")) == next;
        const json_t *said = json_object_get(a, "own");
        tokens &= said ? json_integer_value(json_object_get(said, "id")) == own : own == next;
        quests &= same_record(a, quest_read, n, 1);
        stream_read(stream, n, 16);
        streams &= same_record(b, stream, n, 2);
        id = next;
    }
    is_ok(st, &e, "sessions of their own");
    ok(tokens, "the tokens are those of full attention; other predictions of a strategy are reported");
    ok(quests, "quest: what it read, and what a plain softmax says that it missed");
    ok(streams, "streaming: the same by its definition");
    session_free(full);
    session_free(quest);
}

static void test_records(void)
{
    err e = {0};
    records r = {.n = 0};
    lens *l = NULL;
    lens_options o = options(2, &r);
    status st = lens_open(&l, &o, &e);
    if (st == ST_OK) st = run_all(l, &e);
    if (!is_ok(st, &e, "a lens runs")) return;
    is_int(r.n, 2 + 2 * T_NEW + 1, "a head, a prompt, records of two strategies, an end");
    ok(is_kind(r.line[0], "lens") && is_kind(r.line[1], "prompt") && is_kind(r.line[r.n - 1], "end"), "in this order");
    const json_t *names = json_object_get(r.line[0], "strategies"), *texts = json_object_get(r.line[1], "texts");
    ok(json_array_size(names) == 3 && json_array_size(texts) == T_PROMPT, "their names, and a text a token");
    is_int((long long)json_integer_value(json_object_get(r.line[r.n - 1], "completion_tokens")), T_NEW, "steps");
    check_steps(&r);
    size_t row;
    bool same = true;
    const uint8_t *bits = lens_bits(l, 0, &row);
    for (int k = 0; k < T_LAYERS; k++)
        for (int64_t i = 0; i < T_PROMPT + T_NEW - 1; i++) {
            bool any = false;
            for (int h = 0; h < T_HEADS; h++) any |= quest_read[k][h][i];
            same &= any == (bits[(size_t)k * row + (size_t)i / 8] >> (i % 8) & 1);
        }
    ok(same, "bits: what some head read in the last step");
    int64_t done, all;
    lens_progress(l, &done, &all);
    ok(done == all, "progress ends");
    records_free(&r);
    lens_close(l);
}

/* ---- every strategy ---- */

/* Positions marked as read are those that the strategy counts as attended. */
static void test_attended(void)
{
    static const char *const t[] = {"full",
                                    "streaming:budget=16",
                                    "h2o:budget=16",
                                    "snapkv:budget=16:window=4",
                                    "tova:budget=16",
                                    "quest:budget=16:page=4",
                                    "quest:budget=16:page=4:gqa=per_q",
                                    "fier:budget=16",
                                    "kivi"};
    for (size_t i = 0; i < sizeof t / sizeof *t; i++) {
        err e = {0};
        lens *l = NULL;
        lens_options o = options(1, NULL);
        if (!parse(&specs[0], t[i])) continue;
        status st = lens_open(&l, &o, &e);
        if (st == ST_OK) st = run_all(l, &e);
        if (!is_ok(st, &e, "%s: runs", t[i])) continue;
        attn_stats s = attn_seq_stats(session_attn(l->run[0].s));
        double counted = s.attended / T_LAYERS / T_NEW, marked = lens_mean(l, 0).attended,
               missed = lens_mean(l, 0).missed;
        ok(fabs(counted - marked) < 1e-6, "%s: marked as read (%g) is what is attended (%g)", t[i], marked, counted);
        ok(counted > T_PROMPT ? missed < 1e-9 : missed > 0, "%s: who reads all misses nothing (%g)", t[i], missed);
        lens_close(l);
    }
}

/* ---- who chooses, and what is refused ---- */

static void test_drive(void)
{
    err e = {0};
    records r = {.n = 0};
    lens *l = NULL;
    session *s = NULL;
    lens_options o = options(2, &r);
    int32_t id = prompt[T_PROMPT - 1];
    bool same = true;
    o.drive = 2;
    status st = lens_open(&l, &o, &e);
    if (st == ST_OK) st = run_all(l, &e);
    if (st == ST_OK) st = start_session(&s, &specs[1], NULL, &e);
    for (int i = 0; i < T_NEW && st == ST_OK; i++) {
        st = step_session(s, id, NULL, &id, &e);
        same &= json_integer_value(json_object_get(step_of(&r, i, 1), "id")) == id;
    }
    is_ok(st, &e, "a lens that a strategy drives");
    ok(same, "its tokens are those that this strategy chooses");
    records_free(&r);
    session_free(s);
    lens_close(l);
}

static void test_ends(void)
{
    err e = {0};
    records r = {.n = 0};
    lens *l = NULL;
    lens_options o = options(1, &r);
    bool done = false;
    o.ignore_eos = false;
    status st = lens_open(&l, &o, &e);
    token_list eos = {0};
    if (st == ST_OK) st = tokenizer_eos_ids(tok, &eos, &e);
    while (st == ST_OK && l->step < 2) st = lens_advance(l, &done, &e);
    int steps = (int)l->step;
    is_ok(st, &e, "steps");
    ok(done == (steps < T_NEW && tokenizer_is_eos(tok, l->next)), "EOS ends it, nothing else before -n");
    records_free(&r);
    lens_close(l);
    token_list_free(&eos);
    o = options(1, NULL);
    o.n_ids = 1;
    is_err(lens_open(&l, &o, &e), &e, ST_USAGE, "1 tokens", "a prompt of one token");
    e = (err){0};
    o = options(4, NULL);
    is_err(lens_open(&l, &o, &e), &e, ST_USAGE, "4 strategies", "four strategies");
    o = options(1, NULL);
    e = (err){0};
    o.n_new = 0;
    is_err(lens_open(&l, &o, &e), &e, ST_USAGE, "new token", "no new token");
    oom_run m = {0};
    o = options(2, NULL);
    while (oom_next(&m)) {
        oom_saw(&m, lens_open(&l, &o, &m.e), &l);
        lens_close(l);
    }
    oom_ok(&m, 20, "opening a lens");
}

/* More tokens than bins: the last bin is smaller. */
static void test_bins(void)
{
    err e = {0};
    records r = {.n = 0};
    lens *l = NULL;
    lens_options o = options(1, &r);
    uint8_t reads[LENS_BINS];
    attn_spec *s = &specs[0];
    if (!parse(s, "streaming:sink=4:budget=500")) return;
    o.n_ids = 515;
    o.n_new = 1;
    status st = lens_open(&l, &o, &e);
    if (st == ST_OK) st = run_all(l, &e);
    if (!is_ok(st, &e, "a prompt of more tokens than bins")) return;
    const json_t *j = step_of(&r, 0, 1);
    is_int((long long)json_integer_value(json_object_get(r.line[0], "bin")), 2, "bins of two tokens");
    is_int((long long)bytes_of(reads, json_string_value(json_object_get(j, "reads"))), 258, "as many as are needed");
    ok(reads[0] == 255 && reads[1] == 255 && reads[2] == 0 && reads[257] == 255, "the last one has one token");
    records_free(&r);
    lens_close(l);
}

/* ---- the page ---- */

static void test_page(void)
{
    size_t n, at = 0;
    const char *page = page_text(&n);
    char policy[PAGE_POLICY], *text = NULL;
    bool ascii = true;
    for (size_t i = 0; i < n; i++) ascii &= page[i] > 0;
    ok(n == strlen(page) && n < 150000 && ascii, "the page is ASCII, of less than 150 KB (%zu)", n);
    ok(!strstr(page, "http:") || strstr(page, "curl http://"), "nothing is loaded from elsewhere");
    page_policy(policy, true);
    ok(strstr(policy, "default-src 'none'") && strstr(policy, "script-src 'sha256-") &&
           strstr(policy, "connect-src 'self'"),
       "its policy");
    FILE *f = open_memstream(&text, &at);
    static const char line[] = "{\"text\":\"</script><b>\"}\n";
    bool good = f && page_begin(f) && page_line(f, line, sizeof line - 1) && page_end(f) && fclose(f) == 0;
    ok(good && strstr(text, "{\"text\":\"\\u003c/script>\\u003cb>\"}\n"), "records in a page cannot end its element");
    ok(good && strstr(text, "http-equiv=\"Content-Security-Policy\"") && !strstr(text, "connect-src"),
       "a page of its own asks nobody");
    free(text);
}

int main(void)
{
    err e = {0};
    if (!is_ok(parts_open(&p, "llama31-f32-tied", "cpu", &e), &e, "the model is opened")) return tap_done();
    if (!is_ok(tokenizer_open(&tok, tap_path("tests/data/models/llama31-f32-tied"), &e), &e, "its tokenizer too"))
        return tap_done();
    for (int i = 0; i < 600; i++) prompt[i] = some_id(i);
    parse(&full_spec, "full");
    parse(&specs[0], "quest:budget=16:page=4");
    parse(&specs[1], "streaming:budget=16:sink=4");
    test_records();
    test_drive();
    test_ends();
    test_attended();
    test_bins();
    test_page();
    tokenizer_free(tok);
    parts_close(&p);
    return tap_done();
}
