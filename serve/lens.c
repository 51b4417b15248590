/* SPDX-License-Identifier: MIT */
/* Lenses over HTTP: records as they are made, and bitmaps of the positions that steps read. A lens counts as one
 * sequence of the batch and advances by a prompt chunk or one step at a time, like a prompt. */
#include "config.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/base64.h"
#include "kernels/base/mem.h"
#include "serve/sched_impl.h"

enum { MAP_BYTES = 64 << 20 }; /* bitmaps of all lenses; the oldest are dropped first */

/* Positions that the steps of one lens read: [steps][n][layers][row], as in lens_bits. */
struct lens_map {
    lens_map *next;
    char id[API_ID];
    size_t n, layers, row, steps;
    uint8_t *bits;
};

/* ---- requests ---- */

static bool read_spec(const scheduler *s, const job *j, const char *text, const char *kv, attn_spec *out, api_error *e)
{
    err why = {0};
    api_request r = {
        .attn = text, .budget = j->r.budget, .kv = kv, .skip = j->r.skip, .decode = -1, .thinking_budget = -1};
    int64_t decode;
    if (!r.skip && !s->o.attn.skip) r.skip = "0"; /* the same value for all compared strategies */
    return sched_spec(s, &r, out, &decode, &why) == ST_OK || api_bad(e, "strategies", "%s", why.msg);
}

static bool find_drive(job_lens *l, const char *drive, api_error *e)
{
    char name[512];
    l->drive = 0;
    if (!drive || strcmp(drive, "full") == 0) return true;
    for (size_t i = 0; i < l->n; i++) {
        lens_name(name, &l->spec[i]);
        if (strcmp(drive, name) == 0 || strcmp(drive, l->spec[i].text) == 0) l->drive = i + 1;
    }
    return l->drive || api_bad(e, "drive", "drive: '%.80s', expected full or one of strategies", drive);
}

bool job_read_lens(scheduler *s, job *j, api_error *e)
{
    err why = {0};
    size_t n = (size_t)j->r.n_strategies;
    if (1 + n > s->o.batch)
        return api_bad(e, "strategies", "strategies: %zu and full need %zu sequences, --batch is %zu", n, n + 1,
                       s->o.batch);
    if (MEM_NEW(&j->lens, 1, &why) != ST_OK) return api_fail(e, 500, NULL, "%s", why.msg);
    j->lens->n = n;
    bool exact = s->o.attn.kv.kind == KV_PLAIN && !j->r.kv; /* full attention requires unquantized rows */
    bool good = read_spec(s, j, "full", exact ? NULL : "f16", &j->lens->full, e);
    for (size_t i = 0; i < n && good; i++) good = read_spec(s, j, j->r.strategies[i], j->r.kv, &j->lens->spec[i], e);
    return good && find_drive(j->lens, j->r.drive, e);
}

static lens_options options_of(const gen *g, const scheduler *s)
{
    const job *j = g->j;
    return (lens_options){.dec = s->o.dec,
                          .tok = s->o.tok,
                          .model = s->o.model,
                          .id = j->head.id,
                          .full = &j->lens->full,
                          .spec = j->lens->spec,
                          .n = j->lens->n,
                          .drive = j->lens->drive,
                          .ids = g->prompt->ids,
                          .n_ids = g->prompt->n,
                          .n_new = (size_t)j->r.max_tokens,
                          .ignore_eos = j->r.ignore_eos};
}

status gen_plan_lens(gen *g, const scheduler *s, err *e)
{
    const lens_options o = options_of(g, s);
    if (o.n_ids < 2) return err_set(e, ST_USAGE, "prompt: %zu tokens, expected at least 2", o.n_ids);
    return lens_plan(&g->bytes, &o, &s->o.decoder, e);
}

/* ---- records ---- */

static status take_line(void *ctx, const char *text, size_t n, err *e)
{
    job *j = ctx;
    pthread_mutex_lock(&j->lock);
    status st = buffer_add(&j->out, text, n, e);
    pthread_mutex_unlock(&j->lock);
    return st;
}

/* ---- bitmaps ---- */

static size_t bytes_of(const lens_map *m)
{
    return m->steps * m->n * m->layers * m->row;
}

static void drop_map(scheduler *s, lens_map **at)
{
    lens_map *m = *at;
    s->map_bytes -= bytes_of(m);
    *at = m->next;
    mem_free(m->bits);
    mem_free(m);
}

static lens_map *find_map(const scheduler *s, const char *id, size_t n)
{
    for (lens_map *m = s->maps; m; m = m->next)
        if (strlen(m->id) == n && strncmp(m->id, id, n) == 0) return m;
    return NULL;
}

