/* SPDX-License-Identifier: MIT */
/* Bytes that decode steps read, by kind, against what follows from each method's description and the number of
 * tokens alone. */
#include "config.h"

#include "tests/tap.h"
#include "tests/unit/attention_oracle.h"

enum { PROMPT = 50, STEPS = 40, CHUNK = 64, ROW = T_DIM * 2 }; /* f16 rows */

static world w;

/* Counts of one layer; index -1: not determined by the number of tokens. */
typedef struct {
    int64_t k, v, index;
} bytes;

/* x rows in each KV head. */
static int64_t rows(int64_t x)
{
    return x * T_KV * ROW;
}

static int64_t pages(int64_t n, int64_t page)
{
    return (n + page - 1) / page;
}

static bytes of_full(int64_t n)
{
    return (bytes){rows(n), rows(n), 0};
}

/* B kept tokens and the new one. */
static bytes of_streaming(int64_t n)
{
    (void)n;
    return (bytes){rows(21), rows(21), 0};
}

/* The sums of 21 tokens, and those of the 11 that are not recent when one goes. */
static bytes of_h2o(int64_t n)
{
    (void)n;
    return (bytes){rows(21), rows(21), T_KV * 4 * (21 + 11)};
}

static bytes of_tova(int64_t n)
{
    (void)n;
    return (bytes){rows(21), rows(21), 4 * 21};
}

static bytes of_tova_group(int64_t n)
{
    (void)n;
    return (bytes){rows(21), rows(21), T_KV * 4 * 21};
}

/* Codes of 2 bits in two runs with a pair of f16 each, for all that was dropped before. */
static bytes of_demoted(int64_t n)
{
    bytes b = of_h2o(n);
    int64_t low = T_KV * (n - 1 - 20) * (T_DIM / 4 + 2 * 4);
    return (bytes){b.k + low, b.v + low, b.index};
}

/* Keys of all that was dropped, then six of these rows. */
static bytes of_recalled(int64_t n)
{
    bytes b = of_h2o(n);
    int64_t row = T_DIM / 4 + 2 * 4, chosen = T_KV * 6 * row;
    return (bytes){b.k + T_KV * (n - 1 - 20) * row + chosen, b.v + chosen, b.index};
}

static bytes of_streaming_demoted(int64_t n)
{
    int64_t low = T_KV * (n - 1 - 20) * (T_DIM / 4 + 2 * 4);
    return (bytes){rows(21) + low, rows(21) + low, 0};
}

/* Groups of 8: pairs by channel of a group of keys, one for all 8 channels of a value. 20 to 27 tokens are exact. */
static bytes of_demoted_groups(int64_t n)
{
    int64_t low = (n - 1 - 20) / 8 * 8, exact = n - low, looked = (n - 20) % 8 == 0 ? exact - 10 : 0;
    int64_t codes = low * (T_DIM / 4), k = codes + low / 8 * T_DIM * 4, v = codes + low * 4;
    return (bytes){rows(exact) + T_KV * k, rows(exact) + T_KV * v, T_KV * 4 * (exact + looked)};
}

/* A fifth of the tokens before the step is exact. A token is demoted where that number stays: sums of its older half
 * are looked at. */
static bytes of_mikv(int64_t n)
{
    int64_t kept = (n - 1) / 5, low = T_KV * (n - 1 - kept) * (T_DIM / 4 + 2 * 4);
    int64_t looked = n / 5 == kept ? kept + 1 - kept / 2 : 0;
    return (bytes){rows(kept + 1) + low, rows(kept + 1) + low, T_KV * 4 * (kept + 1 + looked)};
}

static bytes of_demoted_rows(int64_t n)
{
    return (bytes){rows(n), rows(n), 4 * 21};
}

static bytes of_snapkv(int64_t n)
{
    return (bytes){rows(20 + n - PROMPT), rows(20 + n - PROMPT), 0};
}

/* Two bounds of each page but the last, which is forced; three others. */
static bytes of_quest(int64_t n)
{
    int64_t last = pages(n, 8) - 1, tokens = 3 * 8 + n - 8 * last;
    return (bytes){rows(tokens), rows(tokens), rows(2 * last)};
}

