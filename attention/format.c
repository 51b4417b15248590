/* SPDX-License-Identifier: MIT */
/* Text forms of stores, parameters and tiers: name[:key=value]... */
#include "config.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "attention/format.h"
#include "kernels/base/nearest.h"

enum { P_BITS, P_G, P_R, P_VARIANT, P_SINK };
enum { P_ROT = 1, ROT_KV = 2 };
static const char rotations[] = "off k kv";
static const unsigned rotated_of[] = {0, KV_ROTATED_K, KV_ROTATED_K | KV_ROTATED_V};
enum { HF_RUN = 64 }; /* channels per run in quanto, not configurable */

const attn_param kv_kivi_params[] = {
    [P_BITS] = {"bits", "2 4", "bits per number", 0, 0, 1},
    [P_G] = {"g", NULL, "group size: tokens for keys, channels for values", 32, 1, 1024},
    [P_R] = {"r", NULL, "newest tokens kept unquantized, a multiple of g", 128, 1, 1 << 20},
    [P_VARIANT] = {"key_residual", "block slide",
                   "quantize keys r tokens at a time, or g at a time while the newest r stay unquantized", 0, 0, 1},
    [P_SINK] = {"sink_fp", NULL, "first tokens kept unquantized", 0, 0, 1 << 20},
    {.key = NULL},
};
const attn_param kv_logquant_params[] = {
    [P_BITS] = {"bits", "2 4", "bits per number", 0, 0, 1},
    [P_G] = {"g", NULL, "group size: tokens for keys, channels for values", 32, 1, 1024},
    [P_R] = {"r", NULL,
             "unquantized tokens: 2W to 3W, W = r / 3; for r = 128 all but the first are among the newest 314", 128, 3,
             1 << 20},
    [P_VARIANT] = {"quant", "kivi hf_axis0_g64",
                   "quantize keys by channel, or keys and values by token (runs of 64 channels, as quanto)", 0, 0, 1},
    {.key = NULL},
};
static const attn_param hf_params[] = {
    [P_BITS] = {"bits", "2 4", "bits per number", 0, 0, 1},
    {"r", NULL, "tokens after a prompt kept unquantized until there are r; then all of them are quantized", 128, 1,
     1 << 20},
    {"zero", "int float",
     "zero point of 64 channels: an integer (quanto 0.2.0) or a float (optimum-quanto 0.2.5 and later)", 0, 0, 1},
    {"sink_fp", NULL, "first tokens kept unquantized (LogQuant's KiViSink: 2)", 0, 0, 1 << 20},
    {.key = NULL},
};
static const attn_param block_params[] = {
    [P_BITS] = {"bits", "4 8", "bits per number", 0, 0, 1},
    [P_ROT] = {"rot", rotations, "rows rotated by a Hadamard matrix: none, keys, or keys and values", ROT_KV, 0, 2},
    {.key = NULL},
};
static const attn_param rows_param = {"rows", "f16 bf16 f32", "type of unquantized rows", 0, 0, 2};
static const dtype row_types[] = {DT_F16, DT_BF16, DT_F32};

static const struct {
    const char *name;
    kv_kind kind;
    dtype type;
    int bits;
    const attn_param *params; /* after P_BITS, which the name determines */
} stores[] = {
    {"f16", KV_PLAIN, DT_F16, 0, NULL},
    {"bf16", KV_PLAIN, DT_BF16, 0, NULL},
    {"f32", KV_PLAIN, DT_F32, 0, NULL},
    {"q8", KV_PLAIN, DT_Q8, 8, block_params},
    {"q4", KV_PLAIN, DT_Q4, 4, block_params},
    {"kivi2", KV_KIVI, DT_F16, 2, kv_kivi_params},
    {"kivi4", KV_KIVI, DT_F16, 4, kv_kivi_params},
    {"logquant", KV_LOGQUANT, DT_F16, 2, kv_logquant_params},
    {"logquant4", KV_LOGQUANT, DT_F16, 4, kv_logquant_params},
    {"hf2", KV_HF, DT_F16, 2, hf_params},
    {"hf4", KV_HF, DT_F16, 4, hf_params},
};
enum { N_STORES = sizeof stores / sizeof *stores };

