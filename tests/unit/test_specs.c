/* SPDX-License-Identifier: MIT */
/* Strategy specifications: refused ones and their messages; parameters and their printed form. */
#include "config.h"

#include <string.h>

#include "attention/sequence.h"
#include "tests/tap.h"

static int no_window[1];
static attn_shape shape = {.n_layers = 1, .n_heads = 1, .n_kv_heads = 1, .head_dim = 8, .window = no_window};

/* Parsed, and checked for the shape; kv NULL: f16. */
static status read_spec(attn_spec *s, const char *text, const char *kv, err *e)
{
    attn_options o = {.kv = kv_plain(DT_F16)};
    *e = (err){0};
    if (kv) TRY(kv_format_parse(&o.kv, kv, "--kv", e));
    TRY(attn_spec_parse(s, text, &o, e));
    return attn_spec_check(s, &shape, e);
}

static const struct {
    const char *text, *part, *kv;
} refused[] = {
    {"nothing", "unknown strategy 'nothing'; known: full", NULL},
    {"qest:page=8", "unknown strategy 'qest' (did you mean 'quest'?); known", NULL},
    {"full:budget=3", "no parameter 'budget'", NULL},
    {"quest:pgae=16", "quest has no parameter 'pgae' (did you mean 'page'?), see", NULL},
    {"quest:buget=16", "(did you mean 'budget'?)", NULL},
    {"quest:gqa=votes", "layer_concat (did you mean 'vote'?)", NULL},
    {"quest:kv=kivi22", "unknown store 'kivi22' (did you mean 'kivi2'?)", NULL},
    {"quest:kv=kivi2/sink_pf=4", "(did you mean 'sink_fp'?)", NULL},
    {"streaming:sink", "not key=value", NULL},
    {"streaming:sink=x", "expected a number", NULL},
    {"streaming:pos=up", "one of: reindex abs", NULL},
    {"streaming:skip=1+", "skip='1+', expected a number of leading layers", NULL},
    {"streaming:skip=+", "skip='+', expected", NULL},
    {"streaming:skip=1++2", "skip='1++2', expected", NULL},
    {"streaming:skip=0+256", "skip='0+256', expected", NULL},
    {"streaming:skip=257", "skip='257', expected", NULL},
    {"streaming:skip=-1", "skip='-1', expected", NULL},
    {"streaming:skip=", "skip='', expected", NULL},
    {"streaming:skip=18446744073709551617", "expected", NULL},
    {"streaming:budget=99999999999999999999", "expected a number", NULL},
    {"", "unknown strategy", NULL},
    {"h2o:budget=1", "budget 1 is too small, at least 2", NULL},
    {"h2o:budget=8:hh=9", "hh=9, at most the budget of 8", NULL},
    {"h2o:budget=8:recent=9", "recent=9, at most the budget of 8", NULL},
    {"h2o:gqa=vote", "already a softmax; use sum_s", NULL},
    {"h2o:gqa=mean_q", "each query has its own weights", NULL},
    {"h2o:gqa=layer_concat", "use layer_mean", NULL},
    {"h2o:mode=oneshot", "parameter 'mode' was removed, leave it out", NULL},
    {"h2o:demote=kivi", "one of: none token2 token4 f16 kivi2 kivi4", NULL},
    {"quest:budget_mode=extra", "quest: parameter 'budget_mode' was removed, leave it out", NULL},
    {"codes:max=9", "codes: parameter 'max' was removed", NULL},
    {"pqcache:force_sink=4", "pqcache: parameter 'force_sink' was removed", NULL},
    {"infllm:mask=once", "infllm: parameter 'mask' was removed", NULL},
    {"mikv:tail=all", "no parameter 'tail'", NULL},
    {"streaming:tail=off", "streaming: parameter 'tail' was removed", NULL},
    {"tova:tail=sample:32", "tova: parameter 'tail' was removed", NULL},
    {"fier:tail=all", "tail='all', expected one of: off or sample:N", NULL},
    {"fier:tail=16", "tail='16', expected one of: off or sample:N", NULL},
    {"fier:tail=sample", "tail='sample', expected one of: off or sample:N", NULL},
    {"fier:tail=sample:g=8", "tail='g=8', expected a number from 2 to 1024", NULL},
    {"fier:tail=sample:1", "tail='1', expected a number from 2 to 1024", NULL},
    {"fier:tail=sample:1025:g=8", "tail='1025', expected a number from 2 to 1024", NULL},
    {"fier:tail=sample:8:8", "'8' is not key=value", NULL},
    {"tova:demote=token2:recall=some", "recall='some', expected all or a number from 0 to 1073741824", NULL},
    {"h2o:demote=token2:recall=-1", "recall='-1', expected all or a number from 0", NULL},
    {"snapkv:budget=1", "budget 1 is too small, at least 2", NULL},
    {"snapkv:budget=8:window=8", "budget 8 is too small, at least window + 1 = 9", NULL},
    {"snapkv:kernel=4", "kernel=4, expected an odd number", NULL},
    {"snapkv:window=0", "window=0, at least 1", NULL},
    {"snapkv:gqa=vote", "already a softmax; use sum_s", NULL},
    {"tova:budget=0", "budget 0 is too small, at least 1", NULL},
    {"tova:gqa=layer_vote", "use layer_mean", NULL},
    {"tova:protect_last=1", "parameter 'protect_last' was removed, leave it out", NULL},
    {"pariskv:budget=-1", "budget='-1', expected a number from 0", NULL},
    {"pariskv:u=0", "u='0', expected a number from 1", NULL},
    {"pariskv:rho=101", "expected a number from 0 to 100", NULL},
    {"pariskv:tiers=2", "one of: 6 1", NULL},
    {"magicpig:K=15", "expected a number from 1 to 14", NULL},
    {"magicpig:L=1", "expected a number from 2 to 4096", NULL},
    {"magicpig:budget=3", "no parameter 'budget'", NULL},
    {"kivi:bits=3", "bits='3', expected one of: 2 4", NULL},
    {"kivi:r=40", "r=40 is not a multiple of g=32", NULL},
    {"full:kv=kivi2/r=40", "kv: r=40 is not a multiple of g=32", NULL},
    {"full:kv=kivi5", "unknown store 'kivi5'", NULL},
    {"kivi:budget=3", "no parameter 'budget'", NULL},
    {"oracle:budget=8:force_sink=4:force_recent=5", "budget 8 is too small, at least 9", NULL},
    {"oracle:kv=kivi2", "store kivi2", NULL},
    {"codes", "is not quantized; use a quantized store", NULL},
    {"codes:budget=64:kv=kivi4", "budget 64 is too small, at least 129: the newest 128 tokens are always attended",
     NULL},
    {"codes:budget=42:kv=logquant", "at least 43", NULL},
    {"codes:budget=36:force_sink=4:kv=kivi4/r=32", "at least 37", NULL},
    {"pqcache:p=0.9:min=257", "min 257, expected at most the budget, 256", NULL},
    {"codes:p=0.9:min=300:kv=kivi4", "min 300, expected at most the budget", NULL},
    {"codes:certify=0.1:budget=200:min=300:kv=kivi4", "min 300, expected at most the budget", NULL},
    {"codes:certify=0.1", "is not quantized; use a quantized store", NULL},
    {"codes:certify=1:kv=kivi4", "certify='1', expected off or a number in (0, 1) of up to 4 decimals", NULL},
    {"codes:certify=0.1:kv=kivi2", "certify over store kivi2:g=32:r=128", NULL},
    {"codes:certify=0.1:p=0.9:kv=kivi4", "p and certify are mutually exclusive", NULL},
    {"codes:certify=0.1:gqa=mean_q:kv=kivi4", "certify requires scores per query head", NULL},
    {"oracle:p=0", "p='0', expected off or a number in (0, 1]", NULL},
    {"quest:p=1.01", "p='1.01', expected off or a number in (0, 1]", NULL},
    {"quest:p=0.00001", "of up to 4 decimals", NULL},
    {"fier:p=nan", "p='nan'", NULL},
    {"fier:p=0.9x", "p='0.9x'", NULL},
    {"fier:calibrate=64", "calibrate requires p", NULL},
    {"fier:p=0.9:calibrate=1", "calibrate=1: must be 0 or at least 2", NULL},
    {"fier:p=0.9:calibrate=8:coarse=64", "calibrate requires the scores of all tokens; use coarse=0", NULL},
    {"fier:p=0.9:calibrate=8:kv=kivi4", "calibrate over store kivi4", NULL},
    {"fier:p=0.9:budget=63", "min 64, expected at most the budget, 63", NULL},
    {"quest:budget=15", "at least one page = 16", NULL},
    {"quest:coarse=40", "coarse 40, expected a multiple of page = 16", NULL},
    {"fier:budget=8:force_sink=4:force_recent=5", "at least 9", NULL},
    {"pqcache:budget=33", "budget 33 is too small, at least sink + local + 1 = 34", NULL},
    {"pqcache:m=17", "m='17', expected a number from 1 to 16", NULL},
    {"pqcache:bits=9", "bits='9', expected a number from 1 to 8", NULL},
    {"actqkv:budget=607", "at least sink + local + block = 608", NULL},
    {"actqkv:gqa=vote", "one of: layer_concat layer_mean", NULL},
    {"actqkv:block=8:reps=9", "at most block = 8", NULL},
    {"actqkv:window=0", "window='0'", NULL},
    {"actqkv:choose=worst", "one of: best all random newest", NULL},
    {"infllm:budget=4351", "at least sink + local + block = 4352", NULL},
    {"infllm:block=8:reps=9", "at most block = 8", NULL},
    {"infllm:pool=fixed", "no parameter 'pool'", NULL},
    {"actqkv:probe=max", "one of: act mean", NULL},
    {"actqkv:choose=newest:question=4", "question=4 requires choose=best", NULL},
    {"actqkv:question=-1", "question='-1'", NULL},
    {"tokenselect:reuse=102", "reuse='102'", NULL},
    {"tokenselect:pos=slot", "parameter 'pos' was removed, leave it out", NULL},
    {"kivi", "kivi: has its own store; --kv kivi4 does not apply", "kivi4"},
    {"logquant:kv=kivi2/r=64", "has its own store; --kv kivi2", "f16"},
    {"streaming:budget=4", "at least sink + 1 = 5", NULL},
    {"retroinfer:budget=84", "budget 84 is too small, at least sink + local + update + 1 = 85", NULL},
    {"retroinfer:budget=100:update=32", "at least sink + local + update + 1 = 101", NULL},
    {"retroinfer:update=100", "update 100, expected a multiple of size = 16", NULL},
    {"quest:skip=0+256", "list of layers", NULL},
};

