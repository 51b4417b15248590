/* SPDX-License-Identifier: MIT */
/* The table of strategies, and strategies as users write them: name[:key=value]... */
#include "config.h"

#include <ctype.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "attention/method.h"

static const attn_method *const table[] = {&attn_full, &attn_streaming, NULL};

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

bool attn_has_budget(const attn_spec *s)
{
    return s->method->has_budget;
}

bool attn_retrieves(const attn_spec *s)
{
    return s->method->retrieves;
}

/* Word number i of a list separated by spaces; its length in *n, or NULL. */
static const char *choice(const char *list, int64_t i, size_t *n)
{
    for (; i > 0 && list; i--) {
        list = strchr(list, ' ');
        if (list) list++;
    }
    if (list) *n = strcspn(list, " ");
    return list;
}

gqa_mode attn_gqa(const attn_spec *s)
{
    size_t n, m;
    for (int i = 0; s->method->params[i].key; i++) {
        const char *c = choice(s->method->params[i].choices, s->value[i], &n), *name;
        if (strcmp(s->method->params[i].key, "gqa") != 0 || !c) continue;
        for (int g = 0; g < GQA_COUNT; g++)
            if ((name = choice(GQA_NAMES, g, &m)) && m == n && strncmp(name, c, n) == 0) return (gqa_mode)g;
    }
    return GQA_VOTE;
}

static status parse_int(int64_t *out, const char *text, int64_t min, int64_t max, const char *spec,
                        const char *key, err *e)
{
    char *end;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno || v < min || v > max)
        return err_set(e, ST_USAGE, "--attn %s: %s='%s', expected a number from %lld to %lld", spec,
                       key, text, (long long)min, (long long)max);
    *out = v;
    return ST_OK;
}

/* "2": the first two layers; "0+16": a list (one number alone is a count). */
static status parse_skip(uint64_t *out, const char *text, const char *spec, err *e)
{
    int64_t v = 0;
    *out = 0;
    if (!strchr(text, '+')) {
        TRY(parse_int(&v, text, 0, 64, spec, "skip", e));
        *out = v == 64 ? ~(uint64_t)0 : ((uint64_t)1 << v) - 1;
        return ST_OK;
    }
    char word[8];
    for (const char *p = text; *p;) {
        size_t n = strcspn(p, "+");
        if (n == 0 || n >= sizeof word)
            return err_set(e, ST_USAGE, "--attn %s: skip='%s' is not a list of layers", spec, text);
        memcpy(word, p, n);
        word[n] = 0;
        TRY(parse_int(&v, word, 0, 63, spec, "skip", e));
        *out |= (uint64_t)1 << v;
        p += n;
        if (*p == '+' && *++p == 0)
            return err_set(e, ST_USAGE, "--attn %s: skip='%s' ends in '+'", spec, text);
    }
    return ST_OK;
}

static status parse_choice(int64_t *out, const attn_param *p, const char *text, const char *spec,
                           err *e)
{
    size_t n;
    for (int64_t i = 0; i <= p->max; i++) {
        const char *c = choice(p->choices, i, &n);
        if (c && strlen(text) == n && strncmp(c, text, n) == 0) {
            *out = i;
            return ST_OK;
        }
    }
    return err_set(e, ST_USAGE, "--attn %s: %s='%s', expected one of: %s", spec, p->key, text,
                   p->choices);
}

status kv_format_parse(kv_format *f, const char *text, const char *what, err *e)
{
    static const dtype types[] = {DT_F16, DT_BF16, DT_F32};
    for (size_t i = 0; i < 3; i++)
        if (strcmp(text, dtype_name(types[i])) == 0) {
            *f = kv_exact(types[i]);
            return ST_OK;
        }
    return err_set(e, ST_USAGE, "%s: unknown store '%s' (known: f16 bf16 f32)", what, text);
}

const char *kv_format_name(const kv_format *f)
{
    return dtype_name(f->type);
}

void kv_format_text(const kv_format *f, char *out, size_t size)
{
    snprintf(out, size, "%s", kv_format_name(f));
}

static status parse_kv(attn_spec *s, const char *value, err *e)
{
    char text[96], what[120];
    snprintf(text, sizeof text, "%s", value);
    for (char *p = text; *p; p++)
        if (*p == '/') *p = ':';
    snprintf(what, sizeof what, "--attn %s: kv", s->text);
    return kv_format_parse(&s->kv, text, what, e);
}

static status set_value(attn_spec *s, const char *key, const char *value, err *e)
{
    const attn_param *p = s->method->params;
    if (strcmp(key, "skip") == 0) return parse_skip(&s->skip, value, s->text, e);
    if (strcmp(key, "kv") == 0) return parse_kv(s, value, e);
    if (strcmp(key, "budget") == 0 && s->method->has_budget)
        return parse_int(&s->budget, value, 1, (int64_t)1 << 40, s->text, key, e);
    for (int i = 0; p[i].key; i++)
        if (strcmp(p[i].key, key) == 0)
            return p[i].choices
                       ? parse_choice(&s->value[i], &p[i], value, s->text, e)
                       : parse_int(&s->value[i], value, p[i].min, p[i].max, s->text, key, e);
    return err_set(e, ST_USAGE, "--attn %s: %s has no parameter '%s' (see --help-attn %s)", s->text,
                   s->method->name, key, s->method->name);
}

