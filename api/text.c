/* SPDX-License-Identifier: MIT */
/* Encoding and decoding. */
#include "config.h"

#include <string.h>

#include "api/impl.h"
#include "kernels/base/mem.h"
#include "tokenizer/chat.h"

static status check_flags(int32_t flags, int32_t known, err *e)
{
    if ((flags & ~known) == 0) return ST_OK;
    return err_set(e, ST_UNSUPPORTED, "flags: %d, expected bits of %d", (int)flags, (int)known);
}

static status check_room(const void *p, size_t room, const size_t *n, const char *name, err *e)
{
    if (room > 0) TRY(lib_need(p, name, e));
    return lib_need(n, "n", e);
}

/* Copies as many ids as the caller has room for. */
static status give_ids(const token_list *l, int32_t *ids, size_t room, size_t *n, err *e)
{
    TRY(check_room(ids, room, n, "ids", e));
    size_t k = l->n < room ? l->n : room;
    if (k > 0) memcpy(ids, l->ids, k * sizeof *ids);
    *n = l->n;
    return ST_OK;
}

static status tokenize(kvasir_model *m, const char *text, size_t n_text, int32_t flags, token_list *l, err *e)
{
    TRY(lib_need(m, "model", e));
    if (n_text > 0) TRY(lib_need(text, "text", e));
    TRY(check_flags(flags, KVASIR_BOS | KVASIR_SPECIAL, e));
    unsigned how = (flags & KVASIR_BOS ? TOKENIZE_BOS : 0) | (flags & KVASIR_SPECIAL ? TOKENIZE_SPECIAL : 0);
    pthread_mutex_lock(&m->encoding);
    status st = tokenizer_encode(m->tok, n_text > 0 ? text : "", n_text, how, l, e);
    pthread_mutex_unlock(&m->encoding);
    return st;
}

kvasir_status kvasir_tokenize(kvasir_model *m, const char *text, size_t n_text, int32_t flags, int32_t *ids,
                              size_t room, size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    token_list l = {0};
    status st = tokenize(m, text, n_text, flags, &l, &e);
    if (st == ST_OK) st = give_ids(&l, ids, room, n, &e);
    token_list_free(&l);
    return lib_result(st, &e, msg, msg_size);
}

static status encode(kvasir_model *m, const chat_input *in, token_list *l, err *e)
{
    pthread_mutex_lock(&m->encoding);
    status st = chat_encode(m->tok, in, l, e);
    pthread_mutex_unlock(&m->encoding);
    return st;
}

static status chat(kvasir_model *m, const char *name, const kvasir_message *messages, size_t n, token_list *l, err *e)
{
    chat_message *pairs;
    json_t *list = NULL;
    TRY(lib_need(m, "model", e));
    if (n == 0) return err_set(e, ST_USAGE, "messages: none given");
    TRY(lib_need(messages, "messages", e));
    for (size_t i = 0; i < n; i++) {
        TRY(lib_need(messages[i].role, "role of a message", e));
        TRY(lib_need(messages[i].content, "content of a message", e));
    }
    TRY(MEM_NEW(&pairs, n, e));
    for (size_t i = 0; i < n; i++) pairs[i] = (chat_message){messages[i].role, messages[i].content};
    status st = chat_messages(&list, pairs, n, e);
    if (st == ST_OK) st = encode(m, &(chat_input){.messages = list, .name = name}, l, e);
    json_decref(list);
    mem_free(pairs);
    return st;
}

kvasir_status kvasir_chat(kvasir_model *m, const char *name, const kvasir_message *messages, size_t n_messages,
                          int32_t *ids, size_t room, size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    token_list l = {0};
    status st = chat(m, name, messages, n_messages, &l, &e);
    if (st == ST_OK) st = give_ids(&l, ids, room, n, &e);
    token_list_free(&l);
    return lib_result(st, &e, msg, msg_size);
}

static status chat_json(kvasir_model *m, const char *name, const char *conversation, token_list *l, err *e)
{
    json_t *j;
    TRY(lib_need(m, "model", e));
    TRY(lib_need(conversation, "conversation", e));
    TRY(chat_parse(&j, conversation, strlen(conversation), "conversation", e));
    chat_input in = chat_input_of(j);
    in.name = name;
    status st = encode(m, &in, l, e);
    json_decref(j);
    return st;
}