const char *attn_param_choice(const char *list, int64_t i, size_t *n)
{
    for (; i > 0 && list; i--) {
        list = strchr(list, ' ');
        if (list) list++;
    }
    if (list) *n = strcspn(list, " ");
    return list;
}

const char attn_or_all[] = "all or a number";

static status parse_number(int64_t *out, const attn_param *p, const char *text, const char *what, err *e)
{
    char *end;
    bool or_all = p->choices == attn_or_all, all = or_all && strcmp(text, "all") == 0;
    errno = 0;
    long long v = all ? ATTN_ALL : strtoll(text, &end, 10);
    if (!all && (end == text || *end || errno || v < p->min || v > p->max))
        return err_set(e, ST_USAGE, "%s: %s='%s', expected %sa number from %lld to %lld", what, p->key, text,
                       or_all ? "all or " : "", (long long)p->min, (long long)p->max);
    *out = v;
    return ST_OK;
}

const char attn_or_sample[] = "off";
static const char sample_word[] = "sample:";

static bool is_sample(const attn_param *p, const char *text)
{
    return p->choices == attn_or_sample && strncmp(text, sample_word, strlen(sample_word)) == 0;
}

static status parse_sample(int64_t *out, const attn_param *p, const char *text, const char *what, err *e)
{
    const attn_param number = {.key = p->key, .min = 2, .max = p->max};
    char where[ATTN_TEXT + 64];
    snprintf(where, sizeof where, "%s: %s=%s", what, p->key, sample_word);
    where[strlen(where) - 1] = 0;
    return parse_number(out, &number, text + strlen(sample_word), where, e);
}

const char attn_fraction[] = "off or a number in (0, 1]";

static status parse_fraction(int64_t *out, const attn_param *p, const char *text, const char *what, err *e)
{
    char *end;
    double x = strtod(text, &end), parts = floor(x * ATTN_FRACTION + 0.5);
    bool plain = strspn(text, "0123456789.") == strlen(text);
    *out = 0;
    if (strcmp(text, "off") == 0) return ST_OK;
    if (end == text || *end || !plain || !(x > 0 && parts <= (double)p->max) || fabs(x * ATTN_FRACTION - parts) > 1e-6)
        return err_set(e, ST_USAGE, "%s: %s='%.40s', expected %s of up to 4 decimals", what, p->key, text,
                       p->max < ATTN_FRACTION ? "off or a number in (0, 1)" : attn_fraction);
    *out = (int64_t)parts;
    return ST_OK;
}

void attn_param_text(char out[32], const attn_param *p, int64_t value)
{
    size_t n = 0;
    bool or_all = p->choices == attn_or_all;
    const char *c = attn_param_choice(or_all ? NULL : p->choices, value, &n);
    if (p->choices == attn_fraction && value == 0) snprintf(out, 32, "off");
    else if (p->choices == attn_fraction) snprintf(out, 32, "%.4g", (double)value / ATTN_FRACTION);
    else if (p->choices == attn_or_sample && value > 0) snprintf(out, 32, "%s%lld", sample_word, (long long)value);
    else if (or_all && value == ATTN_ALL) snprintf(out, 32, "all");
    else if (c) snprintf(out, 32, "%.*s", (int)n, c);
    else snprintf(out, 32, "%lld", (long long)value);
}

/* Returns the number of words that values can select. */
static int64_t words_of(const attn_param *p)
{
    int64_t n = 0;
    size_t len;
    while (n <= p->max && attn_param_choice(p->choices, n, &len)) n++;
    return n;
}

void attn_param_range(const attn_param *p, char out[64])
{
    out[0] = 0;
    if (p->choices == attn_fraction || p->choices == attn_or_all) return;
    int64_t words = words_of(p);
    if (p->choices == attn_or_sample) snprintf(out, 64, " or %sN", sample_word);
    else if (words <= p->max) snprintf(out, 64, " or a number from %lld to %lld", (long long)words, (long long)p->max);
}

