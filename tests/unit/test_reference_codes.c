/* SPDX-License-Identifier: MIT */
/* Quantized rows against the NumPy references of scripts/fixtures/reference. */
#include "config.h"

#include "attention/store_impl.h"
#include "kernels/ops_codes.h"
#include "tests/unit/reference.h"

static const double TOL = 1e-5;

/* ---- quantized rows ---- */

/* Rows with as many code rows as exact ones, slot i in code row i for i < k_codes (v_codes). */
static kv_rows code_rows(const st_tensor *k, const st_tensor *v, int bits, size_t size, size_t k_codes, size_t v_codes)
{
    kv_rows r = rows_of(k, v);
    kv_codes *c = &r.codes;
    *c = (kv_codes){.bits = bits, .cap = r.cap, .group = size, .run = size};
    size_t all = r.n_kv_heads * r.cap;
    c->k = at(hold(all * codes_row_bytes(c, r.head_dim)));
    c->v = at(hold(all * codes_row_bytes(c, r.head_dim)));
    c->k_pair =
        at(hold(4 * r.head_dim * r.n_kv_heads * ((r.cap + size - 1) / size) + 4 * all * codes_runs(c, r.head_dim)));
    c->v_pair = at(hold(4 * all * codes_runs(c, r.head_dim)));
    int32_t *k_at = hold(4 * r.cap), *v_at = hold(4 * r.cap);
    for (size_t i = 0; i < r.cap; i++) {
        k_at[i] = i < k_codes ? -1 - (int32_t)i : (int32_t)i;
        v_at[i] = i < v_codes ? -1 - (int32_t)i : (int32_t)i;
    }
    c->k_at = at(k_at), c->v_at = at(v_at);
    return r;
}

static buf iota(size_t n)
{
    int64_t *p = hold(8 * n);
    for (size_t i = 0; i < n; i++) p[i] = (int64_t)i;
    return at(p);
}

static bool codes_are(const kv_rows *r, bool value, const st_tensor *want)
{
    const kv_codes *c = &r->codes;
    const unsigned char *p = value ? c->v.p : c->k.p;
    size_t bytes = codes_row_bytes(c, r->head_dim);
    for (size_t row = 0; row < r->n_kv_heads * r->cap; row++)
        for (size_t i = 0; i < r->head_dim; i++) {
            size_t bit = i * (size_t)c->bits;
            if ((p[row * bytes + bit / 8] >> bit % 8 & ((1 << c->bits) - 1)) != want->data[row * r->head_dim + i])
                return false;
        }
    return true;
}

static bool half_is(buf pairs, size_t i, const st_tensor *want, size_t k)
{
    return memcmp(pairs.p + 2 * i, want->data + 2 * k, 2) == 0;
}

/* Pairs of all groups. a: the minimum or zero point, as fixture numbers; by channel or by run. */
static bool pairs_are(const kv_rows *r, buf pairs, bool by_run, const st_tensor *a, const st_tensor *b)
{
    size_t inner = by_run ? codes_runs(&r->codes, r->head_dim) : r->head_dim;
    size_t outer = count_of(b) / inner;
    bool good = true, zero = strcmp(a->type, "I32") == 0;
    for (size_t o = 0; o < outer; o++)
        for (size_t i = 0; i < inner; i++) {
            size_t ia = by_run ? 2 * (o * inner + i) : 2 * o * inner + i, ib = by_run ? ia + 1 : ia + inner;
            good &= half_is(pairs, ib, b, o * inner + i);
            if (!zero) good &= half_is(pairs, ia, a, o * inner + i);
            else {
                int32_t z;
                uint16_t h;
                memcpy(&z, a->data + 4 * (o * inner + i), 4), memcpy(&h, pairs.p + 2 * ia, 2);
                good &= f16_to_f32(h) == (float)z;
            }
        }
    return good;
}