static const char *const params[][2] = {
    {"h2o:budget=9", "budget=9 hh=4 recent=5 gqa=mean_s prefill_evict=end demote=none "
                     "demote_g=32 recall=all skip=0 kv=f16"},
    {"h2o:hh=4:recent=10", "budget=14 hh=4 recent=10 gqa=mean_s prefill_evict=end "
                           "demote=none demote_g=32 recall=all skip=0 kv=f16"},
    {"snapkv:budget=9", "budget=9 window=4 kernel=7 pool=max gqa=mean_s recompress_on_turn=0 demote=none demote_g=32 "
                        "recall=all skip=0 kv=f16"},
    {"tova:budget=9:demote=kivi4:demote_g=8:recall=3", "budget=9 gqa=layer_mean prefill_evict=end "
                                                       "demote=kivi4 demote_g=8 recall=3 skip=0 kv=f16"},
    {"tova:budget=9", "budget=9 gqa=layer_mean prefill_evict=end demote=none demote_g=32 recall=all "
                      "skip=0 kv=f16"},
    {"streaming:budget=128:pos=abs:sink=8:skip=0+2",
     "budget=128 sink=8 pos=abs prefill=auto demote=none demote_g=32 recall=all skip=0+2 kv=f16"},
    {"oracle:p=0.9:budget=300", "budget=300 force_sink=0 force_recent=0 gqa=vote p=0.9 min=64 "
                                "tail=off tail_seed=42 skip=2 kv=f16"},
    {"pariskv", "budget=512 sink=64 local=256 u=512 full_thr=2048 rho=0 beta=0 center=0 tiers=6 alpha=1 "
                "rotate=1 skip=0 kv=f16"},
    {"codes:kv=kivi4/r=32:certify=0.05", "force_sink=0 force_recent=0 gqa=vote p=off min=64 certify=0.05 "
                                         "skip=2 kv=kivi4/g=32/r=32/key_residual=block/sink_fp=0/rows=f16"},
    {"magicpig:sink=5", "K=10 L=150 sink=5 local=64 seed=42 skip=0+16+32+48+64 kv=f16"},
    {"magicpig:skip=2:L=9", "K=10 L=9 sink=4 local=64 seed=42 skip=2 kv=f16"},
    {"kivi:bits=4:r=64", "bits=4 g=32 r=64 key_residual=block sink_fp=0 skip=0 "
                         "kv=kivi4/g=32/r=64/key_residual=block/sink_fp=0/rows=f16"},
};

