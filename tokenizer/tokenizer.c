/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tokenizer/gguf_tokens.h"
#include "tokenizer/impl.h"

void tokenizer_free(tokenizer *t)
{
    if (!t) return;
    bpe_free(t->bpe);
    spm_free(t->spm);
    pretok_free(t->pre);
    normalizer_free(&t->normalizer);
    added_free(&t->added);
    token_list_free(&t->eos);
    token_list_free(&t->prefix);
    chat_set_free(&t->chat);
    mem_free(t);
}

static status create(tokenizer **out, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->bos = -1;
    return ST_OK;
}

/* Checks that no added token takes the id of a different token of the vocabulary. Texts outside ASCII are spelled
 * differently there and are not compared. */
static status check_added(const tokenizer *t, const char *name, err *e)
{
    for (size_t i = 0; i < t->added.n && t->bpe; i++) {
        const added_token *a = &t->added.items[i];
        size_t n;
        bool ascii = true;
        const char *have = bpe_token(t->bpe, a->id, &n);
        for (size_t k = 0; k < a->n; k++) ascii &= a->text[k] > ' ' && a->text[k] < 0x7f;
        if (have && ascii && (n != a->n || memcmp(have, a->text, n) != 0))
            return err_set(e, ST_FORMAT, "%s: added token \"%.60s\" has id %d, which is \"%.*s\" in the vocabulary",
                           name, a->text, a->id, n > 60 ? 60 : (int)n, have);
    }
    return ST_OK;
}

/* Adds tokens that end a turn or a text in known families, regardless of the files. */
static status add_known_eos(tokenizer *t, err *e)
{
    static const char *const known[] = {"<|eot_id|>", "<|im_end|>", "<|eom_id|>", "<|end_of_text|>", "<|endoftext|>"};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        const added_token *a = added_by_text(&t->added, known[i], strlen(known[i]));
        if (a && a->special) TRY(token_list_push(&t->eos, a->id, e));
    }
    return ST_OK;
}

status tokenizer_finish(tokenizer *t, const char *name, err *e)
{
    TRY(added_sort(&t->added, &t->normalizer, name, e));
    TRY(check_added(t, name, e));
    t->n_ids = t->bpe ? bpe_n_ids(t->bpe) : spm_n_ids(t->spm);
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.items[i].id >= t->n_ids) t->n_ids = t->added.items[i].id + 1;
    for (size_t i = 0; i < t->prefix.n; i++)
        if (t->prefix.ids[i] >= t->n_ids)
            return err_set(e, ST_FORMAT, "%s: post_processor: id %d is not below the number of ids, %d", name,
                           t->prefix.ids[i], t->n_ids);
    if (t->bos >= t->n_ids)
        return err_set(e, ST_FORMAT, "%s: BOS id %d is not below the number of ids, %d", name, t->bos, t->n_ids);
    TRY(chat_name_tokens(t, e));
    TRY(add_known_eos(t, e));
    return ST_OK;
}

status tokenizer_open_json(tokenizer **out, const char *text, size_t n, const char *name, err *e)
{
    json_t *root = NULL;
    tokenizer *t = NULL;
    *out = NULL;
    status st = json_parse_object(&root, text, n, name, JSON_DEPTH, e);
    if (st == ST_OK) st = create(&t, e);
    if (st == ST_OK) st = (tekken_looks_like(root) ? tekken_load : bpe_json_load)(t, root, name, e);
    if (st == ST_OK) st = tokenizer_finish(t, name, e);
    json_decref(root);
    if (st == ST_OK) *out = t;
    else tokenizer_free(t);
    return st;
}

/* Loads tokenizer.json. Leaves t without a vocabulary if it is not a byte-level BPE but tokenizer.model exists. */
static status open_json(tokenizer *t, const char *path, bool has_model, err *e)
{
    json_t *root;
    TRY(json_read_object(&root, path, TOKENIZER_MAX_FILE, JSON_DEPTH, e));
    status st = has_model && !bpe_json_is_byte_level(root) ? ST_OK : bpe_json_load(t, root, path, e);
    json_decref(root);
    snprintf(t->describe, sizeof t->describe, "%s (tokenizer.json)",
             t->pieces.on ? "SentencePiece BPE" : "byte-level BPE");
    return st;
}

static status open_model(tokenizer *t, const char *path, err *e)
{
    file_map m;
    TRY(file_map_open(&m, path, e));
    const char *data = (const char *)m.data;
    status st;
    TRY_GOTO(file_check_pointer(data, m.size, path, e));
    if (m.size == 0 || m.size > TOKENIZER_MAX_FILE) {
        st = err_set(e, ST_FORMAT, "%s: %zu bytes; 1 to %d expected", path, m.size, TOKENIZER_MAX_FILE);
    } else if (tiktoken_looks_like(data, m.size)) {
        snprintf(t->describe, sizeof t->describe, "tiktoken (tokenizer.model)");
        st = tiktoken_load(t, data, m.size, path, e);
    } else {
        snprintf(t->describe, sizeof t->describe, "SentencePiece (tokenizer.model)");
        st = spm_model_load(t, data, m.size, path, e);
    }
done:
    file_map_close(&m);
    return st;
}

/* Adds Qwen's special tokens, whose ids follow its vocabulary. tokenizer_config.json lists all of them if present. */
static status guess_qwen_added(tokenizer *t, const char *name, err *e)
{
    static const char *const names[] = {"<|endoftext|>", "<|im_start|>", "<|im_end|>"};
    t->guessed_added = true;
    for (int i = 0; i < 3; i++) {
        if (bpe_find(t->bpe, names[i], strlen(names[i])) >= 0) continue;
        added_token a = {.n = strlen(names[i]), .id = bpe_n_ids(t->bpe) + i, .special = true};
        a.text = (char *)(uintptr_t)names[i]; /* copied */
        TRY(added_push(&t->added, &a, name, e));
    }
    return ST_OK;
}

