/* SPDX-License-Identifier: MIT */
/* The table of strategies, and the text form of strategies: name[:key=value]... */
#include "config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "attention/certify.h"
#include "attention/format.h"
#include "kernels/base/fold.h"
#include "kernels/base/nearest.h"
#include "kernels/ops_fier.h"
#include "kernels/ops_quest.h"

static const attn_param certify_param = {CERTIFY_PARAM};

/* The table: each row is the name of a file and of the attn_method in it. */
#define METHODS(X)                                                                                                     \
    X(full)                                                                                                            \
    X(streaming)                                                                                                       \
    X(h2o)                                                                                                             \
    X(snapkv)                                                                                                          \
    X(tova)                                                                                                            \
    X(oracle)                                                                                                          \
    X(quest)                                                                                                           \
    X(fier)                                                                                                            \
    X(codes)                                                                                                           \
    X(pqcache)                                                                                                         \
    X(retroinfer)                                                                                                      \
    X(pariskv)                                                                                                         \
    X(actqkv)                                                                                                          \
    X(infllm)                                                                                                          \
    X(tokenselect)                                                                                                     \
    X(magicpig)                                                                                                        \
    X(mikv)                                                                                                            \
    X(kivi)                                                                                                            \
    X(logquant)
#define DECLARE(name) extern const attn_method attn_##name;
#define ROW(name)     &attn_##name,

METHODS(DECLARE)
static const attn_method *const table[] = {METHODS(ROW) NULL};

/* Chosen by measurements: doc/methods.md 13b. */
#define AUTO "fier:budget=4096:force_sink=4:force_recent=32"
static const attn_alias aliases[] = {
    {"auto", AUTO, "fier", AUTO ", exact up to 4096 tokens"},
    {NULL, NULL, NULL, NULL},
};

const attn_alias *attn_aliases(void)
{
    return aliases;
}

const attn_alias *attn_alias_find(const char *text)
{
    size_t n = strcspn(text, ":");
    for (const attn_alias *a = aliases; a->name; a++)
        if (strlen(a->name) == n && memcmp(a->name, text, n) == 0) return a;
    return NULL;
}

const attn_method *const *attn_methods(void)
{
    return table;
}

const char *attn_method_name(const attn_method *m)
{
    return m->name;
}

const attn_method *attn_method_find(const char *name)
{
    for (size_t i = 0; table[i]; i++)
        if (strcmp(table[i]->name, name) == 0) return table[i];
    return NULL;
}

/* Parses the number in [text, end), from 0 to max; -1: invalid. */
static int64_t layer_number(const char *text, const char *end, int64_t max)
{
    int64_t v = 0;
    if (text == end) return -1;
    for (; text < end; text++) {
        if (*text < '0' || *text > '9') return -1;
        v = 10 * v + (*text - '0');
        if (v > max) return -1;
    }
    return v;
}

static void first_layers(attn_layers *out, int64_t n)
{
    for (int64_t l = 0; l < n; l++) out->has[l] = true;
}

/* Parses "2", the first two layers, or "0+16", a list of layers. */
static bool read_skip(attn_layers *out, const char *text)
{
    *out = (attn_layers){0};
    if (!strchr(text, '+')) {
        int64_t n = layer_number(text, text + strlen(text), ATTN_MAX_LAYERS);
        first_layers(out, n);
        return n >= 0;
    }
    for (;; text++) {
        const char *end = text + strcspn(text, "+");
        int64_t layer = layer_number(text, end, ATTN_MAX_LAYERS - 1);
        if (layer < 0) return false;
        out->has[layer] = true;
        text = end;
        if (!*text) return true;
    }
}

/* what: the option up to the value. */
static status parse_skip(attn_layers *out, const char *text, const char *what, err *e)
{
    if (read_skip(out, text)) return ST_OK;
    return err_set(e, ST_USAGE,
                   "%s'%.40s', expected a number of leading layers from 0 to %d, or a list of layers such as 0+16",
                   what, text, ATTN_MAX_LAYERS);
}

/* In the order of attn_decode_kernel. */
static const attn_param decode_param = {
    .key = "decode",
    .choices = "auto rows tiles",
    .max = ATTN_DECODE_TILES,
    .help =
        "kernel of attention in decode steps; tiles: AMX, rows of f16 or bf16; auto: tiles only where --draft finds "
        "them faster"};

