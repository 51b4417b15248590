/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "eval/provenance.h"

#include <string.h>
#include <time.h>

#include "kernels/base/file.h"
#include "kernels/base/mem.h"

static const size_t WHOLE_BYTES = 64 << 20, END_BYTES = 16 << 20, PIECE_BYTES = 16 << 10;
enum { PIECES = 1024 };

static void add_content(sha256 *h, const file_map *m)
{
    if (m->size <= WHOLE_BYTES) {
        if (m->size) sha256_add(h, m->data, m->size);
        return;
    }
    size_t step = (m->size - 2 * END_BYTES) / PIECES;
    sha256_add(h, m->data, END_BYTES);
    for (size_t i = 0; i < PIECES; i++) sha256_add(h, m->data + END_BYTES + i * step, PIECE_BYTES);
    sha256_add(h, m->data + m->size - END_BYTES, END_BYTES);
}

status file_sha256(const char *path, char out[SHA256_HEX], err *e)
{
    file_map m;
    sha256 h;
    TRY(file_map_open(&m, path, e));
    sha256_init(&h);
    if (m.size) sha256_add(&h, m.data, m.size);
    file_map_close(&m);
    sha256_hex(&h, out);
    return ST_OK;
}

static bool ends_with(const char *s, const char *end)
{
    size_t n = strlen(s), k = strlen(end);
    return n >= k && strcmp(s + n - k, end) == 0;
}

static bool is_part(const char *s)
{
    return s[0] != '.' && (ends_with(s, ".json") || ends_with(s, ".safetensors") || ends_with(s, ".model") ||
                           strcmp(s, "merges.txt") == 0);
}

static status add_file(void *ctx, const char *path, err *e)
{
    sha256 *h = ctx;
    file_map m;
    char size[32];
    const char *slash = strrchr(path, '/'), *name = slash ? slash + 1 : path;
    TRY(file_map_open(&m, path, e));
    int n = snprintf(size, sizeof size, " %zu\n", m.size);
    sha256_add(h, name, strlen(name));
    sha256_add(h, size, (size_t)n);
    add_content(h, &m);
    file_map_close(&m);
    return ST_OK;
}

status model_sha256(const model *m, char out[SHA256_HEX], err *e)
{
    sha256 h;
    size_t n = 0;
    status st = ST_OK;
    sha256_init(&h);
    if (dir_exists(m->name)) st = file_each(m->name, is_part, add_file, &h, path_tail(m->name), &n, e);
    else
        for (const char *path; st == ST_OK && (path = model_file(m, n)); n++) st = add_file(&h, path, e);
    sha256_hex(&h, out);
    return st;
}

static json_t *run_json(const attn_spec *s)
{
    char kv[128];
    kv_format_text(&s->kv, kv, sizeof kv);
    return results_merge(lineup_row_json(s), json_pack("{s:s}", "kv", kv));
}

/* Members shared by all evaluations. */
static status common_config(json_t **out, uint64_t seed, const engine *g, const lineup *l, err *e)
{
    char sum[SHA256_HEX];
    json_t *runs = json_array();
    bool bad = false;
    *out = NULL;
    const engine_options *o = &g->o;
    status st = model_sha256(g->m, sum, e);
    for (size_t i = 0; i < l->n && st == ST_OK; i++) bad |= json_array_append_new(runs, run_json(&l->run[i].spec)) != 0;
    if (st != ST_OK) {
        json_decref(runs);
        return st;
    }
    *out = json_pack("{s:s, s:s, s:s, s:s, s:s, s:s, s:I, s:I, s:o}", "version", PACKAGE_VERSION, "model_sha256", sum,
                     "weights", dtype_name(g->m->type), "device", g->be->name, "backend", g->be->about, "gemm",
                     o->device.gemm ? o->device.gemm : "auto", "chunk", (json_int_t)decoder_chunk(g->dec), "seed",
                     (json_int_t)seed, "runs", runs);
    if (*out && o->draft)
        bad |= json_object_set_new(*out, "draft", json_string(o->draft)) != 0 ||
               json_object_set_new(*out, "draft_weights",
                                   o->draft_weights ? json_string(o->draft_weights) : json_null()) != 0;
    return *out && !bad ? ST_OK : err_set(e, ST_NOMEM, "out of memory for the configuration");
}

/* Members that may differ in a resumed run. */
static status started_json(json_t **out, const engine *g, err *e)
{
    char now[32];
    time_t t = time(NULL);
    struct tm utc;
    strftime(now, sizeof now, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&t, &utc));
    *out = json_pack("{s:o, s:i, s:s}", "model", report_model(g->m->name), "threads", g->be->n_threads, "time", now);
    return *out ? ST_OK : err_set(e, ST_NOMEM, "out of memory");
}

status provenance_open(results **out, const result_options *o, uint64_t seed, const engine *g, const lineup *l,
                       json_t *own, const char *const *identity, err *e)
{
    json_t *config = NULL, *started = NULL;
    status st = own ? ST_OK : err_set(e, ST_NOMEM, "out of memory for the configuration");
    if (st == ST_OK) st = common_config(&config, seed, g, l, e);
    if (st == ST_OK && json_object_update(config, own) != 0)
        st = err_set(e, ST_NOMEM, "out of memory for the configuration");
    if (st == ST_OK) st = started_json(&started, g, e);
    const results_options r = {o->output, o->command, config, started, identity, g->o.device.ranks};
    if (st == ST_OK) st = results_open(out, &r, e);
    if (st == ST_OK && results_count(*out) > 0)
        out_note("%s: resuming after %zu results", path_tail(o->output), results_count(*out));
    json_decref(own);
    json_decref(config);
    json_decref(started);
    return st;
}

void provenance_note_rest(const results *r, const result_options *o, const char *from)
{
    if (o->output)
        out_note("%s: %zu results; the same command resumes %s", path_tail(o->output), results_count(r), from);
}

status provenance_end(const results *r, const result_options *o, const engine *g, status st, err *e)
{
    if (st != ST_INTERRUPTED || !o->json || !r || results_count(r) == 0) return report_check_end(o, st, e);
    *e = (err){0};
    TRY(report_write(o, g, results_config(r), results_list(r), json_pack("{s:b}", "interrupted", 1), e));
    return err_set(e, st, "interrupted; --json %s has the %zu results so far", path_tail(o->json), results_count(r));
}
