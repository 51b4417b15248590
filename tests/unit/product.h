/* SPDX-License-Identifier: MIT */
/* Strategies and stores whose product is tested, and the combinations that are refused. */
#ifndef TESTS_UNIT_PRODUCT_H
#define TESTS_UNIT_PRODUCT_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "attention/store.h"

enum {
    GROWS = 1,       /* generated tokens are never evicted: U7 concerns the first prompt */
    MISSES = 2,      /* the current token may be missed (force=none, as in Quest's evaluation code): no U8 */
    BY_CHUNK = 4,    /* results depend on the chunk, the purpose of the option: no U2 */
    WINDOWED = 8,    /* prompts are attended in windows of 8: chunks are multiples (U2), no exact prompt */
    BANDED = 16,     /* prompts attend bands in segments cut by the chunk: the same up to rounding (U2) */
    ONE_BY_ONE = 32, /* tokens one by one = at once (U3); the others depend on where the prompt ended, */
    IN_A_RING = 64,  /* and these have the same rows at other slots: the same up to rounding */
    DEMOTES = 512,   /* evicted rows are kept in another store */
    RAW = 128        /* stores have keys before rotation: other bits than `full` over stores that round (U1) */
};

typedef struct {
    const char *spec, *all; /* all: options with which it attends everything (U1) */
    int64_t most;           /* most tokens that a head may attend in a step (U7), 0: all */
    unsigned flags;
} product_row;

#define EVICTS    ":budget=100"
#define RETRIEVES ":budget=100"
#define BLOCKS    ":local=100:budget=200"
#define ACT       "actqkv:sink=3:local=16:window=8:block=4:reps=2:budget=31"
#define INF       "infllm:sink=3:local=16:window=8:block=4:reps=2"
#define TOKEN     "tokenselect:sink=3:local=16:window=8:budget=12"
#define PARIS     "pariskv:budget=6:sink=4:local=8:u=5:full_thr=0"
#define PIG       "magicpig:K=3:L=12:sink=3:local=6:skip=0"
#define RETRO     "retroinfer:budget=24:sink=3:local=5:size=4:update=8"
#define QUEST(x)                                                                                                       \
    {                                                                                                                  \
        "quest:skip=0:budget=24:page=4" x, RETRIEVES, 24, ONE_BY_ONE                                                   \
    }
#define FIER(x)                                                                                                        \
    {                                                                                                                  \
        "fier:skip=0:budget=20:g=8" x, RETRIEVES, 20, ONE_BY_ONE                                                       \
    }
#define PQ(x)                                                                                                          \
    {                                                                                                                  \
        "pqcache:budget=20:sink=4:bits=3" x, RETRIEVES, 20, 0                                                          \
    }