status attn_param_parse(int64_t *out, const attn_param *p, const char *text, const char *what, err *e)
{
    size_t n = 0;
    char range[64];
    if (p->choices == attn_fraction) return parse_fraction(out, p, text, what, e);
    if (is_sample(p, text)) return parse_sample(out, p, text, what, e);
    if (!p->choices || p->choices == attn_or_all) return parse_number(out, p, text, what, e);
    int64_t words = words_of(p);
    for (int64_t i = 0; i < words; i++) {
        const char *c = attn_param_choice(p->choices, i, &n);
        if (strlen(text) == n && strncmp(c, text, n) == 0) {
            *out = i;
            return ST_OK;
        }
    }
    const attn_param number = {.key = p->key, .min = words, .max = p->max};
    if (p->choices != attn_or_sample && words <= p->max && strspn(text, "-0123456789") > 0)
        return parse_number(out, &number, text, what, e);
    attn_param_range(p, range);
    nearest near;
    nearest_start(&near, text);
    nearest_try_words(&near, p->choices);
    return err_set(e, ST_USAGE, "%s: %s='%s', expected one of: %s%s%s", what, p->key, text, p->choices, range,
                   nearest_hint(&near));
}

/* Returns the value of the parameter `key`, or `none` if there is no such parameter. */
static int64_t value_of(const attn_param *p, const int64_t *value, const char *key, int64_t none)
{
    for (int i = 0; p[i].key; i++)
        if (strcmp(p[i].key, key) == 0) return value[i];
    return none;
}

/* Builds a quantized format from parameter values; its float rows have `type`. */
static status from_values(kv_format *f, kv_kind kind, const attn_param *p, const int64_t *value, dtype type,
                          const char *what, err *e)
{
    *f = (kv_format){.kind = kind,
                     .type = type,
                     .bits = value[P_BITS] ? 4 : 2,
                     .group = value_of(p, value, "g", HF_RUN),
                     .residual = value_of(p, value, "r", 0),
                     .sink = value_of(p, value, "sink_fp", 0),
                     .slide = value_of(p, value, "key_residual", 0),
                     .hf = value_of(p, value, "quant", kind == KV_HF),
                     .float_zero = value_of(p, value, "zero", 0)};
    if (f->hf) f->group = HF_RUN;
    if (kind != KV_KIVI || f->residual % f->group == 0) return ST_OK;
    return err_set(e, ST_USAGE, "%s: r=%lld is not a multiple of g=%lld", what, (long long)f->residual,
                   (long long)f->group);
}

status kv_format_own(attn_spec *s, err *e)
{
    const kv_kind *kind = s->method->kind;
    char what[ATTN_TEXT + 16];
    snprintf(what, sizeof what, "--attn %s", s->text);
    s->two_stores = s->kv.kind != KV_PLAIN || kv_in_blocks(&s->kv);
    if (s->two_stores) return ST_OK;
    TRY(from_values(&s->kv, *kind, attn_params(s->method), s->value, s->kv.type, what, e));
    s->value[P_G] = s->kv.group; /* quant=hf_axis0_g64 fixes the group */
    return ST_OK;
}

static const char *rotation_name(const kv_format *f)
{
    return f->rotated == 0 ? "off" : f->rotated & KV_ROTATED_V ? "kv" : "k";
}

status kv_format_check(const kv_format *f, const attn_shape *shape, const char *what, err *e)
{
    const int d = shape->head_dim;
    if (kv_in_blocks(f) && d % ROW_BLOCK)
        return err_set(e, ST_UNSUPPORTED, "%s: %s needs a head_dim that is a multiple of %d, this model has %d", what,
                       kv_format_name(f), ROW_BLOCK, d);
    if (f->rotated && (d & (d - 1)))
        return err_set(e, ST_UNSUPPORTED,
                       "%s: %s needs a head_dim that is a power of two for rot=%s, this model has %d; use rot=off",
                       what, kv_format_name(f), rotation_name(f), d);
    if (f->hf && shape->head_dim % HF_RUN)
        return err_set(e, ST_UNSUPPORTED, "%s: %s needs a head_dim that is a multiple of %d, this model has %d", what,
                       f->kind == KV_HF ? kv_format_name(f) : "quant=hf_axis0_g64", HF_RUN, shape->head_dim);
    return ST_OK;
}