static status open_files(tokenizer *t, const char *dir, const char *vocab_path, const char *merges_path, err *e)
{
    json_t *vocab;
    char *merges = NULL;
    size_t n;
    bool qwen2;
    TRY(settings_read_class(&qwen2, dir, e));
    TRY(json_read_object(&vocab, vocab_path, TOKENIZER_MAX_FILE, JSON_DEPTH, e));
    status st;
    TRY_GOTO(file_read(&merges, &n, merges_path, TOKENIZER_MAX_FILE, e));
    TRY_GOTO(file_check_text(merges, n, merges_path, e));
    TRY_GOTO(bpe_files_load(t, vocab, merges, n, qwen2, vocab_path, merges_path, e));
    if (qwen2) TRY_GOTO(guess_qwen_added(t, vocab_path, e));
    snprintf(t->describe, sizeof t->describe, "byte-level BPE (vocab.json, merges.txt)");
done:
    mem_free(merges);
    json_decref(vocab);
    return st;
}

static status open_tekken(tokenizer *t, const char *path, err *e)
{
    json_t *root = NULL;
    char *text;
    size_t n;
    TRY(file_read(&text, &n, path, TOKENIZER_MAX_FILE, e));
    status st = json_parse_data(&root, text, n, path, JSON_DEPTH, e); /* one token is U+0000 */
    if (st == ST_OK) st = tekken_load(t, root, path, e);
    json_decref(root);
    mem_free(text);
    return st;
}

static status open_vocabulary(tokenizer *t, const char *dir, err *e)
{
    char *json = path_join(dir, "tokenizer.json"), *model = path_join(dir, "tokenizer.model");
    char *vocab = path_join(dir, "vocab.json"), *merges = path_join(dir, "merges.txt");
    char *tekken = path_join(dir, "tekken.json");
    status st = ST_OK;
    if (!json || !model || !vocab || !merges || !tekken) {
        st = err_set(e, ST_NOMEM, "%s: out of memory", dir);
        goto done;
    }
    if (file_exists(json)) TRY_GOTO(open_json(t, json, file_exists(model), e));
    if (!t->bpe && file_exists(model)) TRY_GOTO(open_model(t, model, e));
    if (!t->bpe && !t->spm && file_exists(vocab) && file_exists(merges)) TRY_GOTO(open_files(t, dir, vocab, merges, e));
    if (!t->bpe && !t->spm && file_exists(tekken)) TRY_GOTO(open_tekken(t, tekken, e));
    if (!t->bpe && !t->spm)
        st = err_set(e, ST_IO, "%s: no tokenizer.json, tokenizer.model, vocab.json with merges.txt, or tekken.json",
                     dir);
done:
    mem_free(json);
    mem_free(model);
    mem_free(vocab);
    mem_free(merges);
    mem_free(tekken);
    return st;
}

static status open_folder(tokenizer *t, const char *dir, err *e)
{
    TRY(open_vocabulary(t, dir, e));
    return settings_load(t, dir, e);
}

/* Completes a loaded tokenizer, or frees it after an error. */
static status finish(tokenizer **out, tokenizer *t, status st, const char *name, err *e)
{
    if (st == ST_OK) st = tokenizer_finish(t, name, e);
    if (st != ST_OK) {
        tokenizer_free(t);
        return st;
    }
    size_t n = strlen(t->describe);
    snprintf(t->describe + n, sizeof t->describe - n, ", %d tokens", t->n_ids);
    *out = t;
    return ST_OK;
}

status tokenizer_open_gguf(tokenizer **out, const gguf *g, err *e)
{
    tokenizer *t;
    *out = NULL;
    TRY(create(&t, e));
    return finish(out, t, gguf_tokenizer_load(t, g, e), gguf_path(g), e);
}

static status open_file(tokenizer **out, const char *path, err *e)
{
    gguf *g;
    TRY(gguf_open(&g, path, e));
    status st = tokenizer_open_gguf(out, g, e);
    gguf_close(g);
    return st;
}

status tokenizer_open(tokenizer **out, const char *dir, err *e)
{
    tokenizer *t;
    *out = NULL;
    if (file_exists(dir)) return open_file(out, dir, e);
    TRY(create(&t, e));
    return finish(out, t, open_folder(t, dir, e), dir, e);
}

const char *tokenizer_describe(const tokenizer *t)
{
    return t->describe;
}

const char *tokenizer_warning(const tokenizer *t)
{
    return t->warning[0] ? t->warning : NULL;
}

int32_t tokenizer_n_ids(const tokenizer *t)
{
    return t->n_ids;
}

int32_t tokenizer_bos(const tokenizer *t)
{
    return t->bos;
}

bool tokenizer_adds_bos(const tokenizer *t)
{
    return t->adds_bos;
}

bool tokenizer_cleans_up(const tokenizer *t)
{
    return t->cleans_up;
}

bool tokenizer_is_eos(const tokenizer *t, int32_t id)
{
    for (size_t i = 0; i < t->eos.n; i++)
        if (t->eos.ids[i] == id) return true;
    return false;
}

status tokenizer_eos_ids(const tokenizer *t, token_list *out, err *e)
{
    for (size_t i = 0; i < t->eos.n; i++) TRY(token_list_push(out, t->eos.ids[i], e));
    return ST_OK;
}
