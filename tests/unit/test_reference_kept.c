/* SPDX-License-Identifier: MIT */
/* What is kept, and in which form: eviction and quantized rows against the NumPy references of
 * scripts/fixtures/reference. */
#include "config.h"

#include "attention/store_impl.h"
#include "kernels/ops_codes.h"
#include "kernels/ops_evict.h"
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

/* ---- which rows are quantized when ---- */

static kv_coded rule_of(kv_kind kind, int64_t residual, int64_t cap)
{
    kv_coded s = {.f = {.kind = kind, .bits = 2, .group = 1, .residual = residual}, .cap = cap};
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
        kv_coded s = rule_of(KV_KIVI, row[1], row[0] + 1);
        kv_rule_due(&s, row[0]);
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
        kv_coded s = rule_of(KV_LOGQUANT, r, n_end);
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
            kv_rule_due(&s, n);
        }
        for (int h = 0; h < KV_HALVES; h++)
            group_note(&l, (size_t)s.n_due[h] >= order && memcmp(s.due[h], dropped, 4 * order) == 0, "order of R %d",
                       r);
    }
    fixture_close();
    ok(l.n_bad == 0 && l.n_cases > 0, "logquant: lists, order of those dropped, %d cases; first: %s", l.n_cases,
       l.first);
}

/* ---- eviction ---- */

static kept_rows lists_of(size_t n_lists, size_t stride)
{
    return (kept_rows){.at = at(hold(4 * n_lists * stride)),
                       .score = at(hold(4 * n_lists * stride)),
                       .range = at(hold(16 * n_lists)),
                       .seen = at(hold(8 * n_lists)),
                       .n_lists = n_lists,
                       .stride = stride};
}

static const int32_t *list_at(const kept_rows *l, size_t i, size_t *n)
{
    *n = (size_t)((int64_t *)(void *)l->range.p)[2 * i + 1];
    return (int32_t *)(void *)l->at.p + i * l->stride;
}

static bool lists_are(const kept_rows *l, const st_tensor *want)
{
    int32_t *w = copy_of(want);
    bool good = want->shape[0] == l->n_lists;
    for (size_t i = 0, n; good && i < l->n_lists; i++) {
        const int32_t *x = list_at(l, i, &n);
        good = same_list(x, n, w + i * want->shape[1], want->shape[1]);
    }
    return good;
}

/* Scores of the first `width` entries of each list. */
static bool scores_are(const kept_rows *l, const float *want, size_t width)
{
    bool good = true;
    for (size_t i = 0, n; i < l->n_lists; i++) {
        list_at(l, i, &n);
        good &= near((float *)(void *)l->score.p + i * l->stride, want + i * width, n < width ? n : width, TOL);
    }
    return good;
}

/* A prompt and steps over stored lists; `last` attends the last query of the prompt alone (TOVA). */
typedef struct {
    attn_job j;
    kept_rows l;
    float *q;
    size_t n_tok, heads, prompt;
} replay;

static replay replay_make(const char *input, size_t n_lists, size_t prompt)
{
    replay r = {.l = lists_of(n_lists, tensor("%s.k", input)->shape[1]), .q = floats("%s.q", input), .prompt = prompt};
    kv_rows rows = rows_of(tensor("%s.k", input), tensor("%s.k", input));
    r.n_tok = rows.cap, r.heads = tensor("%s.q", input)->shape[1];
    r.j = job_of(&rows, r.q, r.n_tok, r.heads);
    r.j.range = r.l.range, r.j.idx = r.j.at = r.l.at, r.j.n_lists = n_lists, r.j.idx_stride = r.l.stride,
    r.j.masked = false;
    return r;
}

/* Tokens [i, i + m) are stored; queries [from, i + m) attend and their weights go to the scores. */
static void replay_step(backend *be, replay *r, size_t i, size_t m, size_t from, bool add)
{
    int64_t *pos = hold(8 * m);
    for (size_t k = 0; k < m; k++) pos[k] = (int64_t)(i + k);
    be->ops->evict->append(be, &r->l, (int64_t)i, m, (buf){NULL});
    attn_job j = r->j;
    size_t row = r->heads * j.rows.head_dim;
    j.q = at(r->q + from * row), j.n_tok = i + m - from, j.qpos = at(pos + (from - i));
    if (m == 1) be->ops->attn_decode(be, &j, 1);
    else be->ops->attn_prefill(be, &j);
    be->ops->evict->colsum(be, &j, r->l.n_lists, COMBINE_MEAN, add, r->l.score, r->l.stride);
}

