/* SPDX-License-Identifier: MIT */
/* Output of `info` for a model. */
#include "config.h"

#include <string.h>

#include "kernels/base/mem.h"
#include "model/weights.h"

static void print_bytes(FILE *f, const char *label, size_t bytes)
{
    fprintf(f, "%-14s %.2f MB (%zu bytes)\n", label, (double)bytes * 1e-6, bytes);
}

static void print_rope(const model_config *c, FILE *f)
{
    static const char *const kinds[] = {"plain", "linear", "dynamic", "llama3", "yarn", "longrope"};
    const bool off = c->rope.kind == ROPE_OFF;
    const rope_config *r = off ? &c->window_rope : &c->rope;
    fprintf(f, "%-14s %s, theta %g", "rope", kinds[r->kind], r->theta);
    if (off) fputs(", none in layers without a window", f);
    if (r->kind != ROPE_NONE) fprintf(f, ", factor %g", r->factor);
    if (r->divisors && r->kind != ROPE_LONGROPE) fputs(", frequencies divided by rope_freqs.weight", f);
    if (r->query_beta > 0) fprintf(f, ", query scale beta %g", r->query_beta);
    if (c->rotary < c->head_dim) fprintf(f, ", %d of %d channels", c->rotary, c->head_dim);
    if (r->original_max) fprintf(f, ", trained length %lld", (long long)r->original_max);
    if (r->kind == ROPE_LONGROPE && r->attention_factor > 0) fprintf(f, ", attention factor %g", r->attention_factor);
    if (r->kind == ROPE_LLAMA3)
        fprintf(f, ", low frequency factor %g, high %g", r->low_freq_factor, r->high_freq_factor);
    if (r->kind == ROPE_YARN) {
        fprintf(f, ", beta fast %g, slow %g", r->beta_fast, r->beta_slow);
        if (r->attention_factor > 0) fprintf(f, ", attention factor %g", r->attention_factor);
        else if (r->mscale > 0 && r->mscale_all_dim > 0)
            fprintf(f, ", mscale %g, all dim %g", r->mscale, r->mscale_all_dim);
        if (!r->truncate) fprintf(f, ", range not rounded");
    }
    fputc('\n', f);
}

/* Prints "none", or runs of layers with the same window: "4096 in layers 2-5". */
static void print_windows(const model_config *c, FILE *f)
{
    bool any = false;
    fprintf(f, "%-14s ", "sliding window");
    for (int i = 0; i < c->n_layers;) {
        int end = i;
        while (end + 1 < c->n_layers && c->window[end + 1] == c->window[i]) end++;
        if (c->window[i]) {
            fprintf(f, "%s%d in layer%s %d", any ? ", " : "", c->window[i], end > i ? "s" : "", i);
            if (end > i) fprintf(f, "-%d", end);
            any = true;
        }
        i = end + 1;
    }
    fputs(any ? "\n" : "none\n", f);
}

static void print_config(const model_config *c, FILE *f)
{
    size_t kv = 2 * (size_t)c->n_kv * (size_t)c->n_kv_heads * (size_t)c->head_dim * dtype_size(DT_F16);
    fprintf(f, "%-14s %s\n", "architecture", c->arch);
    fprintf(f, "%-14s %.2f M (%lld)\n", "parameters", (double)c->n_params * 1e-6, (long long)c->n_params);
    if (c->n_experts) {
        fprintf(f, "%-14s %.2f M (%lld) for a token\n", "active", (double)c->n_active * 1e-6, (long long)c->n_active);
        fprintf(f, "%-14s %d of %d, feed-forward %d", "experts", c->n_chosen, c->n_experts, c->expert_ffn);
        if (c->shared_ffn) fprintf(f, ", shared %d", c->shared_ffn);
        fputc('\n', f);
    }
    fprintf(f, "%-14s %d\n", "layers", c->n_layers);
    fprintf(f, "%-14s %d query, %d key-value, dimension %d\n", "heads", c->n_heads, c->n_kv_heads, c->head_dim);
    fprintf(f, "%-14s %d, feed-forward %d\n", "hidden", c->hidden, c->ffn);
    fprintf(f, "%-14s %d%s\n", "vocabulary", c->vocab, c->tied ? " (output matrix is the embedding)" : "");
    fprintf(f, "%-14s qkv bias %s, output bias %s, mlp bias %s, q/k norm %s, rms eps %g\n", "details",
            c->qkv_bias ? "yes" : "no", c->o_bias ? "yes" : "no", c->mlp_bias ? "yes" : "no", c->qk_norm ? "yes" : "no",
            (double)c->rms_eps);
    print_rope(c, f);
    print_windows(c, f);
    fprintf(f, "%-14s %lld\n", "max positions", (long long)c->max_positions);
    fprintf(f, "%-14s %zu bytes in f16\n", "KV per token", kv);
}

const char *model_file(const model *m, size_t i)
{
    const tensor_source *s = ((const model_files *)m->files)->source;
    return s && i < s->n_files ? s->kind->file(s, i).path : NULL;
}

static void print_files(const model_files *files, FILE *f)
{
    for (size_t i = 0; files->source && i < files->source->n_files; i++) {
        const source_file file = files->source->kind->file(files->source, i);
        fprintf(f, "%-14s %s (%.2f MB, %zu tensors)\n", i ? "" : "files", file.path, (double)file.bytes * 1e-6,
                file.n_tensors);
    }
    if (files->random_bytes) fprintf(f, "%-14s none: random weights in memory\n", "files");
    if (files->cache) fprintf(f, "%-14s %s\n", "mapped from", files->cache);
    if (files->n_unused) fprintf(f, "%-14s %zu tensors of these files\n", "not used", files->n_unused);
    if (files->n_copies)
        fprintf(f, "%-14s %zu tensors (not aligned, transposed, rows in another order, or gains of norms)\n", "copied",
                files->n_copies);
}

void model_print_info(const model *m, FILE *f)
{
    size_t tensors[DT_COUNT] = {0}, bytes[DT_COUNT] = {0};
    bool any = false;
    for (const weight_spec *w = m->weights; w < weights_end(m); w++) {
        tensors[w->slot->type]++;
        bytes[w->slot->type] += weight_size(w, w->slot->type);
    }
    fprintf(f, "%-14s %s\n", "model", m->name);
    print_config(&m->config, f);
    fprintf(f, "%-14s ", "dtype");
    for (dtype d = DT_F32; d < DT_COUNT; d++) {
        if (!tensors[d]) continue;
        fprintf(f, "%s%s (%zu tensors, %.2f MB)", any ? ", " : "", dtype_name(d), tensors[d], (double)bytes[d] * 1e-6);
        any = true;
    }
    fputc('\n', f);
    print_bytes(f, "weights", m->weight_bytes);
    if (m->memory_bytes) print_bytes(f, "in memory", m->memory_bytes);
    print_bytes(f, "read per token", m->decode_bytes);
    print_files(m->files, f);
}