static status parse_decode(attn_decode_kernel *k, const char *value, const char *what, err *e)
{
    int64_t at;
    TRY(attn_param_parse(&at, &decode_param, value, what, e));
    *k = (attn_decode_kernel)at;
    return ST_OK;
}

static status parse_kv(kv_format *f, const char *value, const char *what, err *e)
{
    char text[ATTN_TEXT], where[ATTN_TEXT + 32];
    snprintf(text, sizeof text, "%s", value);
    for (char *p = text; *p; p++)
        if (*p == '/') *p = ':';
    snprintf(where, sizeof where, "%s: kv", what);
    return kv_format_parse(f, text, where, e);
}

/* Parameters of earlier versions, with the values that had no effect. */
static const struct {
    const char *method, *words;
} removed[] = {
    {"streaming", "compat=none tail=off"},
    {"h2o", "norm=none mode=decode pos=abs tail=off"},
    {"snapkv", "tail=off"},
    {"tova", "protect_last=0 tail=off"},
    {"oracle", "budget_mode=total pool=fixed of=candidates max"},
    {"quest", "est=mean budget_mode=total pool=fixed of=candidates max"},
    {"fier", "open=requant levels=range budget_mode=total pool=fixed of=candidates max"},
    {"codes", "budget_mode=total pool=fixed of=candidates max"},
    {"pqcache", "retrain=0 budget_mode=total of=candidates max force_sink force_recent"},
    {"retroinfer", "rank=vote gqa=vote budget_mode=total force_sink force_recent"},
    {"pariskv", "gqa=mean_q rounds=1 budget_mode=extra p=off min=64 tail=off tail_seed=42 max force_sink "
                "force_recent"},
    {"actqkv", "pool_prefill=0 seed=42 mask=once budget_mode=total force_sink force_recent"},
    {"infllm", "mask=once budget_mode=total force_sink force_recent"},
    {"tokenselect",
     "pos=slot pool=0 local_from=end scale=model heads=own reuse_most=16 budget_mode=extra force_sink force_recent"},
    {"magicpig", "flush=0 force_sink force_recent"}};

/* True if `word` is a removed parameter of a method, or key=value of one whose value had no effect. */
static bool was_removed(const char *method, const char *word)
{
    size_t n, len = strlen(word);
    const char *c;
    for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
        if (strcmp(removed[i].method, method) != 0) continue;
        for (int64_t w = 0; (c = attn_param_choice(removed[i].words, w, &n)); w++)
            if (n >= len && strncmp(c, word, len) == 0 && (n == len || c[len] == '=')) return true;
    }
    return false;
}

static status unknown_key(const attn_spec *s, const char *key, const char *what, err *e)
{
    nearest n;
    if (was_removed(s->method->name, key))
        return err_set(e, ST_USAGE, "%s: %s: parameter '%s' was removed, leave it out", what, s->method->name, key);
    nearest_start(&n, key);
    for (const attn_param *p = attn_params(s->method); p->key; p++) nearest_try(&n, p->key, strlen(p->key));
    nearest_try_words(&n, s->method->has_budget ? "budget skip decode kv" : "skip decode kv");
    return err_set(e, ST_USAGE, "%s: %s has no parameter '%s'%s, see --help-attn %s", what, s->method->name, key,
                   nearest_hint(&n), s->method->name);
}

static status set_value(attn_spec *s, const char *key, const char *value, const char *what, err *e)
{
    const attn_param *p = attn_params(s->method);
    if (strcmp(key, "skip") == 0) {
        char where[ATTN_TEXT + 32];
        snprintf(where, sizeof where, "%s: skip=", what);
        return parse_skip(&s->skip, value, where, e);
    }
    if (strcmp(key, "decode") == 0) return parse_decode(&s->decode, value, what, e);
    if (strcmp(key, "kv") == 0) return parse_kv(&s->kv, value, what, e);
    bool budget = strcmp(key, "budget") == 0;
    s->own_budget |= budget;
    if (budget && s->method->has_budget)
        return attn_param_parse(&s->budget, &(attn_param){.key = key, .max = ATTN_NO_BUDGET}, value, what, e);
    int i = attn_param_index(s->method, key);
    return i < 0 ? unknown_key(s, key, what, e) : attn_param_parse(&s->value[i], &p[i], value, what, e);
}

