/* SPDX-License-Identifier: MIT */
/* Recall on the tensors of a file: queries and keys saved by another program. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "eval/fidelity/recall_follow.h"
#include "kernels/base/mem.h"
#include "kernels/half.h"
#include "model/safetensors.h"

enum { CHUNK = 64 };
/* Buffers of a forward pass. */
enum { POS, TABLE, FREQ, ROWS_Q, ROWS_K, ROWS_V, BUFFERS };

/* The tensors as f32 [heads][rows][head_dim], and ops memory for the inputs of a forward pass. */
typedef struct {
    float *q, *k, *v; /* v NULL: not in the file */
    size_t heads, kv_heads, m, n, d;
    size_t prompt; /* prompt keys among the n keys */
    buf of[BUFFERS];
    size_t bytes[BUFFERS];
    float *host; /* [CHUNK][heads][d] */
} tensors;

/* Returns the largest element for which rows can hold it and products of two stay finite. */
static float most_of(dtype rows)
{
    return rows == DT_F16 ? 65504.0f : 1e16f;
}

/* Reads a tensor of rank 3 as f32, with elements of at most `most`. If it is missing, *out stays NULL. */
static status read_tensor(float **out, const st_file *f, const char *name, float most, size_t shape[3], err *e)
{
    const st_tensor *t = st_find(f, name);
    const char *path = st_path(f);
    if (!t) return ST_OK;
    if (t->rank != 3) return err_set(e, ST_FORMAT, "--tensors %s: %s: expected a tensor of rank 3", path, name);
    bool f32 = strcmp(t->type, "F32") == 0, f16 = strcmp(t->type, "F16") == 0;
    if (!f32 && !f16 && strcmp(t->type, "BF16") != 0)
        return err_set(e, ST_FORMAT, "--tensors %s: %s: type %s, expected F32, F16 or BF16", path, name, t->type);
    memcpy(shape, t->shape, 3 * sizeof *shape);
    size_t n = t->bytes / (f32 ? 4 : 2);
    if (n == 0) return err_set(e, ST_FORMAT, "--tensors %s: %s: empty tensor", path, name);
    TRY(MEM_NEW(out, n, e));
    for (size_t i = 0; i < n; i++) {
        float x;
        uint16_t h = 0;
        if (f32) memcpy(&x, t->data + 4 * i, 4);
        else memcpy(&h, t->data + 2 * i, 2);
        if (!f32) x = f16 ? f16_to_f32(h) : bf16_to_f32(h);
        if (!isfinite(x))
            return err_set(e, ST_FORMAT, "--tensors %s: %s: element %zu is NaN or infinite", path, name, i);
        if (fabsf(x) > most)
            return err_set(e, ST_FORMAT, "--tensors %s: %s: element %zu exceeds %g", path, name, i, (double)most);
        (*out)[i] = x;
    }
    return ST_OK;
}

static status check_shapes(const char *path, tensors *t, const size_t q[3], const size_t k[3], const size_t v[3],
                           err *e)
{
    if (!t->q || !t->k) return err_set(e, ST_FORMAT, "--tensors %s: %s: missing tensor", path, t->q ? "k" : "q");
    if (q[2] != k[2] || q[2] % 2 || q[2] > 256)
        return err_set(e, ST_FORMAT, "--tensors %s: q and k: head_dim %zu and %zu: must be equal, even and at most 256",
                       path, q[2], k[2]);
    if (q[0] % k[0] || q[0] > 1024)
        return err_set(e, ST_FORMAT, "--tensors %s: q and k: %zu query heads are not a multiple of %zu kv heads", path,
                       q[0], k[0]);
    if (t->v && memcmp(k, v, 3 * sizeof *k) != 0)
        return err_set(e, ST_FORMAT, "--tensors %s: v: its shape differs from that of k", path);
    if (k[1] < 2) return err_set(e, ST_FORMAT, "--tensors %s: k: must have at least two keys", path);
    t->heads = q[0];
    t->m = q[1];
    t->d = q[2];
    t->kv_heads = k[0];
    t->n = k[1];
    return ST_OK;
}