static status unknown_store(const char *name, const char *what, err *e)
{
    char list[96] = "";
    nearest near;
    if (strncasecmp(name, "hqq", 3) == 0)
        return err_set(e, ST_USAGE,
                       "%s: store '%s': Hugging Face's HQQ cache is not supported; hf2 and hf4 are its quanto cache",
                       what, name);
    nearest_start(&near, name);
    for (int i = 0; i < N_STORES; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, " %s", stores[i].name);
        nearest_try(&near, stores[i].name, strlen(stores[i].name));
    }
    return err_set(e, ST_USAGE, "%s: unknown store '%s'%s; known:%s", what, name, nearest_hint(&near), list);
}

static status unknown_key(int store, const char *key, const char *what, err *e)
{
    char list[96] = "";
    const attn_param *p = stores[store].params;
    nearest near;
    if (!p) return err_set(e, ST_USAGE, "%s: store '%s' has no parameters, found '%s'", what, stores[store].name, key);
    for (int i = P_BITS + 1; p[i].key; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, "%s ", p[i].key);
    }
    if (stores[store].kind != KV_PLAIN) strcat(list, rows_param.key);
    nearest_start(&near, key);
    nearest_try_words(&near, list);
    return err_set(e, ST_USAGE, "%s: store '%s' has no parameter '%s'%s; known: %s", what, stores[store].name, key,
                   nearest_hint(&near), list);
}

static status parse_key(int64_t *value, dtype *type, int store, char *text, const char *what, err *e)
{
    const attn_param *p = stores[store].params;
    char *eq = strchr(text, '=');
    int64_t row_type;
    if (!p) return unknown_key(store, text, what, e);
    if (!eq) return err_set(e, ST_USAGE, "%s: '%s' is not key=value", what, text);
    *eq = 0;
    if (stores[store].kind != KV_PLAIN && strcmp(text, rows_param.key) == 0) {
        TRY(attn_param_parse(&row_type, &rows_param, eq + 1, what, e));
        *type = row_types[row_type];
        return ST_OK;
    }
    for (int i = P_BITS + 1; p[i].key; i++)
        if (strcmp(p[i].key, text) == 0) return attn_param_parse(&value[i], &p[i], eq + 1, what, e);
    return unknown_key(store, text, what, e);
}

status kv_format_parse(kv_format *f, const char *text, const char *what, err *e)
{
    char copy[96], *save = NULL;
    int64_t value[ATTN_MAX_PARAMS] = {0};
    if (strlen(text) >= sizeof copy) return err_set(e, ST_USAGE, "%s: '%.40s...' is too long", what, text);
    strcpy(copy, text);
    char *name = strtok_r(copy, ":", &save);
    int i = 0;
    while (i < N_STORES && !(name && strcmp(name, stores[i].name) == 0)) i++;
    if (i == N_STORES) return unknown_store(name ? name : text, what, e);
    dtype type = stores[i].type;
    const attn_param *p = stores[i].params;
    for (int k = 0; p && p[k].key; k++) value[k] = p[k].def;
    value[P_BITS] = stores[i].bits == 4;
    for (char *key; (key = strtok_r(NULL, ":", &save));) TRY(parse_key(value, &type, i, key, what, e));
    if (stores[i].kind != KV_PLAIN) return from_values(f, stores[i].kind, p, value, type, what, e);
    *f = kv_plain(type);
    if (p) f->rotated = rotated_of[value[P_ROT]];
    return ST_OK;
}

const char *kv_format_name(const kv_format *f)
{
    for (int i = 0; i < N_STORES; i++)
        if (stores[i].kind == f->kind && (f->kind == KV_PLAIN ? stores[i].type == f->type : stores[i].bits == f->bits))
            return stores[i].name;
    return "?";
}