static void check_texts(void)
{
    attn_spec s;
    err e;
    char text[320];
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        is_err(read_spec(&s, refused[i].text, refused[i].kv, &e), &e, ST_USAGE, refused[i].part, "refused: '%s'",
               refused[i].text);
    for (size_t i = 0; i < sizeof params / sizeof *params; i++) {
        is_ok(read_spec(&s, params[i][0], NULL, &e), &e, "%s", params[i][0]);
        attn_spec_params(&s, text, sizeof text);
        is_str(text, params[i][1], "its parameters");
    }
    is_ok(read_spec(&s, "quest:skip=0+16+32+48+64", NULL, &e), &e, "layers beyond 63");
    attn_spec_params(&s, text, sizeof text);
    ok(strstr(text, "skip=0+16+32+48+64 ") && s.skip.has[64] && !s.skip.has[63], "come back: %s", text);
}

/* Specifications that depend on the model. */
static void check_shapes(void)
{
    attn_spec s;
    err e;
    is_err(read_spec(&s, "logquant:quant=hf_axis0_g64", NULL, &e), &e, ST_UNSUPPORTED, "multiple of 64",
           "head_dim 8 with quant=hf_axis0_g64");
    is_err(read_spec(&s, "fier:kv=hf4/r=32", NULL, &e), &e, ST_UNSUPPORTED,
           "hf4 needs a head_dim that is a multiple of 64", "head_dim 8 over hf4");
    is_err(read_spec(&s, "full:kv=q8", NULL, &e), &e, ST_UNSUPPORTED, "q8 needs a head_dim that is a multiple of 32",
           "head_dim 8 over q8");
    shape.head_dim = 96;
    is_err(read_spec(&s, "full:kv=q4/rot=k", NULL, &e), &e, ST_UNSUPPORTED,
           "q4 needs a head_dim that is a power of two for rot=k, this model has 96; use rot=off",
           "head_dim 96 over q4:rot=k");
    is_ok(read_spec(&s, "full:kv=q4/rot=off", NULL, &e), &e, "head_dim 96 over q4:rot=off");
    is_err(read_spec(&s, "kivi:kv=q8", NULL, &e), &e, ST_USAGE, "has its own store", "kivi over q8");
    shape.head_dim = 258;
    is_err(read_spec(&s, "pariskv", NULL, &e), &e, ST_UNSUPPORTED, "head_dim 258 is too large, at most 256",
           "a head that is too wide");
    shape.head_dim = 8;
}