/* All rows, out of the codes. */
static bool fetched_are(backend *be, const kv_rows *r, bool value, const st_tensor *want)
{
    size_t n = r->n_kv_heads * r->cap * r->head_dim;
    kv_rows out = {.k = at(hold(4 * n)),
                   .v = at(hold(4 * n)),
                   .type = DT_F32,
                   .n_kv_heads = r->n_kv_heads,
                   .head_dim = r->head_dim,
                   .cap = r->cap};
    be->ops->codes->fetch(be, &out, r, 0, (int64_t)r->cap, (buf){NULL});
    return near((float *)(void *)(value ? out.v.p : out.k.p), floats_of(want), n, 1e-6);
}

static void kivi_case(backend *be, const char *c, int bits, group *g)
{
    size_t size = (size_t)ints("%s.par", c)[0];
    for (int value = 0; value <= 1; value++) {
        char x = value ? 'v' : 'k';
        const st_tensor *in = tensor("%s.%c", c, x);
        kv_rows r = code_rows(in, in, bits, size, in->shape[1], in->shape[1]);
        if (value) be->ops->codes->encode(be, &r, true, iota(r.cap), 0, r.cap);
        else be->ops->codes->encode(be, &r, false, iota(r.cap), 0, r.cap);
        group_note(g, codes_are(&r, value, tensor("%s.b%d.%c.codes", c, bits, x)), "%s %d bits %c: codes", c, bits, x);
        group_note(g,
                   pairs_are(&r, value ? r.codes.v_pair : r.codes.k_pair, value, tensor("%s.b%d.%c.min", c, bits, x),
                             tensor("%s.b%d.%c.step", c, bits, x)),
                   "%s %d bits %c: pairs", c, bits, x);
        if (has("%s.b%d.%c.back", c, bits, x))
            group_note(g, fetched_are(be, &r, value, tensor("%s.b%d.%c.back", c, bits, x)), "%s %d bits %c: rows", c,
                       bits, x);
    }
}

static void kivi_attend(backend *be, int bits, group *g)
{
    int32_t *par = ints("attend.par");
    size_t n = tensor("attend.k")->shape[1], size = (size_t)par[0], r = (size_t)par[1],
           heads = tensor("attend.q")->shape[0];
    size_t kq = (n - 1) / r * r, vq = n - 1 > r ? n - 1 - r : 0; /* of the step before */
    kv_rows rows = code_rows(tensor("attend.k"), tensor("attend.v"), bits, size, kq, vq);
    be->ops->codes->encode(be, &rows, false, iota(kq), 0, kq);
    be->ops->codes->encode(be, &rows, true, iota(vq), 0, vq);
    attn_job j = job_of(&rows, floats("attend.q"), 1, heads);
    be->ops->attn_decode(be, &j, 1);
    group_note(g, near((float *)(void *)j.out.p, floats("attend.b%d.out", bits), heads * rows.head_dim, TOL),
               "%d bits: out", bits);
    group_note(g, near((float *)(void *)j.lse.p, floats("attend.b%d.lse", bits), heads, TOL), "%d bits: lse", bits);
}

static void test_codes(backend *be, const char *level)
{
    group g = {0}, a = {0}, h = {0};
    char c[16];
    int bits, used;
    fixture_open("kivi");
    for (size_t i = 0; i < st_count(fixture); i++)
        if (used = 0, sscanf(st_at(fixture, i)->name, "%15[^.].b%d.k.codes%n", c, &bits, &used) == 2 && used)
            kivi_case(be, c, bits, &g);
    for (bits = 2; bits <= 4; bits += 2) kivi_attend(be, bits, &a);
    group_end(&g, "kivi: codes, pairs, rows out of them", level);
    group_end(&a, "kivi: attention over codes and exact rows", level);
    fixture_close();

    fixture_open("logquant");
    for (size_t i = 0; i < st_count(fixture); i++) {
        if (used = 0, sscanf(st_at(fixture, i)->name, "hf.%15[^.].b%d.codes%n", c, &bits, &used) != 2 || !used)
            continue;
        const st_tensor *in = tensor("hf.%s.x", c), *a16 = tensor("hf.%s.b%d.zero", c, bits),
                        *b16 = tensor("hf.%s.b%d.step", c, bits);
        kv_rows r = code_rows(in, in, bits, 64, in->shape[1], in->shape[1]);
        r.codes.by_token = r.codes.zero_point = true;
        be->ops->codes->encode(be, &r, false, iota(r.cap), 0, r.cap);
        be->ops->codes->encode(be, &r, true, iota(r.cap), 0, r.cap);
        for (int value = 0; value <= 1; value++) {
            group_note(&h, codes_are(&r, value, st_at(fixture, i)), "%s %d bits: codes", c, bits);
            group_note(&h, pairs_are(&r, value ? r.codes.v_pair : r.codes.k_pair, true, a16, b16), "%s %d bits: pairs",
                       c, bits);
            group_note(&h, fetched_are(be, &r, value, tensor("hf.%s.b%d.back", c, bits)), "%s %d bits: rows", c, bits);
        }
    }
    group_end(&h, "logquant, hf_axis0_g64: codes, pairs, rows out of them", level);
    fixture_close();
}