status attn_method_unknown(const char *option, const char *name, err *e)
{
    char list[160] = "";
    nearest near;
    nearest_start(&near, name);
    for (size_t i = 0; table[i]; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, " %s", table[i]->name);
        nearest_try(&near, table[i]->name, strlen(table[i]->name));
    }
    return err_set(e, ST_USAGE, "%s: unknown strategy '%.40s'%s; known:%s, or all", option, name, nearest_hint(&near),
                   list);
}

/* Returns the next key=value. The colon of tail=sample:N is part of the value. */
static char *next_word(char **save)
{
    char *word = strtok_r(NULL, ":", save);
    if (word && strcmp(word, "tail=sample") == 0 && **save) {
        char *end = word + strlen(word);
        strtok_r(NULL, ":", save);
        *end = ':';
    }
    return word;
}

/* Applies --certify. A method without a family attends everything and accepts any bound. */
static status set_certify(attn_spec *s, const char *eps, err *e)
{
    int i = attn_param_index(s->method, certify_param.key);
    int64_t value;
    TRY(attn_param_parse(&value, &certify_param, eps, "--certify", e));
    if (i >= 0) s->value[i] = value;
    s->uncertified = i < 0 && s->method->family && value > 0;
    return ST_OK;
}

static status certify_refused(const attn_spec *s, err *e)
{
    const char *why =
        s->method->family->drops
            ? "the attention of dropped tokens is unknown"
            : "page bounds and one-bit keys certify nothing (measured bound: 1.0); other indexes have no bounds";
    return err_set(e, ST_USAGE, "%s: --certify: %s; use codes over --kv kivi4", s->text, why);
}

status attn_spec_parse(attn_spec *s, const char *text, const attn_options *o, err *e)
{
    char copy[sizeof s->text], what[sizeof s->text + 16], *save = NULL;
    const attn_alias *as = attn_alias_find(text);
    const char *begin = as ? as->strategy : "", *rest = as ? text + strlen(as->name) : text;
    *s = (attn_spec){0};
    int n = snprintf(s->text, sizeof s->text, "%s%s", begin, rest);
    if ((size_t)n >= sizeof s->text) return err_set(e, ST_USAGE, "--attn: '%.40s...' is too long", text);
    strcpy(copy, s->text);
    snprintf(what, sizeof what, "--attn %s", s->text);
    char *name = strtok_r(copy, ":", &save);
    s->method = name ? attn_method_find(name) : NULL;
    if (!s->method) return attn_method_unknown("--attn", name ? name : text, e);
    for (int i = 0; attn_params(s->method)[i].key; i++) s->value[i] = attn_params(s->method)[i].def;
    s->kv = o->kv;
    if (o->tier) s->tier = *o->tier;
    if (s->method->has_budget) s->budget = o->budget || o->has_budget ? o->budget : s->method->def_budget;
    first_layers(&s->skip, s->method->def_skip);
    if (s->method->skip) read_skip(&s->skip, s->method->skip);
    if (o->skip) TRY(parse_skip(&s->skip, o->skip, "--skip: ", e));
    if (o->certify) TRY(set_certify(s, o->certify, e));
    for (char *kv; (kv = next_word(&save));) {
        char *eq = strchr(kv, '=');
        if (!eq) return err_set(e, ST_USAGE, "%s: '%s' is not key=value", what, kv);
        *eq = 0;
        TRY(set_value(s, kv, eq + 1, what, e));
    }
    return s->method->parse ? s->method->parse(s, e) : ST_OK;
}

status attn_spec_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    if (s->two_stores)
        return err_set(e, ST_USAGE, "%s: has its own store; --kv %s does not apply", s->text, kv_format_name(&s->kv));
    if (s->uncertified) return certify_refused(s, e);
    TRY(kv_format_check(&s->kv, shape, s->text, e));
    if (s->decode == ATTN_DECODE_TILES && !attn_takes_tiles(s))
        return err_set(e, ST_UNSUPPORTED, "%s: tiles need keys and values of f16 or bf16, not %s; use decode=rows",
                       s->text, kv_format_name(&s->kv));
    if (s->tier.kind != KV_DEVICE && s->method->family && s->method->family->drops)
        return err_set(e, ST_UNSUPPORTED,
                       "%s: --kv-tier %s is not supported: it drops tokens, and each step reads all others", s->text,
                       kv_tier_name(s->tier.kind));
    if (s->method->check) TRY(s->method->check(s, shape, e));
    if (s->method->has_budget && s->budget < 1)
        return err_set(e, ST_USAGE, "%s: budget %lld is too small, at least 1", s->text, (long long)s->budget);
    return ST_OK;
}