static status read_all(tensors *t, const recall_tensors *job, dtype rows, err *e)
{
    st_file *f;
    const char *path = job->path;
    size_t q[3] = {0}, k[3] = {0}, v[3] = {0};
    TRY(job->data ? st_open_memory(&f, job->data, job->size, path, e) : st_open(&f, path, e));
    status st = read_tensor(&t->q, f, "q", most_of(DT_F32), q, e);
    if (st == ST_OK) st = read_tensor(&t->k, f, "k", most_of(rows), k, e);
    if (st == ST_OK) st = read_tensor(&t->v, f, "v", most_of(rows), v, e);
    if (st == ST_OK) st = check_shapes(path, t, q, k, v, e);
    st_close(f);
    return st;
}

/* Allocates the buffers of a forward pass. Rotation angles are zero, so keys and queries are unchanged. */
static status open_buffers(tensors *t, backend *be, err *e)
{
    size_t row = CHUNK * t->d * sizeof(float);
    t->bytes[POS] = CHUNK * sizeof(int64_t);
    t->bytes[TABLE] = row;
    t->bytes[FREQ] = row / CHUNK;
    t->bytes[ROWS_Q] = t->heads * row;
    t->bytes[ROWS_K] = t->bytes[ROWS_V] = t->kv_heads * row;
    for (int i = 0; i < BUFFERS; i++) TRY(be->ops->alloc(be, &t->of[i], t->bytes[i], "rows", e));
    TRY(MEM_NEW(&t->host, CHUNK * t->heads * t->d, e));
    for (size_t i = 0; i < CHUNK * t->d; i++) t->host[i] = i % 2 ? 0 : 1; /* {cos, sin} */
    be->ops->upload(be, t->of[TABLE], t->host, row);
    return ST_OK;
}

static void close_tensors(tensors *t, backend *be)
{
    for (int i = 0; i < BUFFERS; i++)
        if (t->of[i].p) be->ops->free(be, t->of[i], t->bytes[i]);
    mem_free(t->host);
    mem_free(t->q);
    mem_free(t->k);
    mem_free(t->v);
}

/* Uploads rows [first, first + n) of x [heads][rows][d] as [n][heads][d]. */
static void upload_rows(tensors *t, backend *be, buf to, const float *x, size_t heads, size_t rows, size_t first,
                        size_t n)
{
    for (size_t i = 0; i < n; i++)
        for (size_t h = 0; h < heads; h++)
            for (size_t c = 0; c < t->d; c++)
                t->host[(i * heads + h) * t->d + c] = x ? x[(h * rows + first + i) * t->d + c] : 0;
    be->ops->upload(be, to, t->host, n * heads * t->d * sizeof(float));
}

static attn_step step_at(tensors *t, follow *f, size_t first, size_t n, unsigned flags)
{
    int64_t pos[CHUNK];
    for (size_t i = 0; i < n; i++) pos[i] = (int64_t)(first + i);
    f->be->ops->upload(f->be, t->of[POS], pos, n * sizeof *pos);
    upload_rows(t, f->be, t->of[ROWS_K], t->k, t->kv_heads, t->n, first, n);
    upload_rows(t, f->be, t->of[ROWS_V], t->v, t->kv_heads, t->n, first, n);
    return (attn_step){.seq = f->seqs,
                       .n_seq = 1,
                       .n_tok = n,
                       .flags = flags,
                       .n_prompt = flags & ATTN_PROMPT ? (int64_t)t->prompt : 0,
                       .prompt_done = (int64_t)first,
                       .pos = t->of[POS],
                       .table = t->of[TABLE],
                       .freq = t->of[FREQ],
                       .mscale = 1};
}

/* Feeds all keys except the last one: the prompt, then single steps that use the first query. */
static void fill(tensors *t, follow *f)
{
    for (size_t at = 0, n; at < t->prompt; at += n) {
        n = t->prompt - at < CHUNK ? t->prompt - at : CHUNK;
        attn_step step = step_at(t, f, at, n, ATTN_PROMPT | (at + n == t->prompt ? ATTN_PROMPT_END : 0));
        attn_begin(f->work, &step);
        attn_store(f->work, &step, 0, t->of[ROWS_K], t->of[ROWS_V]);
        attn_end(f->work, &step);
    }
    if (t->prompt + 1 < t->n) upload_rows(t, f->be, t->of[ROWS_Q], t->q, t->heads, t->m, 0, 1);
    for (size_t at = t->prompt; at + 1 < t->n; at++) {
        attn_step step = step_at(t, f, at, 1, 0);
        attn_begin(f->work, &step);
        attn_layer(f->work, &step, 0, t->of[ROWS_Q], t->of[ROWS_K], t->of[ROWS_V], f->out);
        attn_end(f->work, &step);
    }
}