/* Both zero points of quanto, keys and values alike. */
static void hf_case(backend *be, const char *c, const char *zero, int bits, group *g)
{
    const st_tensor *in = tensor("%s.x", c), *a16 = tensor("%s.%s.b%d.a", c, zero, bits),
                    *b16 = tensor("%s.%s.b%d.step", c, zero, bits), *back = tensor("%s.%s.b%d.back", c, zero, bits);
    kv_rows r = code_rows(in, in, bits, 64, in->shape[1], in->shape[1]);
    r.codes.by_token = true;
    r.codes.zero_point = strcmp(zero, "int") == 0;
    be->ops->codes->encode(be, &r, false, iota(r.cap), 0, r.cap);
    be->ops->codes->encode(be, &r, true, iota(r.cap), 0, r.cap);
    for (int value = 0; value <= 1; value++) {
        const char *pre = value ? "values" : "keys";
        group_note(g, codes_are(&r, value, tensor("%s.%s.b%d.codes", c, zero, bits)), "%s %s %d bits: codes, %s", c,
                   zero, bits, pre);
        group_note(g, pairs_are(&r, value ? r.codes.v_pair : r.codes.k_pair, true, a16, b16),
                   "%s %s %d bits: pairs, %s", c, zero, bits, pre);
        group_note(g, fetched_are(be, &r, value, back), "%s %s %d bits: rows, %s", c, zero, bits, pre);
    }
}

static void test_hf(backend *be, const char *level)
{
    group g = {0};
    char c[16], zero[8];
    int bits, used;
    fixture_open("hf");
    for (size_t i = 0; i < st_count(fixture); i++)
        if (used = 0, sscanf(st_at(fixture, i)->name, "%15[^.].%7[^.].b%d.codes%n", c, zero, &bits, &used) == 3 && used)
            hf_case(be, c, zero, bits, &g);
    group_end(&g, "hf: codes, pairs, rows out of them", level);
    fixture_close();
}

/* ---- which rows are quantized when ---- */

static kv_quantized rule_of(kv_kind kind, int64_t residual, int64_t cap)
{
    kv_quantized s = {.f = {.kind = kind, .bits = 2, .group = 1, .residual = residual}, .cap = cap};
    s.list = hold(4 * kv_rule_list(&s.f)), s.staged = hold(4 * kv_rule_staged(&s.f));
    for (int h = 0; h < KV_HALVES; h++) s.due[h] = hold(4 * (size_t)cap);
    return s;
}