static bytes of_quest_each(int64_t n)
{
    bytes b = of_quest(n);
    return (bytes){b.k * T_HEADS / T_KV, b.v * T_HEADS / T_KV, b.index};
}

/* Every key but the current one. */
static bytes of_oracle(int64_t n)
{
    return (bytes){rows(16), rows(16), rows(n - 1)};
}

/* A word of bits for each token but the current one, two levels for each group of them. */
static bytes of_fier(int64_t n)
{
    return (bytes){rows(16), rows(16), T_KV * 4 * (n - 1) + rows(2 * pages(n - 1, 8))};
}

/* Six rows more of each kv head, and a bias of each for each head. */
static bytes of_tail_sample(int64_t n)
{
    bytes b = of_fier(n);
    return (bytes){b.k + rows(6), b.v + rows(6), b.index + T_HEADS * 6 * 4};
}

/* Groups of one: 2 bits and a pair of f16 for each number of all keys but the newest 17, which are exact, and of the
 * rows of the best 7. */
static bytes of_codes(int64_t n)
{
    int64_t coded = T_KV * (T_DIM / 4 + 4 * T_DIM), best = 7 * coded + rows(17);
    return (bytes){best, best, (n - 17) * coded};
}

/* Two codes of each candidate, 8 centroids of a half number a channel. */
static bytes of_pqcache(int64_t n)
{
    int64_t candidates = n - 3 - 6;
    return (bytes){rows(16), rows(16), T_KV * (candidates * 2 + 8 * T_DIM * 2)};
}

/* One block of 8 channels: an id of each indexed token, of each new one when it is counted, and of each
 * candidate; 5 bytes of code of each candidate; 256 counts. */
static bytes of_pariskv(int64_t n)
{
    int64_t flushes = (n - PROMPT - 1) / 16, indexed = PROMPT - 12 + 16 * flushes;
    int64_t counted = n > PROMPT + 1 && (n - PROMPT - 1) % 16 == 0 ? 16 : 0, candidates = pages(indexed, 2);
    int64_t tokens = n - indexed + 8;
    return (bytes){rows(tokens), rows(tokens), T_KV * (counted + 256 * 4 + indexed + 6 * candidates)};
}

/* A band of 16, sinks, three blocks, tokens on their way; the keys of a block when it is formed. Representatives
 * and the masses of the band's older tokens, those of a block when it is formed. */
static bytes of_blocks(int64_t n)
{
    int64_t blocks = (n - 1 - 19) / 4, formed = (n - 19) / 4 - blocks, tokens = 16 + 3 + 12 + (n - 19 - 4 * blocks);
    return (bytes){rows(tokens + 4 * formed), rows(tokens), blocks * T_HEADS * ROW + T_HEADS * 4 * (15 + 4 * formed)};
}

/* Reads all keys between the sinks and the newest ones, then the selected rows and these two. */
static bytes of_tokenselect(int64_t n)
{
    return (bytes){rows(n - 11 + 23), rows(23), 0};
}

/* Everything is sampled, by each query head: keys twice, for their angles and to be attended. Entries of the tables
 * that are read depend on the planes. */
static bytes of_magicpig(int64_t n)
{
    int64_t sample = (PROMPT - 6 - 3) * T_HEADS / T_KV, exact = 3 + n - (PROMPT - 6);
    return (bytes){rows(exact + 2 * sample), rows(exact + sample), -1};
}

/* 2 bits: 2 bytes a row; two f16 a channel for 8 keys, two for a value. The step sees the state of n - 1 tokens. */
static bytes of_kivi(int64_t n)
{
    int64_t k = (n - 1) / 16 * 16, v = n - 1 - 16;
    return (bytes){T_KV * (k * 2 + k / 8 * T_DIM * 4 + (n - k) * ROW), T_KV * (v * (2 + 4) + (n - v) * ROW), 0};
}