static const product_row strategies[] = {
    {"full", "", 0, ONE_BY_ONE},
    {"streaming:budget=24", EVICTS, 25, IN_A_RING},
    {"streaming:budget=24:sink=0:skip=1", EVICTS, 25, IN_A_RING},
    {"streaming:budget=24:pos=abs", EVICTS, 25, IN_A_RING},
    {"streaming:budget=24:prefill=full", EVICTS, 25, IN_A_RING},
    {"streaming:budget=24:prefill=banded", EVICTS, 25, BANDED},
    {"streaming:budget=24:prefill=banded:pos=abs", EVICTS, 25, BANDED},
    {"h2o:budget=20", EVICTS, 21, 0},
    {"h2o:budget=20:gqa=sum_s:skip=1", EVICTS, 21, 0},
    {"h2o:budget=20:gqa=max_s", EVICTS, 21, 0},
    {"h2o:budget=20:gqa=layer_mean", EVICTS, 21, 0},
    {"h2o:budget=20:gqa=per_q", EVICTS, 21, 0},
    {"h2o:budget=20:hh=5", EVICTS ":hh=50", 21, 0},
    {"h2o:budget=20:prefill_evict=chunk", EVICTS, 21, BY_CHUNK},
    {"snapkv:budget=20:kernel=3", EVICTS, 20, GROWS},
    {"snapkv:budget=20:gqa=max_s:skip=1", EVICTS, 20, GROWS},
    {"snapkv:budget=20:gqa=per_q:window=5", EVICTS, 20, GROWS},
    {"snapkv:budget=20:pool=avg", EVICTS, 20, GROWS},
    {"snapkv:budget=20:gqa=sum_s", EVICTS, 20, GROWS},
    {"snapkv:budget=20:gqa=layer_mean", EVICTS, 20, GROWS},
    {"snapkv:budget=20:recompress_on_turn=1", EVICTS, 20, GROWS},
    {"tova:budget=20", EVICTS, 21, 0},
    {"tova:budget=20:gqa=mean_s", EVICTS, 21, 0},
    {"tova:budget=20:gqa=sum_s", EVICTS, 21, 0},
    {"tova:budget=20:gqa=max_s", EVICTS, 21, 0},
    {"tova:budget=20:gqa=per_q", EVICTS, 21, 0},
    {"tova:budget=20:prefill_evict=chunk", EVICTS, 21, BY_CHUNK},
    {"h2o:budget=20:demote=token2", EVICTS, 0, DEMOTES},
    {"h2o:budget=20:demote=token4:gqa=per_q:skip=1", EVICTS, 0, DEMOTES},
    {"h2o:budget=20:demote=token2:recall=0", EVICTS, 21, DEMOTES},
    {"snapkv:budget=20:demote=token4", EVICTS, 0, DEMOTES},
    {"snapkv:budget=20:demote=token2:recompress_on_turn=1", EVICTS, 0, DEMOTES},
    {"tova:budget=20:demote=token2", EVICTS, 0, DEMOTES},
    {"tova:budget=20:demote=f16:prefill_evict=chunk", EVICTS, 0, DEMOTES | BY_CHUNK},
    {"oracle:skip=0:budget=20", RETRIEVES, 20, ONE_BY_ONE},
    {"oracle:skip=1:budget=20:gqa=per_q:force_sink=5:force_recent=6", RETRIEVES, 20, ONE_BY_ONE},
    {"oracle:skip=0:budget=20:p=0.6:min=2", ":budget=100:p=off", 20, ONE_BY_ONE},
    {"quest:skip=0:budget=24:page=4:p=0.5:min=5:gqa=per_q", ":budget=100:p=off", 24, ONE_BY_ONE},
    {"fier:skip=0:budget=20:g=8:p=0.7:min=0:gqa=max_s:coarse=6:coarse_keep=2", ":budget=100:p=off", 20, ONE_BY_ONE},
    {"fier:skip=0:budget=20:g=8:p=0.7:min=0:calibrate=9", ":budget=100:p=off:calibrate=0", 20, ONE_BY_ONE},
    {"quest:skip=1:budget=24:page=4:p=0.5:min=5", ":budget=100:p=off", 24, ONE_BY_ONE},
    {"h2o:budget=20:demote=kivi2:demote_g=4", EVICTS, 0, DEMOTES},
    {"snapkv:budget=20:demote=kivi4:demote_g=6:recompress_on_turn=1:gqa=per_q", EVICTS, 0, DEMOTES},
    {"tova:budget=20:demote=kivi2:demote_g=5:prefill_evict=chunk", EVICTS, 0, DEMOTES | BY_CHUNK},
    {"h2o:budget=20:demote=token2:recall=5", EVICTS, 26, DEMOTES},
    {"streaming:budget=24:demote=token2", EVICTS, 0, DEMOTES | IN_A_RING},
    {"streaming:budget=24:demote=f16:recall=6:pos=abs:skip=1", EVICTS, 31, DEMOTES | IN_A_RING},
    {"streaming:budget=24:demote=token4:recall=0:sink=0", EVICTS, 25, DEMOTES | IN_A_RING},
    {"streaming:budget=24:demote=kivi2:demote_g=3", EVICTS, 0, DEMOTES | IN_A_RING},
    {"tova:budget=20:demote=f16:recall=9:gqa=per_q:skip=1", EVICTS, 30, DEMOTES},
    {"snapkv:budget=20:demote=kivi2:demote_g=4:recall=1:recompress_on_turn=1", EVICTS, 0, DEMOTES},
    {"mikv", ":ratio=100", 0, DEMOTES},
    {"mikv:ratio=37:bits=4:skip=1", ":ratio=100", 0, DEMOTES},
    {"mikv:budget=20:balance=0", EVICTS, 0, DEMOTES},
    {"mikv:bits=16:gqa=max_s", ":ratio=100", 0, DEMOTES},
    {"oracle:skip=0:budget=20:tail=sample:6", RETRIEVES, 20, ONE_BY_ONE},
    QUEST(":tail=sample:5:gqa=layer_mean:coarse=8:coarse_keep=2"),
    FIER(":tail=sample:4:gqa=mean_q:skip=1"),
    FIER(":tail=sample:6:gqa=per_q"),
    QUEST(":tail=sample:3"),
    PQ(":tail=sample:200"),
    {"fier:skip=0:budget=20:g=8:p=0.7:min=0:gqa=per_q:tail=sample:3", ":budget=100:p=off", 20, ONE_BY_ONE},
    QUEST(":gqa=per_q"),
    QUEST(":gqa=mean_q"),
    QUEST(":gqa=mean_s"),
    QUEST(":gqa=sum_s"),
    QUEST(":gqa=max_s"),
    QUEST(""),
    QUEST(":gqa=layer_mean"),
    QUEST(":gqa=layer_vote"),
    QUEST(":gqa=layer_concat"),
    QUEST(":score=maxch"),
    QUEST(":score=mean"),
    QUEST(":score=mean:gqa=per_q:coarse=8:coarse_keep=2"),
    QUEST(":score=est:g=8"),
    QUEST(":score=est:g=2:gqa=mean_q:skip=1"),
    QUEST(":score=est:g=4:force_sink=5:force_recent=6"),
    QUEST(":page=3"),
    {"quest:skip=1:budget=8:page=8", RETRIEVES, 24, ONE_BY_ONE}, /* three pages at least */
    {"quest:skip=1:budget=16:page=8:min_pages=1", RETRIEVES, 16, ONE_BY_ONE},
    {"quest:skip=0:budget=24:page=4:force_sink=5:force_recent=6", RETRIEVES, 24, ONE_BY_ONE},
    {"quest:skip=0:budget=24:page=4:force=none", RETRIEVES, 24, ONE_BY_ONE | MISSES},
    QUEST(":coarse=8:coarse_keep=1"),
    QUEST(":coarse=12:coarse_keep=2:gqa=per_q"),
    FIER(":coarse=6:coarse_keep=1"),
    FIER(":coarse=8:coarse_keep=2:gqa=layer_vote"),
    FIER(":gqa=per_q"),
    FIER(":gqa=mean_q"),
    FIER(":gqa=mean_s"),
    FIER(":gqa=sum_s"),
    FIER(":gqa=max_s"),
    FIER(""),
    FIER(":gqa=layer_mean"),
    FIER(":gqa=layer_vote"),
    FIER(":gqa=layer_concat"),
    FIER(":score=int8"),
    FIER(":skip=1"),
    FIER(":force_sink=3:force_recent=5"),
    FIER(":g=32"),
    {"codes:skip=0:budget=40", RETRIEVES, 40, ONE_BY_ONE},
    {"codes:skip=1:budget=40:gqa=per_q:force_sink=5:force_recent=6", RETRIEVES, 40, ONE_BY_ONE},
    {"codes:skip=0:budget=40:gqa=mean_q:p=0.6:min=2", ":budget=100:p=off", 40, ONE_BY_ONE},
#ifndef ON_CUDA /* no such ops */
    {"codes:skip=0:certify=0.3:min=2", ":certify=off:budget=100", 0, ONE_BY_ONE},
    {"codes:skip=1:certify=0.1:budget=50:min=2:gqa=per_q:force_sink=2", ":certify=off:budget=100", 50, ONE_BY_ONE},
#endif
    PQ(""),
    PQ(":gqa=per_q:skip=1"),
    PQ(":gqa=mean_q:m=1"),
    {"pqcache:skip=0:budget=24:sink=4:bits=3:p=0.6:min=2", ":budget=100:p=off", 24, 0},
    {RETRO, RETRIEVES, 24, 0},
    {RETRO ":est=100:skip=1", RETRIEVES, 24, 0},
    {RETRO ":segment=16:iters=3:est=0", RETRIEVES, 24, 0},
    {PARIS, RETRIEVES, 23, ONE_BY_ONE},
    {PARIS ":center=1", RETRIEVES, 23, 0}, /* the mean of the first prompt */
    {PARIS ":tiers=1:alpha=0", RETRIEVES, 23, ONE_BY_ONE},
    {PARIS ":rotate=0:rho=30:beta=40", RETRIEVES, 23, ONE_BY_ONE},
    /* band, sinks, at most twice the nominal blocks, and the block being filled */
    {ACT, BLOCKS, 3 + 16 + 2 * 12 + 4, WINDOWED | RAW},
    {ACT ":probe=mean:skip=1", BLOCKS, 3 + 16 + 2 * 12 + 4, WINDOWED | RAW},
    {ACT ":gqa=layer_mean", BLOCKS, 3 + 16 + 2 * 12 + 4, WINDOWED | RAW},
    {ACT ":pool=fixed", BLOCKS, 31 + 4, WINDOWED | RAW},
    {ACT ":question=4", BLOCKS, 3 + 16 + 2 * 12 + 4, WINDOWED | RAW},
    {INF ":budget=31", BLOCKS, 31 + 4, WINDOWED | RAW},
    {TOKEN, RETRIEVES, 31, WINDOWED | RAW},
    {TOKEN ":skip=1", RETRIEVES, 31, WINDOWED | RAW},
    {TOKEN ":local=3", RETRIEVES, 18, WINDOWED | RAW},
    {TOKEN ":reuse=20", RETRIEVES, 31, WINDOWED | RAW},
    {PIG, ":local=1000", 0, 0},
    {PIG ":K=1:L=40:skip=1", ":local=1000", 0, 0},
    {PIG ":K=7:L=60:sink=0:local=0:seed=1", ":local=1000", 0, 0},
    {"kivi:g=8:r=16", "", 0, ONE_BY_ONE},
    {"kivi:bits=4:g=8:r=24:key_residual=slide", "", 0, ONE_BY_ONE},
    {"kivi:g=4:r=8:sink_fp=3:skip=1", "", 0, ONE_BY_ONE},
    {"logquant:g=8:r=24", "", 0, ONE_BY_ONE},
    {"logquant:bits=4:g=4:r=13", "", 0, ONE_BY_ONE},
    {"logquant:g=1:r=12", "", 0, ONE_BY_ONE},
    {"logquant:quant=hf_axis0_g64:r=12", "", 0, ONE_BY_ONE},
};
enum { N_STRATEGIES = sizeof strategies / sizeof *strategies };