static void test_rules(void)
{
    group k = {0}, l = {0};
    fixture_open("kivi");
    int32_t *row = ints("borders");
    for (size_t i = 0; i < tensor("borders")->shape[0]; i++, row += 4) {
        kv_quantized s = rule_of(KV_KIVI, row[1], row[0] + 1);
        kv_rule_due(&s, row[0], true);
        group_note(&k, s.n_due[KV_K] == row[2] && s.n_due[KV_V] == row[3], "%d tokens, R %d", row[0], row[1]);
    }
    fixture_close();
    ok(k.n_bad == 0 && k.n_cases > 0, "kivi: rows in codes, %d cases; first: %s", k.n_cases, k.first);

    static const int residuals[] = {3, 12, 128, 256};
    fixture_open("logquant");
    for (size_t i = 0; i < 4; i++) {
        int r = residuals[i], n_end = ints("r%d.par", r)[2];
        size_t width = tensor("r%d.list", r)->shape[1], order = count_of(tensor("r%d.dropped", r)), next = 0;
        bool sparse = has("r%d.at", r);
        int32_t *at_n = sparse ? ints("r%d.at", r) : NULL, *list = ints("r%d.list", r),
                *gone = ints("r%d.n_dropped", r);
        int32_t *dropped = ints("r%d.dropped", r);
        kv_quantized s = rule_of(KV_LOGQUANT, r, n_end);
        for (int n = 1; n <= n_end; n++) { /* the step that sees n tokens: n - 1 settled ones and its own */
            if (!sparse || at_n[next] == n) {
                int32_t *want = list + next * width;
                size_t m = (size_t)s.n_list;
                group_note(&l,
                           want[m] == n - 1 && memcmp(want, s.list, 4 * m) == 0 && (m + 1 == width || want[m + 1] < 0),
                           "list of R %d at %d", r, n);
                group_note(&l, s.n_due[KV_K] == gone[next] && s.n_due[KV_V] == gone[next], "dropped of R %d at %d", r,
                           n);
                next++;
            }
            kv_rule_due(&s, n, true);
        }
        for (int h = 0; h < KV_HALVES; h++)
            group_note(&l, (size_t)s.n_due[h] >= order && memcmp(s.due[h], dropped, 4 * order) == 0, "order of R %d",
                       r);
    }
    fixture_close();
    ok(l.n_bad == 0 && l.n_cases > 0, "logquant: lists, order of those dropped, %d cases; first: %s", l.n_cases,
       l.first);
}

/* Tokens in codes after each token, by the rule that the store follows. */
static void test_hf_rule(void)
{
    group g = {0};
    fixture_open("hf");
    for (int i = 0; has("rule%d.par", i); i++) {
        int32_t *par = ints("rule%d.par", i), *turn = ints("rule%d.turns", i), *want = ints("rule%d.coded", i);
        size_t turns = tensor("rule%d.turns", i)->shape[0];
        kv_quantized s = {.f = {.kind = KV_HF, .bits = 2, .group = 64, .residual = par[0], .sink = par[1], .hf = true}};
        s.cap = (int64_t)count_of(tensor("rule%d.coded", i));
        for (int h = 0; h < KV_HALVES; h++) s.due[h] = hold(4 * (size_t)s.cap);
        int64_t n = 0;
        for (size_t k = 0; k < turns; k++)
            for (int j = 0; j < turn[2 * k] + turn[2 * k + 1]; j++) {
                bool prompt = j < turn[2 * k];
                n++;
                if (!prompt || j + 1 == turn[2 * k]) kv_rule_due(&s, n, prompt);
                for (int h = 0; h < KV_HALVES; h++) s.n_coded[h] += s.n_due[h], s.n_due[h] = 0;
                group_note(&g, s.n_coded[KV_K] == want[n - 1] && s.n_coded[KV_V] == want[n - 1], "rule %d after %d", i,
                           (int)n);
            }
    }
    fixture_close();
    ok(g.n_bad == 0 && g.n_cases > 0, "hf: rows in codes, %d cases; first: %s", g.n_cases, g.first);
}

int main(void)
{
    test_rules();
    test_hf_rule();
    for (size_t i = 0; i <= N_ALL_LEVELS; i++) {
        const char *level = i ? ALL_LEVELS[i - 1] : "ref";
        backend *be = i ? open_level(level, 2) : open_ref();
        if (!be) continue;
        if (be->ops->codes) test_codes(be, level), test_hf(be, level);
        else tap_skip("%s has no ops of quantized rows", level);
        if (i) backend_close(be);
    }
    return tap_done();
}