/* Measures run `run`: the last key is the current token of every query. */
static status ask(tensors *t, follow *f, size_t run, err *e)
{
    attn_seq *s = f->runs[run].seq;
    f->seqs[0] = s;
    fill(t, f);
    for (size_t i = 0; i < t->m; i++) {
        f->query_index = (int64_t)i;
        attn_step step = step_at(t, f, t->n - 1, 1, 0);
        upload_rows(t, f->be, t->of[ROWS_Q], t->q, t->heads, t->m, i, 1);
        attn_begin(f->work, &step);
        attn_attend(f->work, &step, 0, t->of[ROWS_Q], t->of[ROWS_K], t->of[ROWS_V], f->out);
        follow_query(f, 0, t->of[ROWS_Q]);
        follow_judge(f, run, 0, 0);
        attn_layer_end(f->work, &step, 0);
        attn_end(f->work, &step);
        f->runs[run].n_queries++;
        if (i + 1 < t->m && attn_seq_rewind(s, (int64_t)t->n - 1, NULL) != ST_OK) {
            attn_seq_reset(s);
            fill(t, f);
        }
    }
    if (f->st != ST_OK) *e = f->e;
    return f->st != ST_OK ? f->st : backend_fault(f->be, e);
}

/* Stores the rows of exact attention: all keys, rounded as stored. */
static void keep_exact(tensors *t, follow *f)
{
    for (size_t at = 0, n; at < t->n; at += n) {
        n = t->n - at < CHUNK ? t->n - at : CHUNK;
        upload_rows(t, f->be, t->of[ROWS_K], t->k, t->kv_heads, t->n, at, n);
        upload_rows(t, f->be, t->of[ROWS_V], t->v, t->kv_heads, t->n, at, n);
        follow_append(f, 0, t->of[ROWS_K], t->of[ROWS_V], n);
    }
}

static status prepare_runs(recall_run *runs, size_t n_runs, err *e)
{
    for (size_t i = 0; i < n_runs; i++) {
        if (!attn_retrieves(&runs[i].spec))
            return err_set(e, ST_USAGE, "--tensors: %s is not supported; use a strategy that retrieves",
                           runs[i].spec.text);
        if (attn_by_window(&runs[i].spec))
            return err_set(e, ST_USAGE, "--tensors: %s is not supported; it needs the prompt's queries",
                           runs[i].spec.text);
        runs[i].spec.skip = (attn_layers){0};
        runs[i].spec.forced = true;
    }
    return ST_OK;
}

status recall_on_tensors(recall_tensors *job, recall_run *runs, size_t n_runs, err *e)
{
    tensors t = {0};
    int window = 0;
    attn_shape shape = {.n_layers = 1, .window = &window};
    follow f = {.be = job->be, .shape = &shape, .runs = runs, .n_runs = n_runs, .dump = job->dump};
    TRY(prepare_runs(runs, n_runs, e));
    status st = read_all(&t, job, recall_exact_type(runs, n_runs), e);
    if (st != ST_OK) goto done;
    shape.n_heads = (int)t.heads;
    shape.n_kv_heads = (int)t.kv_heads;
    shape.head_dim = (int)t.d;
    shape.scale = (float)(1 / sqrt((double)t.d));
    shape.max_positions = (int64_t)t.n;
    job->n_keys = (int64_t)t.n;
    t.prompt = job->n_prompt ? (size_t)job->n_prompt : t.n - 1;
    f.prompt = (int64_t)t.prompt;
    if (t.prompt >= t.n)
        TRY_GOTO(err_set(e, ST_USAGE, "--prompt-keys %lld: %s has %zu keys, the last of which is the current token",
                         (long long)job->n_prompt, job->path, t.n));
    attn_limits lim = {.n_tokens = (int64_t)t.n, .chunk = CHUNK};
    TRY_GOTO(open_buffers(&t, job->be, e));
    TRY_GOTO(follow_open(&f, &lim, t.v != NULL, e));
    keep_exact(&t, &f);
    for (size_t i = 0; i < n_runs && st == ST_OK; i++) st = ask(&t, &f, i, e);
done:
    if (shape.n_heads) follow_close(&f);
    close_tensors(&t, job->be);
    return st;
}