static const char *const stores[] = {
    "f32",
    "f16",
    "bf16",
    "kivi2:g=8:r=16",
    "kivi4:g=8:r=24:key_residual=slide:rows=bf16",
    "logquant:g=8:r=24:rows=f32",
    "logquant4:g=4:r=13",
    "kivi2:g=4:r=8:sink_fp=3",
    "logquant:quant=hf_axis0_g64:r=12",
    "hf2:r=12",
    "hf4:r=5:zero=float:sink_fp=3:rows=f32",
    "q8:rot=k",
    "q8:rot=off",
    "q4:rot=kv",
};
enum { N_STORES = sizeof stores / sizeof *stores };

/* Invalid combinations of a strategy (by its name) and a quantized, block or float store. */
static const struct {
    const char *name, *why;
    bool codes;
} refused[] = {
    {"kivi", "has its own store", true},
    {"logquant", "has its own store", true},
    {"oracle", "exact scores require f32, f16 or bf16", true},
    {"codes", "is not quantized; use a quantized store", false},
};

/* True if tokens leave the store into which they were written. */
static inline bool evicts(const product_row *s, const attn_spec *spec)
{
    return (s->most > 0 || (s->flags & DEMOTES)) && !attn_retrieves(spec);
}

/* True if rows are not plain numbers. */
static inline bool packed(const kv_format *kv)
{
    return kv_has_codes(kv) || kv_in_blocks(kv);
}

/* Returns why a strategy is refused over a store in the current layout. */
static inline const char *refusal(const int *window, const product_row *s, const kv_format *kv)
{
    if (s->flags & DEMOTES)
        return packed(kv) ? "demotion requires float rows" : window[1] > 0 ? "layer 1 has a window of" : NULL;
    if (strstr(s->spec, "certify") && kv_has_codes(kv) && (kv->bits < 4 || (kv->hf && !kv->float_zero)))
        return "certify over store";
    if (strstr(s->spec, "calibrate") && packed(kv)) return "calibrate over store";
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        size_t n = strcspn(s->spec, ":");
        bool found = refused[i].codes ? packed(kv) : !packed(kv);
        if (found && strncmp(s->spec, refused[i].name, n) == 0 && !refused[i].name[n]) return refused[i].why;
    }
    return NULL;
}

#endif