/* Prunes after token `last`; victims [n_lists]: what went, -1 for none. */
static void replay_prune(backend *be, replay *r, size_t last, const keep_rule *rule, int32_t *victims)
{
    size_t bytes = 4 * r->l.n_lists * r->l.stride;
    int32_t *before = memcpy(hold(bytes), r->l.at.p, bytes);
    be->ops->evict->prune(be, &r->l, (int64_t)last, rule);
    for (size_t l = 0, n; l < r->l.n_lists; l++) {
        const int32_t *x = list_at(&r->l, l, &n);
        size_t k = 0;
        while (k < n && x[k] == before[l * r->l.stride + k]) k++;
        victims[l] = n == (size_t)rule->budget ? before[l * r->l.stride + k] : -1;
    }
}

static void h2o_run(backend *be, const char *run, const char *input, group *g)
{
    int32_t *par = ints("%s.par", run), *victims;
    size_t lists = tensor("%s.prompt_sum", run)->shape[0], prompt = (size_t)par[4],
           chunk = par[8] ? (size_t)par[8] : prompt;
    keep_rule rule = {.budget = par[5], .recent = par[7], .by_count = strstr(run, ".count") != NULL};
    replay r = replay_make(input, lists, prompt);
    size_t steps = r.n_tok - prompt, budget = (size_t)par[5];
    victims = hold(4 * (steps + 1) * lists);
    for (size_t i = 0, m; i < r.n_tok; i += m) {
        m = i >= prompt ? 1 : prompt - i < chunk ? prompt - i : chunk;
        replay_step(be, &r, i, m, i, true);
        if (i + m == prompt && !par[8])
            group_note(g, scores_are(&r.l, floats("%s.prompt_sum", run), prompt), "%s: sums of the prompt", run);
        size_t before;
        list_at(&r.l, 0, &before);
        int32_t *gone = i < prompt ? victims + steps * lists : victims + (i - prompt) * lists;
        replay_prune(be, &r, i + m - 1, &rule, gone);
        if (before <= budget)
            for (size_t l = 0; l < lists; l++) gone[l] = -1;
        if (i + m == prompt)
            group_note(g, lists_are(&r.l, tensor("%s.prompt_kept", run)), "%s: kept of the prompt", run);
        if (i < prompt) continue;
        size_t s = i - prompt, part = s == 0 ? 0 : s == steps / 2 ? 1 : s + 1 == steps ? 2 : 3;
        if (part < 3)
            group_note(g, scores_are(&r.l, floats("%s.sums", run) + part * lists * budget, budget),
                       "%s: sums of step %zu", run, s);
    }
    if (steps == 0) return;
    group_note(g, memcmp(victims, ints("%s.victims", run), 4 * steps * lists) == 0, "%s: victims", run);
    group_note(g, lists_are(&r.l, tensor("%s.end_kept", run)), "%s: kept at the end", run);
}

static void tova_run(backend *be, const char *run, const char *input, group *g)
{
    int32_t *par = ints("%s.par", run), *victims;
    size_t lists = tensor("%s.prompt_row", run)->shape[0], prompt = (size_t)par[4], budget = (size_t)par[5];
    keep_rule rule = {.budget = par[5], .recent = par[6]};
    replay r = replay_make(input, lists, prompt);
    size_t steps = r.n_tok - prompt, full = 0;
    victims = hold(4 * (steps + 1) * lists);
    size_t evicting = prompt >= budget ? steps : r.n_tok - budget;
    for (size_t i = 0, m; i < r.n_tok; i += m) {
        m = i == 0 ? prompt : 1;
        replay_step(be, &r, i, m, i + m - 1, false);
        size_t before;
        list_at(&r.l, 0, &before);
        if (i == 0)
            group_note(g, scores_are(&r.l, floats("%s.prompt_row", run), prompt), "%s: last row of the prompt", run);
        else if (before == budget + 1) {
            size_t part = full == 0 ? 0 : full == evicting / 2 ? 1 : full + 1 == evicting ? 2 : 3;
            if (part < 3)
                group_note(g, scores_are(&r.l, floats("%s.rows", run) + part * lists * before, before), "%s: row %zu",
                           run, full);
            full++;
        }
        int32_t *gone = victims + (i == 0 ? steps : i - prompt) * lists;
        replay_prune(be, &r, i + m - 1, &rule, gone);
        if (before <= budget)
            for (size_t l = 0; l < lists; l++) gone[l] = -1;
        if (i == 0) group_note(g, lists_are(&r.l, tensor("%s.prompt_kept", run)), "%s: kept of the prompt", run);
    }
    if (steps == 0) return;
    group_note(g, memcmp(victims, ints("%s.victims", run), 4 * steps * lists) == 0, "%s: victims", run);
    group_note(g, lists_are(&r.l, tensor("%s.end_kept", run)), "%s: kept at the end", run);
}

