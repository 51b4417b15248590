/* SPDX-License-Identifier: MIT */
/* Recall on text: the strategies receive the steps of a run of full attention. */
#include "config.h"

#include "eval/fidelity/recall_follow.h"
#include "kernels/base/mem.h"

/* Returns the step of the next group of strategies from run `from` on: in a prompt those that share it, in decode
 * one. */
static attn_step step_of(follow *f, const attn_seen *seen, size_t from, size_t *n)
{
    attn_step step = *seen->step;
    bool prompt = step.flags & ATTN_PROMPT;
    for (*n = 0; from + *n < f->n_runs && (*n == 0 || (prompt && f->joins[from + *n])); ++*n)
        f->seqs[*n] = f->runs[from + *n].seq;
    step.seq = f->seqs;
    step.n_seq = *n;
    return step;
}

/* Judges every query of the prompt window with the keys up to its own position. */
static void judge_window(follow *f, const attn_seen *seen, size_t run)
{
    exact_rows *r = &f->rows[seen->layer];
    int64_t n = r->n, n_tok = (int64_t)seen->step->n_tok;
    size_t all = (size_t)f->shape->n_heads * (size_t)f->shape->head_dim;
    for (int64_t i = 0; i < n_tok; i++) {
        r->n = n - n_tok + i + 1;
        f->query_index = i;
        follow_query(f, seen->layer, buf_at(seen->q, (size_t)i * all * sizeof(float)));
        follow_judge(f, run, seen->layer, (size_t)i);
    }
    r->n = n;
}

static void follow_layer(follow *f, const attn_seen *seen, const attn_step *step, size_t first)
{
    bool decode = !(step->flags & ATTN_PROMPT);
    attn_attend(f->work, step, seen->layer, seen->q_raw, seen->k_raw, seen->v, f->out);
    if (decode) follow_judge(f, first, seen->layer, 0);
    else if (f->in_window) judge_window(f, seen, first);
    attn_layer_end(f->work, step, seen->layer);
}

static void on_seen(void *ctx, const attn_seen *seen)
{
    follow *f = ctx;
    bool layer = seen->layer >= 0 && seen->layer < f->shape->n_layers;
    if (layer) follow_append(f, seen->layer, seen->k, seen->v, seen->step->n_tok);
    if (layer && !(seen->step->flags & ATTN_PROMPT)) follow_query(f, seen->layer, seen->q);
    for (size_t i = 0, n; i < f->n_runs; i += n) {
        attn_step step = step_of(f, seen, i, &n);
        if (seen->layer < 0) attn_begin(f->work, &step);
        else if (layer) follow_layer(f, seen, &step, i);
        else attn_end(f->work, &step);
    }
}

static status feed_text(recall_text *job, session *s, follow *f, float *logits, err *e)
{
    const prefill_options o = {.which = LOGITS_LAST};
    int64_t head = job->n_ids - job->n_queries;
    TRY(session_prefill(&s, 1, job->ids, (size_t)head, &o, e));
    f->in_window = job->window;
    if (job->window) {
        TRY(session_prefill(&s, 1, job->ids + head, (size_t)job->n_queries, &o, e));
        for (size_t k = 0; k < f->n_runs; k++) f->runs[k].n_queries = job->n_queries;
        return ST_OK;
    }
    for (int64_t i = 0; i < job->n_queries; i++) {
        f->query_index = i;
        TRY(session_decode(&s, 1, &job->ids[head + i], logits, e));
        for (size_t k = 0; k < f->n_runs; k++) f->runs[k].n_queries++;
        if (f->st != ST_OK) *e = f->e;
        TRY(f->st);
        progress_set(job->bar, i + 1, job->n_queries);
        if (cli_interrupted()) return err_set(e, ST_INTERRUPTED, "interrupted");
    }
    return ST_OK;
}

/* Finds groups of neighbouring strategies that can share the first prompt. */
static void find_groups(follow *f, int64_t n_prompt)
{
    size_t first = 0;
    for (size_t i = 1; i < f->n_runs; i++) {
        f->joins[i] = i - first < f->host_rows && attn_can_share(f->runs[first].seq, f->runs[i].seq, n_prompt);
        if (!f->joins[i]) first = i;
    }
}

/* Checks that the strategies select within prompts, and that the queries fit one window. */
static status check_window(const recall_text *job, const follow *f, err *e)
{
    for (size_t i = 0; i < f->n_runs && job->window; i++) {
        const char *name = f->runs[i].spec.text;
        if (!attn_by_window(&f->runs[i].spec))
            return err_set(e, ST_USAGE, "--window: %s does not select within prompts; use actqkv or infllm", name);
        int64_t window = attn_seq_window(f->runs[i].seq);
        if (window < job->n_queries || (int64_t)f->host_rows < job->n_queries)
            return err_set(e, ST_USAGE,
                           "--queries %lld: exceeds the window of %s (%lld tokens) or the chunk (%zu tokens)",
                           (long long)job->n_queries, name, (long long)window, f->host_rows);
    }
    return ST_OK;
}

status recall_on_text(recall_text *job, recall_run *runs, size_t n_runs, err *e)
{
    session *s = NULL;
    float *logits = NULL;
    attn_spec full;
    attn_limits lim = {.n_tokens = job->n_ids, .chunk = decoder_chunk(job->d)};
    follow f = {.be = decoder_model(job->d)->be,
                .shape = decoder_attn_shape(job->d),
                .runs = runs,
                .n_runs = n_runs,
                .distributions = job->distributions,
                .prompt = job->n_ids - job->n_queries,
                .dump = job->dump};
    status st = follow_open(&f, &lim, true, e);
    const attn_options o = {.kv = kv_plain(f.type)};
    if (st == ST_OK) st = attn_spec_parse(&full, "full", &o, e);
    if (st == ST_OK) st = check_window(job, &f, e);
    if (st == ST_OK) find_groups(&f, job->n_ids - job->n_queries);
    if (st == ST_OK) st = session_create(&s, job->d, &full, session_of(job->n_ids), e);
    if (st == ST_OK) st = MEM_NEW(&logits, (size_t)decoder_model(job->d)->config.vocab, e);
    if (st == ST_OK) {
        attn_watch(decoder_attn_work(job->d), on_seen, &f);
        st = feed_text(job, s, &f, logits, e);
        attn_watch(decoder_attn_work(job->d), NULL, NULL);
    }
    mem_free(logits);
    session_free(s);
    follow_close(&f);
    return st;
}