void kv_format_text(const kv_format *f, char *out, size_t size)
{
    const char *name = kv_format_name(f), *rows = dtype_name(f->type);
    long long g = f->group, r = f->residual;
    if (kv_in_blocks(f)) snprintf(out, size, "%s:rot=%s", name, rotation_name(f));
    else if (f->kind == KV_PLAIN) snprintf(out, size, "%s", name);
    else if (f->kind == KV_KIVI)
        snprintf(out, size, "%s:g=%lld:r=%lld:key_residual=%s:sink_fp=%lld:rows=%s", name, g, r,
                 f->slide ? "slide" : "block", (long long)f->sink, rows);
    else if (f->kind == KV_HF)
        snprintf(out, size, "%s:r=%lld:zero=%s:sink_fp=%lld:rows=%s", name, r, f->float_zero ? "float" : "int",
                 (long long)f->sink, rows);
    else snprintf(out, size, "%s:g=%lld:r=%lld:quant=%s:rows=%s", name, g, r, f->hf ? "hf_axis0_g64" : "kivi", rows);
}

/* ---- tiers ---- */

enum { TIER_WINDOW = 256 };
#define TIER_CACHE ((size_t)512 << 20)

/* Reads a number with an optional suffix k, M or G, up to `end`. */
static bool read_size(uint64_t *out, const char *text, const char *end)
{
    char *stop;
    if (text == end || *text < '0' || *text > '9') return false;
    errno = 0;
    unsigned long long v = strtoull(text, &stop, 10);
    int shift = *stop == 'k' || *stop == 'K' ? 10 : *stop == 'm' || *stop == 'M' ? 20 : *stop == 'G' ? 30 : 0;
    if (shift) stop++;
    if (stop != end || errno || v > (UINT64_MAX >> 1) >> shift) return false;
    *out = (uint64_t)v << shift;
    return true;
}

/* Reads the word from `text` to `end` as key=value. Returns 0 if it is not such a key, -1 for a bad value. */
static int read_key(kv_tier *t, const char *text, const char *end)
{
    const char *value = memchr(text, '=', (size_t)(end - text));
    uint64_t v;
    if (!value) return 0;
    size_t n = (size_t)(value++ - text);
    bool cache = n == 5 && memcmp(text, "cache", n) == 0, window = n == 6 && memcmp(text, "window", n) == 0;
    if (!cache && !window) return 0;
    if (!read_size(&v, value, end) || (window && v > (uint64_t)1 << 40)) return -1;
    if (cache) t->cache = (size_t)v;
    else t->window = (int64_t)v;
    return 1;
}

status kv_tier_parse(kv_tier *t, const char *text, err *e)
{
    *t = (kv_tier){.window = TIER_WINDOW, .cache = TIER_CACHE};
    size_t n = strcspn(text, ":");
    bool disk = n == 4 && memcmp(text, "disk", n) == 0, host = n == 4 && memcmp(text, "host", n) == 0;
    if (disk) t->kind = KV_DISK;
    else if (host) t->kind = KV_HOST;
    else if (strcmp(text, "device") != 0)
        return err_set(
            e, ST_USAGE,
            "--kv-tier: '%.60s' is not one of: device host[:cache=SIZE][:window=N] disk[:cache=SIZE][:window=N][:DIR]",
            text);
    for (text += n; *text == ':';) {
        text++;
        const char *end = text + strcspn(text, ":");
        int is = read_key(t, text, end);
        if (is < 0) return err_set(e, ST_USAGE, "--kv-tier: '%.60s': expected a number such as 512M or 256", text);
        if (is > 0) {
            text = end;
            continue;
        }
        if (host) return err_set(e, ST_USAGE, "--kv-tier host: '%.60s', expected cache=SIZE or window=N", text);
        if (!*text || strlen(text) >= sizeof t->dir)
            return err_set(e, ST_USAGE, "--kv-tier disk: the folder name is %s", *text ? "too long" : "missing");
        strcpy(t->dir, text);
        break;
    }
    return ST_OK;
}

const char *kv_tier_dir(const kv_tier *t)
{
    const char *tmp = getenv("TMPDIR");
    if (t->dir[0]) return t->dir;
    return tmp && *tmp ? tmp : ".";
}

const char *kv_tier_name(kv_tier_kind p)
{
    static const char *const names[] = {[KV_DEVICE] = "device", [KV_HOST] = "host", [KV_DISK] = "disk"};
    return names[p];
}