/* All runs of a fixture: the tensors that end in `.par`; inputs are those of the part before the first point. */
static void all_runs(backend *be, const char *file, void (*run)(backend *, const char *, const char *, group *),
                     group *g)
{
    fixture_open(file);
    for (size_t i = 0; i < st_count(fixture); i++) {
        char name[64], input[64];
        snprintf(name, sizeof name, "%s", st_at(fixture, i)->name);
        size_t n = strlen(name);
        if (n < 4 || strcmp(name + n - 4, ".par") != 0) continue;
        name[n - 4] = 0;
        snprintf(input, sizeof input, "%.*s", (int)strcspn(name, "."), name);
        run(be, name, input, g);
    }
    fixture_close();
}

static void snapkv_run(backend *be, const char *pooled, group *g)
{
    char c[16], mode[16], form[4], prefix[64];
    int kernel, capacity;
    if (sscanf(pooled, "%15[^.].%15[^.].%3[a-z]%d.c%d", c, mode, form, &kernel, &capacity) != 5) return;
    snprintf(prefix, sizeof prefix, "%s.%s.%s%d", c, mode, form, kernel);
    int32_t *par = ints("%s.par", c);
    size_t heads = (size_t)par[0], kv_heads = (size_t)par[1], n = (size_t)par[2], w = (size_t)par[4];
    bool per_q = strcmp(mode, "per_q") == 0, max = strcmp(mode, "max_s") == 0;
    size_t lists = per_q ? heads : kv_heads, groups = max ? heads : lists;
    kv_rows rows = rows_of(tensor("%s.k", c), tensor("%s.k", c));
    attn_job j = job_of(&rows, floats("%s.q", c), w, heads);
    be->ops->attn_prefill(be, &j);
    float *sum = hold(4 * groups * n);
    be->ops->evict->colsum(be, &j, groups, strcmp(mode, "sum_s") == 0 ? COMBINE_SUM : COMBINE_MEAN, false, at(sum), n);
    if (max) { /* of the heads' votes, not of single rows */
        float *one = hold(4 * lists * n);
        be->ops->evict->combine(be, at(one), at(sum), n, heads, lists, n, COMBINE_MAX);
        sum = one;
    }
    kept_rows l = lists_of(lists, n);
    be->ops->evict->append(be, &l, 0, n, (buf){NULL});
    float *votes = floats("%s.%s.votes", c, mode), *want = floats("%s.pooled", prefix);
    bool good = true;
    for (size_t i = 0; i < lists; i++) good &= near(sum + i * n, votes + i * (n - w), n - w, TOL);
    group_note(g, good, "%s: votes", prefix);
    be->ops->evict->pool(be, &l, at(sum), (int64_t)w, kernel, form[0] == 'm');
    good = true;
    for (size_t i = 0; i < lists; i++) good &= near((float *)(void *)l.score.p + i * n, want + i * (n - w), n - w, TOL);
    group_note(g, good, "%s: pooled", prefix);
    keep_rule rule = {.budget = capacity, .recent = (int64_t)w};
    be->ops->evict->prune(be, &l, (int64_t)n - 1, &rule);
    group_note(g, lists_are(&l, tensor("%s", pooled)), "%s: kept", pooled);
}

static void test_evict(backend *be, const char *level)
{
    group h = {0}, s = {0}, t = {0};
    all_runs(be, "h2o", h2o_run, &h);
    group_end(&h, "h2o: sums, victims, what is kept", level);
    all_runs(be, "tova", tova_run, &t);
    group_end(&t, "tova: last rows, victims, what is kept", level);
    fixture_open("snapkv");
    for (size_t i = 0; i < st_count(fixture); i++) snapkv_run(be, st_at(fixture, i)->name, &s);
    fixture_close();
    group_end(&s, "snapkv: votes, pooling, what is kept", level);
}

int main(void)
{
    test_rules();
    for (size_t i = 0; i <= N_ALL_LEVELS; i++) {
        const char *level = i ? ALL_LEVELS[i - 1] : "ref";
        backend *be = i ? open_level(level, 2) : open_ref();
        if (!be) continue;
        if (be->ops->codes) test_codes(be, level);
        else tap_skip("%s has no ops of quantized rows", level);
        if (be->ops->evict) test_evict(be, level);
        else tap_skip("%s has no ops of eviction", level);
        if (i) backend_close(be);
    }
    return tap_done();
}