static const struct {
    const char *spec;
    bytes (*of)(int64_t n);
    int dense; /* layers */
} cases[] = {
    {"full", of_full, 0},
    {"streaming:budget=20", of_streaming, 0},
    {"streaming:budget=20:pos=abs", of_streaming, 0},
    {"h2o:budget=20", of_h2o, 0},
    {"tova:budget=20", of_tova, 0},
    {"tova:budget=20:gqa=mean_s", of_tova_group, 0},
    {"h2o:budget=20:demote=token2", of_demoted, 0},
    {"h2o:budget=20:demote=token2:recall=0", of_h2o, 0},
    {"h2o:budget=20:demote=token2:recall=6", of_recalled, 0},
    {"streaming:budget=20:demote=token2", of_streaming_demoted, 0},
    {"h2o:budget=20:demote=kivi2:demote_g=8", of_demoted_groups, 0},
    {"mikv", of_mikv, 0},
    {"tova:budget=20:demote=f16", of_demoted_rows, 0},
    {"snapkv:budget=20:window=8", of_snapkv, 0},
    {"oracle:budget=16:skip=0", of_oracle, 0},
    {"quest:budget=32:page=8:skip=0", of_quest, 0},
    {"quest:budget=32:page=8:skip=1", of_quest, 1},
    {"quest:budget=32:page=8:skip=0:gqa=per_q", of_quest_each, 0},
    {"fier:budget=16:g=8:skip=0", of_fier, 0},
    {"codes:budget=24:skip=0:kv=kivi2/g=1/r=16/key_residual=slide", of_codes, 0},
    {"fier:budget=16:g=8:skip=0:tail=sample:6", of_tail_sample, 0},
    {"pqcache:budget=16:sink=3:bits=3", of_pqcache, 0},
    {"pariskv:budget=8:sink=4:local=8:u=16:full_thr=0", of_pariskv, 0},
    {"actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31:pool=fixed", of_blocks, 0},
    {"infllm:sink=3:local=16:window=8:block=4:reps=2:budget=31", of_blocks, 0},
    {"tokenselect:sink=3:local=8:window=8:budget=12", of_tokenselect, 0},
    {"tokenselect:sink=3:local=8:window=8:budget=12:reuse=101", of_tokenselect, 0},
    {"magicpig:K=1:L=400:sink=3:local=6:skip=0", of_magicpig, 0},
    {"full:kv=kivi2/r=16/g=8", of_kivi, 0},
    {"kivi:bits=2:r=16:g=8", of_kivi, 0},
};

static void check_case(rig *r, size_t c)
{
    err e = {0};
    attn_seq *s;
    double keys = 0, all = 0;
    bool good = true;
    const char *spec = cases[c].spec;
    if (!is_ok(rig_seq(r, &s, spec, DT_F16, T_MAX, &e), &e, "%s", spec)) return;
    rig_prompt(r, &s, 1, PROMPT, CHUNK, NULL);
    for (int64_t n = PROMPT + 1; n <= PROMPT + STEPS && good; n++) {
        attn_stats a = attn_seq_stats(s), b;
        bytes one = cases[c].of(n), f = of_full(n);
        int64_t dense = cases[c].dense, others = T_LAYERS - dense;
        rig_decode(r, &s, 1, NULL);
        b = attn_seq_stats(s);
        double k = (double)(others * one.k + dense * f.k), v = (double)(others * one.v + dense * f.v);
        double index = one.index < 0 ? b.index_read - a.index_read : (double)(others * one.index);
        good &=
            ok(b.k_read - a.k_read == k && b.kv_read - a.kv_read == k + v && b.index_read - a.index_read == index,
               "%s, %s, %lld tokens: K %g, expected %g; K and V %g, %g; index %g, %g", r->be->name, spec, (long long)n,
               b.k_read - a.k_read, k, b.kv_read - a.kv_read, k + v, b.index_read - a.index_read, index);
        keys += k + index;
        all += (double)(T_LAYERS * rows(n));
    }
    attn_stats st = attn_seq_stats(s);
    ok(st.full_keys == all && attn_key_access(&st) == keys / all, "%s, %s: key access %.4f, expected %.4f", r->be->name,
       spec, attn_key_access(&st), keys / all);
    if (cases[c].of == of_full) ok(attn_key_access(&st) == 1, "full reads each key once");
    attn_seq_free(s);
}

static void check(rig *r)
{
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) check_case(r, c);
}

int main(void)
{
    world_fill(&w, 17);
    rig_each(METHOD_DEVICES, N_METHOD_DEVICES, &w, CHUNK, check);
    return tap_done();
}