static void begin_map(scheduler *s, const job *j, size_t row)
{
    lens_map *m, **end = &s->maps;
    err e = {0};
    if (MEM_NEW(&m, 1, &e) != ST_OK) return; /* no bitmaps for this lens */
    m->n = j->lens->n;
    m->layers = (size_t)decoder_attn_shape(s->o.dec)->n_layers;
    m->row = row;
    snprintf(m->id, sizeof m->id, "%s", j->head.id);
    while (*end) end = &(*end)->next;
    *end = m;
}

/* Keeps the bitmaps of the last step if there is room; drops the oldest lenses first. */
static void keep_map(scheduler *s, const gen *g)
{
    err e = {0};
    size_t row;
    (void)lens_bits(g->lens, 0, &row);
    pthread_mutex_lock(&s->lock);
    if (lens_steps(g->lens) == 1) begin_map(s, g->j, row);
    lens_map *m = find_map(s, g->j->head.id, strlen(g->j->head.id));
    size_t layers = m ? m->layers * m->row : 0, step = m ? m->n * layers : 0;
    while (m && s->map_bytes + step > MAP_BYTES && s->maps != m) drop_map(s, &s->maps);
    if (m && m->steps + 1 == lens_steps(g->lens) && s->map_bytes + step <= MAP_BYTES &&
        MEM_GROW(&m->bits, bytes_of(m) + step, &e) == ST_OK) {
        for (size_t i = 0; i < m->n; i++)
            memcpy(m->bits + m->steps * step + i * layers, lens_bits(g->lens, i, &row), layers);
        m->steps++;
        s->map_bytes += step;
    }
    pthread_mutex_unlock(&s->lock);
}

void sched_free_maps(scheduler *s)
{
    while (s->maps) drop_map(s, &s->maps);
}

static json_t *layers_json(const lens_map *m, size_t step, size_t strategy)
{
    json_t *list = json_array();
    const uint8_t *bits = m->bits + (step * m->n + strategy) * m->layers * m->row;
    for (size_t l = 0; l < m->layers; l++) {
        char *text = malloc(base64_size(m->row));
        if (text) base64_write(text, bits + l * m->row, m->row);
        json_array_append_new(list, json_string(text ? text : ""));
        free(text);
    }
    return list;
}

char *sched_lens_map(scheduler *s, const char *path, const char *strategy, api_error *e)
{
    const char *slash = strchr(path, '/');
    char *end = NULL, *text = NULL;
    json_t *j = NULL;
    unsigned long i = slash ? strtoul(slash + 1, &end, 10) : 0, k = strategy ? strtoul(strategy, NULL, 10) : 1;
    if (!slash || end == slash + 1 || *end) {
        api_fail(e, 404, NULL, "unknown path /lens/%.80s, expected /lens/ID/STEP", path);
        return NULL;
    }
    pthread_mutex_lock(&s->lock);
    const lens_map *m = find_map(s, path, (size_t)(slash - path));
    if (!m || i >= m->steps || k < 1 || k > m->n)
        api_fail(e, 404, NULL, "step %lu of strategy %lu of this lens does not exist or was dropped", i, k);
    else
        j = json_pack("{s:s, s:I, s:I, s:o}", "id", m->id, "i", (json_int_t)i, "s", (json_int_t)k, "layers",
                      layers_json(m, i, k - 1));
    pthread_mutex_unlock(&s->lock);
    if (j) text = json_dumps(j, JSON_COMPACT);
    json_decref(j);
    return text;
}

/* ---- a lens in progress ---- */

status gen_open_lens(gen *g, scheduler *s, err *e)
{
    lens_options o = options_of(g, s);
    o.line = take_line;
    o.ctx = g->j;
    g->state = GEN_PROMPT;
    return lens_open(&g->lens, &o, e);
}

/* Emits a record of the work done before the first step. */
static status give_progress(const gen *g, err *e)
{
    char line[128];
    int64_t done, total;
    lens_progress(g->lens, &done, &total);
    int n = snprintf(line, sizeof line, "{\"kind\":\"progress\",\"done\":%" PRId64 ",\"total\":%" PRId64 "}\n", done,
                     total);
    return take_line(g->j, line, (size_t)n, e);
}

status gen_piece_lens(gen *g, scheduler *s, err *e)
{
    size_t before = lens_steps(g->lens);
    bool done;
    TRY(lens_advance(g->lens, &done, e));
    if (lens_steps(g->lens) > before) keep_map(s, g);
    else if (g->j->r.return_progress) TRY(give_progress(g, e));
    if (done) g->state = GEN_DONE;
    return ST_OK;
}
