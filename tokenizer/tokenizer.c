/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "tokenizer/tokenizer.h"

#include <stdio.h>
#include <string.h>

#include "kernels/base/file.h"
#include "kernels/base/json.h"
#include "kernels/base/mem.h"
#include "tokenizer/impl.h"

void tokenizer_free(tokenizer *t)
{
    if (!t) return;
    bpe_free(t->bpe);
    spm_free(t->spm);
    pretok_free(t->pre);
    added_free(&t->added);
    token_list_free(&t->eos);
    mem_free(t);
}

static status create(tokenizer **out, err *e)
{
    TRY(MEM_NEW(out, 1, e));
    (*out)->bos = -1;
    return ST_OK;
}

/* An added token may repeat a token of the vocabulary, but not take its id. Texts outside ASCII are
 * spelled differently there and are not compared. */
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

/* Tokens that end a turn or a text in the families that we know, whatever the files say. */
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
    TRY(added_sort(&t->added, name, e));
    TRY(check_added(t, name, e));
    t->n_ids = t->bpe ? bpe_n_ids(t->bpe) : spm_n_ids(t->spm);
    for (size_t i = 0; i < t->added.n; i++)
        if (t->added.items[i].id >= t->n_ids) t->n_ids = t->added.items[i].id + 1;
    if (t->bos >= t->n_ids) return err_set(e, ST_FORMAT, "%s: BOS has id %d of %d", name, t->bos, t->n_ids);
    TRY(add_known_eos(t, e));
    return ST_OK;
}

status tokenizer_open_json(tokenizer **out, const char *text, size_t n, const char *name, err *e)
{
    json_t *root = NULL;
    tokenizer *t = NULL;
    bool byte_level = true;
    *out = NULL;
    status st = json_parse_object(&root, text, n, name, JSON_DEPTH, e);
    if (st == ST_OK) st = create(&t, e);
    if (st == ST_OK) st = bpe_json_load(t, root, name, &byte_level, e);
    if (st == ST_OK && !byte_level) st = err_set(e, ST_UNSUPPORTED, "%s: not a byte-level BPE", name);
    if (st == ST_OK) st = tokenizer_finish(t, name, e);
    json_decref(root);
    if (st == ST_OK) *out = t;
    else tokenizer_free(t);
    return st;
}

/* Each of the three below leaves t without a vocabulary where its files are not in dir. */

static status open_json(tokenizer *t, const char *path, bool has_model, err *e)
{
    json_t *root;
    bool byte_level;
    TRY(json_read_object(&root, path, TOKENIZER_MAX_FILE, JSON_DEPTH, e));
    status st = bpe_json_load(t, root, path, &byte_level, e);
    json_decref(root);
    if (st == ST_OK && !byte_level && !has_model)
        return err_set(e, ST_UNSUPPORTED, "%s: not a byte-level BPE, and there is no tokenizer.model beside it", path);
    snprintf(t->describe, sizeof t->describe, "byte-level BPE (tokenizer.json)");
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

/* Qwen's special tokens follow its vocabulary; tokenizer_config.json, where present, lists them
 * all. */
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

static status open_files(tokenizer *t, const char *vocab_path, const char *merges_path, err *e)
{
    json_t *vocab;
    char *merges = NULL;
    size_t n;
    TRY(json_read_object(&vocab, vocab_path, TOKENIZER_MAX_FILE, JSON_DEPTH, e));
    status st;
    TRY_GOTO(file_read(&merges, &n, merges_path, TOKENIZER_MAX_FILE, e));
    TRY_GOTO(file_check_text(merges, n, merges_path, e));
    TRY_GOTO(bpe_files_load(t, vocab, merges, n, vocab_path, merges_path, e));
    TRY_GOTO(guess_qwen_added(t, vocab_path, e));
    snprintf(t->describe, sizeof t->describe, "byte-level BPE (vocab.json, merges.txt)");
done:
    mem_free(merges);
    json_decref(vocab);
    return st;
}

static status open_vocabulary(tokenizer *t, const char *dir, err *e)
{
    char *json = path_join(dir, "tokenizer.json"), *model = path_join(dir, "tokenizer.model");
    char *vocab = path_join(dir, "vocab.json"), *merges = path_join(dir, "merges.txt");
    status st = ST_OK;
    if (!json || !model || !vocab || !merges) {
        st = err_set(e, ST_NOMEM, "%s: out of memory", dir);
        goto done;
    }
    if (file_exists(json)) TRY_GOTO(open_json(t, json, file_exists(model), e));
    if (!t->bpe && file_exists(model)) TRY_GOTO(open_model(t, model, e));
    if (!t->bpe && !t->spm && file_exists(vocab) && file_exists(merges)) TRY_GOTO(open_files(t, vocab, merges, e));
    if (!t->bpe && !t->spm)
        st = err_set(e, ST_IO, "%s: no tokenizer.json, tokenizer.model or vocab.json with merges.txt", dir);
done:
    mem_free(json);
    mem_free(model);
    mem_free(vocab);
    mem_free(merges);
    return st;
}

status tokenizer_open(tokenizer **out, const char *dir, err *e)
{
    tokenizer *t;
    *out = NULL;
    TRY(create(&t, e));
    status st;
    TRY_GOTO(open_vocabulary(t, dir, e));
    TRY_GOTO(settings_load(t, dir, e));
    TRY_GOTO(tokenizer_finish(t, dir, e));
    size_t n = strlen(t->describe);
    snprintf(t->describe + n, sizeof t->describe - n, ", %d tokens", t->n_ids);
    *out = t;
    t = NULL;
done:
    tokenizer_free(t);
    return st;
}

const char *tokenizer_describe(const tokenizer *t)
{
    return t->describe;
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

const char *tokenizer_chat_template(const tokenizer *t)
{
    return t->chat;
}