/* Returns the families of ops that a strategy calls with its parameters, store and tier. */
static unsigned families(const attn_spec *s)
{
    static const struct {
        const char *key;
        unsigned uses;
    } by_key[] = {{"demote", USES(codes)},
                  {"recall", USES(select) | USES(token)},
                  {"coarse", USES(quest)},
                  {"tail", USES(tail)},
                  {"certify", USES(certify)}};
    const attn_family *f = s->method->family;
    unsigned uses = s->method->uses | (f ? f->uses : 0);
    if (s->kv.kind != KV_PLAIN || kv_in_blocks(&s->kv)) uses |= USES(codes);
    if (s->tier.kind == KV_DISK) uses |= USES(tier);
    if (s->tier.kind == KV_HOST) uses |= USES(host);
    for (size_t i = 0; i < sizeof by_key / sizeof *by_key; i++)
        if (attn_value(s, by_key[i].key, 0) > 0) uses |= by_key[i].uses;
    return uses;
}

static status ranks_check(const attn_spec *s, const backend *be, err *e)
{
    const attn_family *f = s->method->family;
    const char *what = backend_ranks(be) > 1 && f && f->alone ? f->alone(s) : NULL;
    return what ? err_set(e, ST_UNSUPPORTED, "%s: not supported with %d ranks: %s", s->text, backend_ranks(be), what)
                : ST_OK;
}

status attn_backend_check(const attn_spec *s, const backend *be, err *e)
{
#define FAMILY_ROW(name, o, t) {#name, be->ops->name},
    const struct {
        const char *name;
        const void *ops;
    } all[] = {ATTN_FAMILIES(FAMILY_ROW)};
    unsigned uses = families(s);
    char names[64] = "";
    for (size_t i = 0, n = 0; i < sizeof all / sizeof *all; i++)
        if ((uses >> i & 1) && !all[i].ops)
            n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", n ? ", " : "", all[i].name);
    if (names[0])
        return err_set(e, ST_UNSUPPORTED, "%s: does not run on %s yet (missing operations: %s)", s->text, be->name,
                       names);
    if (s->decode == ATTN_DECODE_TILES && !be->tiles)
        return err_set(e, ST_UNSUPPORTED,
                       "%s: needs tiles (AMX), not %s; use decode=rows, or for tests "
                       "KVASIR_CPU=amx-emulated",
                       s->text, be->about);
    return ranks_check(s, be, e);
}

void attn_spec_params(const attn_spec *s, char *out, size_t size)
{
    size_t n = 0;
    char value[32];
    out[0] = 0;
#define ADD(...) n += n < size ? (size_t)snprintf(out + n, size - n, __VA_ARGS__) : 0
    if (attn_has_budget(s)) ADD("budget=%lld ", (long long)s->budget);
    for (int i = 0; attn_params(s->method)[i].key; i++) {
        const attn_param *p = &attn_params(s->method)[i];
        attn_param_text(value, p, s->value[i]);
        ADD("%s=%s ", p->key, value);
    }
    int leading = 0, listed = 0;
    while (leading < ATTN_MAX_LAYERS && s->skip.has[leading]) leading++;
    for (int l = leading; l < ATTN_MAX_LAYERS; l++) listed += s->skip.has[l];
    if (listed == 0) ADD("skip=%d", leading);
    for (int l = 0, first = 1; l < ATTN_MAX_LAYERS && listed > 0; l++) {
        if (!s->skip.has[l]) continue;
        ADD("%s%d", first ? "skip=" : "+", l);
        first = 0;
    }
    attn_param_text(value, &decode_param, s->decode);
    if (s->decode != ATTN_DECODE_AUTO) ADD(" decode=%s", value);
    ADD(" ");
    ADD("kv=");
#undef ADD
    if (n >= size) return;
    kv_format_text(&s->kv, out + n, size - n);
    for (char *p = out + n; *p; p++)
        if (*p == ':') *p = '/'; /* the form inside a strategy */
}