kvasir_status kvasir_chat_json(kvasir_model *m, const char *name, const char *conversation, int32_t *ids, size_t room,
                               size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    token_list l = {0};
    status st = chat_json(m, name, conversation, &l, &e);
    if (st == ST_OK) st = give_ids(&l, ids, room, n, &e);
    token_list_free(&l);
    return lib_result(st, &e, msg, msg_size);
}

static status detokenize(kvasir_model *m, const int32_t *ids, size_t n_ids, int32_t flags, char **text, size_t *n,
                         err *e)
{
    TRY(lib_need(m, "model", e));
    if (n_ids > 0) TRY(lib_need(ids, "ids", e));
    TRY(check_flags(flags, KVASIR_SPECIAL, e));
    pthread_mutex_lock(&m->encoding);
    status st = tokenizer_decode(m->tok, ids, n_ids, (flags & KVASIR_SPECIAL) != 0, text, n, e);
    pthread_mutex_unlock(&m->encoding);
    return st;
}

kvasir_status kvasir_detokenize(kvasir_model *m, const int32_t *ids, size_t n_ids, int32_t flags, char *text,
                                size_t room, size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    char *all = NULL;
    size_t n_all = 0;
    status st = check_room(text, room, n, "text", &e);
    if (st == ST_OK) st = detokenize(m, ids, n_ids, flags, &all, &n_all, &e);
    if (st == ST_OK) {
        size_t k = room > 0 && n_all > room - 1 ? room - 1 : n_all;
        if (room > 0) {
            memcpy(text, all, k);
            text[k] = 0;
        }
        *n = n_all;
    }
    mem_free(all);
    return lib_result(st, &e, msg, msg_size);
}

int32_t kvasir_is_end(const kvasir_model *m, int32_t id)
{
    return m && tokenizer_is_eos(m->tok, id);
}

/* ---- incremental decoding ---- */

struct kvasir_text {
    kvasir_model *m;
    token_stream *stream;
    char *bytes; /* result of the last call, NUL-terminated */
    size_t room;
};

static status create(kvasir_text **out, kvasir_model *m, err *e)
{
    kvasir_text *t;
    TRY(lib_need(m, "model", e));
    TRY(MEM_NEW(&t, 1, e));
    status st = token_stream_create(&t->stream, m->tok, e);
    if (st != ST_OK) {
        mem_free(t);
        return st;
    }
    t->m = m;
    lib_retain(m);
    *out = t;
    return ST_OK;
}

kvasir_status kvasir_text_create(kvasir_text **out, kvasir_model *m, char *msg, size_t msg_size)
{
    err e = {0};
    if (out) *out = NULL;
    status st = lib_need(out, "out", &e);
    if (st == ST_OK) st = create(out, m, &e);
    return lib_result(st, &e, msg, msg_size);
}

void kvasir_text_free(kvasir_text *text)
{
    if (!text) return;
    token_stream_free(text->stream);
    mem_free(text->bytes);
    kvasir_model_free(text->m);
    mem_free(text);
}

/* Returns the bytes that an id adds. end: returns the remaining bytes instead. */
static status next(kvasir_text *t, bool end, int32_t id, const char **bytes, size_t *n, err *e)
{
    const char *piece = NULL;
    size_t k = 0;
    TRY(lib_need(t, "text", e));
    TRY(lib_need(bytes, "bytes", e));
    TRY(lib_need(n, "n", e));
    pthread_mutex_lock(&t->m->encoding);
    status st = end ? token_stream_end(t->stream, &piece, &k, e) : token_stream_push(t->stream, id, &piece, &k, e);
    pthread_mutex_unlock(&t->m->encoding);
    TRY(st);
    TRY(MEM_ROOM(&t->bytes, &t->room, k + 1, e));
    if (k > 0) memcpy(t->bytes, piece, k);
    t->bytes[k] = 0;
    *bytes = t->bytes;
    *n = k;
    return ST_OK;
}

kvasir_status kvasir_text_push(kvasir_text *text, int32_t id, const char **bytes, size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    return lib_result(next(text, false, id, bytes, n, &e), &e, msg, msg_size);
}

kvasir_status kvasir_text_end(kvasir_text *text, const char **bytes, size_t *n, char *msg, size_t msg_size)
{
    err e = {0};
    return lib_result(next(text, true, 0, bytes, n, &e), &e, msg, msg_size);
}