/* Returns the store that a strategy needs if it does not run over every store. */
static const char *store_of(const char *name)
{
    return strcmp(name, "codes") == 0 ? ":kv=kivi4" : "";
}

static void check_alias(void)
{
    attn_spec s;
    char name[ATTN_WRITTEN], store[128];
    const attn_options few = {.budget = 8, .has_budget = true, .kv = kv_plain(DT_F16)};
    err e = {0};
    is_ok(attn_spec_parse(&s, "auto", &few, &e), &e, "auto");
    is_str(s.text, "fier:budget=4096:force_sink=4:force_recent=32", "is a strategy with a budget");
    is_int(s.budget, 4096, "whatever --budget is");
    attn_spec_write(&s, name, store);
    ok(strncmp(name, "fier:budget=4096:", 17) == 0, "is written under the strategy's name: %s", name);
    is_ok(attn_spec_parse(&s, "auto:skip=1:budget=64", &few, &e), &e, "auto with parameters");
    is_int(s.budget, 64, "whose parameters come last");
    ok(s.skip.has[0] && !s.skip.has[1], "all of them");
    is_err(attn_spec_parse(&s, "auto:page=4", &few, &e), &e, ST_USAGE, "has no parameter 'page'", "no others");
    ok(!attn_alias_find("automatic") && !attn_alias_find("") && attn_alias_find("auto:p=0.9"), "names of aliases");
}

/* --budget, --skip, --kv. */
static void check_options(void)
{
    attn_spec s;
    char text[160];
    err e = {0};
    is_ok(attn_spec_parse(&s, "streaming:pos=abs", &(attn_options){.budget = 128, .skip = "1", .kv = kv_plain(DT_BF16)},
                          &e),
          &e, "with options");
    attn_spec_params(&s, text, sizeof text);
    is_str(text, "budget=128 sink=4 pos=abs prefill=auto demote=none demote_g=32 recall=all skip=1 kv=bf16",
           "they count");
    is_err(attn_spec_parse(&s, "quest", &(attn_options){.skip = "x", .kv = kv_plain(DT_F16)}, &e), &e, ST_USAGE,
           "--skip: 'x', expected", "--skip is what was written");
    for (size_t i = 0; attn_methods()[i]; i++) {
        attn_options zero = {.has_budget = true, .kv = kv_plain(DT_F16)};
        const char *name = attn_method_name(attn_methods()[i]);
        err none = {0};
        snprintf(text, sizeof text, "%s%s", name, store_of(name));
        is_ok(attn_spec_parse(&s, text, &zero, &none), &none, "%s", text);
        status st = attn_spec_check(&s, &shape, &none);
        ok(attn_has_budget(&s) ? st == ST_USAGE && strstr(none.msg, "at least") : st == ST_OK,
           "%s: a budget of 0 is refused with the least one (%s)", name, none.msg);
    }
}