void attn_spec_write(const attn_spec *s, char strategy[ATTN_WRITTEN], char store[128])
{
    size_t n = (size_t)snprintf(strategy, ATTN_WRITTEN, "%s:", s->method->name);
    attn_spec_params(s, strategy + n, ATTN_WRITTEN - n);
    for (char *p = strategy; *p; p++)
        if (*p == ' ') *p = ':';
    char *kv = strstr(strategy, ":kv=");
    if (kv) *kv = 0;
    kv_format_text(&s->kv, store, 128);
}

void attn_spec_known(char out[ATTN_WRITTEN], const char *strategy)
{
    char copy[ATTN_WRITTEN], *save = NULL;
    snprintf(copy, sizeof copy, "%s", strategy);
    const char *name = strtok_r(copy, ":", &save);
    size_t n = (size_t)snprintf(out, ATTN_WRITTEN, "%s", name ? name : "");
    for (char *word; name && (word = strtok_r(NULL, ":", &save));)
        if (!was_removed(name, word)) n += (size_t)snprintf(out + n, ATTN_WRITTEN - n, ":%s", word);
}

status attn_spec_read(attn_spec *s, const char *strategy, const char *store, err *e)
{
    char again[ATTN_WRITTEN], kv[128], kept[ATTN_WRITTEN];
    attn_options o = {.kv = kv_plain(DT_F16)};
    kv_format f;
    TRY(kv_format_parse(&f, store, "--kv", e));
    attn_spec_known(kept, strategy);
    TRY(attn_spec_parse(s, kept, &o, e));
    o.kv = s->kv.kind == KV_PLAIN ? f : kv_plain(f.type); /* a method that is a store has its own format */
    TRY(attn_spec_parse(s, kept, &o, e));
    attn_spec_write(s, again, kv);
    if (strcmp(again, kept) == 0 && strcmp(kv, store) == 0) return ST_OK;
    return err_set(e, ST_FORMAT, "'%.60s' is not a strategy written by this version", strategy);
}

enum { HELP_COLUMN = 28 }; /* column of the meanings of parameters */

/* Prints a row of a strategy's parameters. */
static void print_row(FILE *f, const char *key, const char *value, const char *help)
{
    int at = fprintf(f, "  %-12s %-12s ", key, value);
    fold_print(f, help, at, HELP_COLUMN);
}

static void print_param(FILE *f, const attn_param *p)
{
    char value[32], range[64], help[512];
    attn_param_text(value, p, p->def);
    if (!p->choices) return print_row(f, p->key, value, p->help);
    attn_param_range(p, range);
    snprintf(help, sizeof help, "%s (one of: %s%s)", p->help, p->choices, range);
    print_row(f, p->key, value, help);
}

static void print_summary(FILE *f, const char *name, const char *summary)
{
    int at = fprintf(f, "  %-11s ", name);
    fold_print(f, summary, at, at);
}

void attn_print_help(FILE *f, const attn_method *m)
{
    if (!m) {
        for (size_t i = 0; table[i]; i++) print_summary(f, table[i]->name, table[i]->summary);
        for (const attn_alias *a = aliases; a->name; a++) print_summary(f, a->name, a->summary);
        print_summary(f, "all", "every strategy (in lists)");
        return;
    }
    int at = fprintf(f, "%s: ", m->name);
    fold_print(f, m->summary, at, 2);
    at = fprintf(f, "  source: ");
    fold_print(f, m->source, at, at);
    fprintf(f, "\n  key          default      meaning\n");
    if (m->has_budget) {
        attn_param b = {"budget",      NULL, "tokens kept or attended (doc/methods.md 0.2.3); also --budget",
                        m->def_budget, 1,    0};
        print_param(f, &b);
    }
    for (const attn_param *p = attn_params(m); p->key; p++) print_param(f, p);
    char skip[24];
    snprintf(skip, sizeof skip, "%d", m->def_skip);
    print_row(f, "skip", m->skip ? m->skip : skip,
              "leading layers that run full attention, or a list a+b+c; also --skip");
    print_param(f, &decode_param);
    print_row(f, "kv", "f16",
              "store of keys and values: --kv with / for : (kivi, logquant: the type of unquantized rows)");
}