static status unknown_method(const char *name, err *e)
{
    char list[160] = "";
    for (size_t i = 0; table[i]; i++) {
        size_t n = strlen(list);
        snprintf(list + n, sizeof list - n, " %s", table[i]->name);
    }
    return err_set(e, ST_USAGE, "--attn: unknown strategy '%s' (known:%s)", name, list);
}

status attn_spec_parse(attn_spec *s, const char *text, const attn_options *o, err *e)
{
    char copy[sizeof s->text], *save = NULL;
    *s = (attn_spec){0};
    if (strlen(text) >= sizeof s->text)
        return err_set(e, ST_USAGE, "--attn: '%.40s...' is too long", text);
    strcpy(s->text, text);
    strcpy(copy, text);
    char *name = strtok_r(copy, ":", &save);
    s->method = name ? attn_method_find(name) : NULL;
    if (!s->method) return unknown_method(name ? name : text, e);
    for (int i = 0; s->method->params[i].key; i++) s->value[i] = s->method->params[i].def;
    s->kv = o->kv;
    if (s->method->has_budget) s->budget = o->budget ? o->budget : s->method->def_budget;
    s->skip = ((uint64_t)1 << s->method->def_skip) - 1;
    if (o->skip) TRY(parse_skip(&s->skip, o->skip, text, e));
    for (char *kv; (kv = strtok_r(NULL, ":", &save));) {
        char *eq = strchr(kv, '=');
        if (!eq) return err_set(e, ST_USAGE, "--attn %s: '%s' is not key=value", text, kv);
        *eq = 0;
        TRY(set_value(s, kv, eq + 1, e));
    }
    return s->method->parse ? s->method->parse(s, e) : ST_OK;
}

status attn_spec_check(const attn_spec *s, const attn_shape *shape, err *e)
{
    return s->method->check ? s->method->check(s, shape, e) : ST_OK;
}

void attn_spec_params(const attn_spec *s, char *out, size_t size)
{
    size_t n = 0, len;
    out[0] = 0;
#define ADD(...) n += n < size ? (size_t)snprintf(out + n, size - n, __VA_ARGS__) : 0
    if (s->method->has_budget) ADD("budget=%lld ", (long long)s->budget);
    for (int i = 0; s->method->params[i].key; i++) {
        const attn_param *p = &s->method->params[i];
        const char *c = p->choices ? choice(p->choices, s->value[i], &len) : NULL;
        if (c) ADD("%s=%.*s ", p->key, (int)len, c);
        else ADD("%s=%lld ", p->key, (long long)s->value[i]);
    }
    if (s->skip && (s->skip & (s->skip + 1)) == 0) {
        ADD("skip=%d ", s->skip == ~(uint64_t)0 ? 64 : __builtin_ctzll(s->skip + 1));
    } else if (s->skip) {
        const char *sep = "skip=";
        for (int l = 0; l < 64; l++)
            if (s->skip >> l & 1) {
                ADD("%s%d", sep, l);
                sep = "+";
            }
        ADD(" ");
    } else {
        ADD("skip=0 ");
    }
    ADD("kv=");
#undef ADD
    if (n < size) kv_format_text(&s->kv, out + n, size - n);
}

static void print_param(FILE *f, const attn_param *p)
{
    size_t n = 0;
    if (p->choices) {
        const char *c = choice(p->choices, p->def, &n);
        fprintf(f, "  %-10s %-12.*s %s (one of: %s)\n", p->key, (int)n, c, p->help, p->choices);
    } else {
        fprintf(f, "  %-10s %-12lld %s\n", p->key, (long long)p->def, p->help);
    }
}

void attn_print_help(FILE *f, const attn_method *m)
{
    if (!m) {
        for (size_t i = 0; table[i]; i++)
            fprintf(f, "  %-10s %s\n", table[i]->name, table[i]->summary);
        return;
    }
    fprintf(f, "%s: %s\n  source: %s\n\n  key        default      meaning\n", m->name, m->summary,
            m->source);
    if (m->has_budget) {
        attn_param b = {
            "budget",      NULL, "tokens kept or attended (methods.md 0.2.3); also --budget",
            m->def_budget, 1,    0};
        print_param(f, &b);
    }
    for (const attn_param *p = m->params; p->key; p++) print_param(f, p);
    attn_param skip = {
        "skip",      NULL, "leading layers that run full attention, or a list a+b+c; also --skip",
        m->def_skip, 0,    0};
    print_param(f, &skip);
}