static void check_gqa(void)
{
    static const struct {
        const char *text;
        gqa_mode gqa;
    } shares[] = {
        {"full", GQA_LAYER_VOTE},
        {"streaming", GQA_LAYER_VOTE},
        {"kivi", GQA_LAYER_VOTE},
        {"logquant", GQA_LAYER_VOTE},
        {"h2o", GQA_MEAN_S},
        {"h2o:gqa=per_q", GQA_PER_Q},
        {"snapkv:gqa=max_s", GQA_MAX_S},
        {"tova", GQA_LAYER_MEAN},
        {"tova:gqa=mean_s", GQA_MEAN_S},
        {"oracle", GQA_VOTE},
        {"quest", GQA_VOTE},
        {"fier:gqa=mean_q", GQA_MEAN_Q},
        {"codes:kv=kivi4", GQA_VOTE},
        {"pqcache", GQA_VOTE},
        {"pariskv", GQA_MEAN_Q},
        {"magicpig", GQA_PER_Q},
        {"actqkv", GQA_LAYER_CONCAT},
        {"actqkv:gqa=layer_mean", GQA_LAYER_MEAN},
        {"tokenselect", GQA_LAYER_VOTE},
    };
    for (size_t i = 0; i < sizeof shares / sizeof *shares; i++) {
        attn_spec s;
        err e;
        is_ok(read_spec(&s, shares[i].text, NULL, &e), &e, "%s", shares[i].text);
        is_int(attn_gqa(&s), shares[i].gqa, "%s: how heads share", shares[i].text);
    }
}

/* Forced tokens have the same keys in every strategy that retrieves; what a budget counts has a word. */
static void check_forced(void)
{
    static const char *const counts[][2] = {
        {"full", "-"},
        {"kivi", "-"},
        {"streaming", "kept"},
        {"h2o", "kept"},
        {"h2o:gqa=per_q", "kept/q"},
        {"tova:demote=token4", "exact"},
        {"streaming:demote=token2", "exact"},
        {"snapkv", "prompt"},
        {"oracle", "total"},
        {"quest", "total"},
        {"codes:kv=kivi4", "total"},
        {"codes:kv=kivi4:certify=0.1", "-"},
        {"codes:kv=kivi4:certify=0.1:budget=300", "total"},
        {"pqcache", "total"},
        {"pariskv", "+forced"},
        {"actqkv", "total"},
        {"infllm", "total"},
        {"tokenselect", "+forced"},
        {"magicpig", "-"},
    };
    attn_spec s;
    err e = {0};
    char word[16];
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        is_ok(read_spec(&s, counts[i][0], NULL, &e), &e, "%s", counts[i][0]);
        attn_budget_counts(&s, word);
        is_str(word, counts[i][1], "what its budget counts");
    }
    is_err(read_spec(&s, "streaming:force_sink=3", NULL, &e), &e, ST_USAGE, "no parameter 'force_sink'",
           "what evicts has no such keys");
}

/* Strategies that rotate keys or queries themselves use one rotary embedding and refuse a model with two. */
static void check_ropes(void)
{
    static const char *const rotate[] = {"streaming", "infllm", "actqkv", "tokenselect"};
    shape.n_ropes = 2;
    for (const attn_method *const *m = attn_methods(); *m; m++) {
        const char *name = attn_method_name(*m);
        attn_spec s;
        err e;
        bool is_one = false;
        for (size_t i = 0; i < sizeof rotate / sizeof *rotate; i++) is_one |= strcmp(name, rotate[i]) == 0;
        const status st = read_spec(&s, name, NULL, &e);
        ok((st == ST_UNSUPPORTED && strstr(e.msg, "2 rotary embeddings")) == is_one, "%s over two ropes: %s", name,
           e.msg);
    }
    shape.n_ropes = 1;
}

int main(void)
{
    check_ropes();
    check_forced();
    check_texts();
    check_shapes();
    check_options();
    check_alias();
    check_gqa();
    return tap_done();
}
