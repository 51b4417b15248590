/* SPDX-License-Identifier: MIT */
/* Ids of replies, for the next turns of their conversations. A model may write a text in other tokens than the
 * tokenizer does, and a call with other white space than the template. The prefix cache has rows of the tokens that the
 * model wrote, so the next prompt is encoded with these. A reply counts only for a prompt of the same client whose text
 * before it is that of its own prompt, and whose message there has the same content, thinking and calls. */
#include "config.h"

#include <ctype.h>
#include <string.h>

#include "kernels/base/mem.h"
#include "serve/sched_impl.h"
#include "tokenizer/call_reply.h"

enum { KEPT_REPLIES = 256, KEPT_BYTES = 32 << 20, CANDIDATES = 8 };

struct kept_reply {
    char *client, *salt;
    chat_text prompt; /* rendered */
    token_list ids;   /* of prompt and reply, without EOS */
    size_t n_prompt;  /* number of ids of the prompt */
    call_thinking thinking;
    uint64_t used; /* time of the last use */
    int refs;
};

static void drop(kept_reply *k)
{
    if (!k || --k->refs > 0) return;
    mem_free(k->client);
    mem_free(k->salt);
    chat_text_free(&k->prompt);
    token_list_free(&k->ids);
    mem_free(k);
}

static size_t bytes_of(const kept_reply *k)
{
    return sizeof *k + 2 * k->prompt.n + k->ids.n * sizeof *k->ids.ids;
}

static const char *client_of(const scheduler *s, const job *j)
{
    return s->o.prefix_shared ? "" : j->client.client;
}

static const char *salt_of(const job *j)
{
    return j->r.cache_salt ? j->r.cache_salt : "";
}

/* ---- comparison ---- */

static status collect(void *ctx, call_event what, int index, const char *text, size_t n, err *e)
{
    return api_events_add(ctx, what, index, text, n, e);
}

/* Stores the events of a reply. */
static status read_reply(api_events *out, const scheduler *s, const call_rules *rules, const int32_t *ids, size_t n,
                         err *e)
{
    call_parser *p = NULL;
    token_stream *stream;
    TRY(token_stream_create(&stream, s->o.tok, e));
    token_stream_keep_special(stream);
    status st = call_parser_open(&p, rules, collect, out, e);
    for (size_t i = 0; i < n && st == ST_OK; i++) st = call_reply_token(p, stream, s->o.tok, ids[i], e);
    if (st == ST_OK) st = call_reply_end(p, stream, e);
    call_parser_free(p);
    token_stream_free(stream);
    return st;
}

static bool same_json(const char *a, size_t n_a, const char *b, size_t n_b)
{
    json_t *x = json_loadb(a, n_a, 0, NULL), *y = json_loadb(b, n_b, 0, NULL);
    const bool same = x && y && json_equal(x, y);
    json_decref(x);
    json_decref(y);
    return same;
}

static bool same_events(const api_events *a, const api_events *b)
{
    if (a->n != b->n) return false;
    for (size_t i = 0; i < a->n; i++) {
        const api_event *x = &a->list[i], *y = &b->list[i];
        const char *p = a->text.p + x->at, *q = b->text.p + y->at;
        if (x->what != y->what || x->index != y->index) return false;
        if (x->n == y->n && (x->n == 0 || memcmp(p, q, x->n) == 0)) continue;
        if (x->what != CALL_ARGS || !same_json(p, x->n, q, y->n)) return false;
    }
    return true;
}

/* True if the message [at, end) of a rendered text is the reply. */
static bool agrees(scheduler *s, const job *j, const kept_reply *k, const chat_text *t, size_t end)
{
    const call_rules rules = reply_rules(s, &j->r, &k->thinking);
    const size_t at = k->prompt.n;
    const chat_text message = {t->text + at, end - at, t->input + at};
    api_events own = {0}, other = {0};
    token_list ids = {0};
    const bool same = sched_encode_chat(s, &message, &ids, NULL) == ST_OK &&
                      read_reply(&own, s, &rules, k->ids.ids + k->n_prompt, k->ids.n - k->n_prompt, NULL) == ST_OK &&
                      read_reply(&other, s, &rules, ids.ids, ids.n, NULL) == ST_OK && same_events(&own, &other);
    token_list_free(&ids);
    api_events_free(&own);
    api_events_free(&other);
    return same;
}

/* ---- the end of a message ---- */

/* Returns the next place from `at` on where the template itself writes a word; t->n: none. */
static size_t find_word(const chat_text *t, size_t at, const char *word, size_t n)
{
    for (; n && at + n <= t->n; at++) {
        const char *next = memmem(t->text + at, t->n - at, word, n);
        if (!next) break;
        at = (size_t)(next - t->text);
        if (!memchr(t->input + at, 1, n)) return at;
    }
    return t->n;
}

/* Returns the position of the occurrence of id that is `end` in the text, or ids->n if the two do not agree. */
static size_t position_of(const chat_text *t, const token_list *ids, int32_t id, const char *word, size_t n, size_t end)
{
    size_t before = 0, all = 0, found = ids->n;
    for (size_t at = 0; (at = find_word(t, at, word, n)) < t->n; at += n, all++) before += at < end;
    for (size_t i = 0; i < ids->n; i++) {
        if (ids->ids[i] != id) continue;
        if (before-- == 0) found = i;
        all--;
    }
    return all == 0 ? found : ids->n;
}

/* Returns the number of ids whose bytes are the text up to `end`, or ids->n if no id begins there. */
static size_t ids_before(const tokenizer *tok, const chat_text *t, const token_list *ids, size_t end)
{
    size_t at = t->n, i = ids->n;
    while (at > end && i > 0) {
        char *bytes;
        size_t n;
        if (tokenizer_bytes(tok, ids->ids[--i], &bytes, &n, NULL) != ST_OK) return ids->n;
        const bool same = n <= at && memcmp(t->text + at - n, bytes, n) == 0;
        mem_free(bytes);
        if (!same) return ids->n;
        at -= n;
    }
    return at == end ? i : ids->n;
}

/* Finds the end of the message at `at`: the first EOS that the template writes, else where text of the request ends.
 * Returns the number of ids up to there, ids->n if it is unknown. */
static size_t find_end(const tokenizer *tok, const chat_text *t, const token_list *ids, size_t at, size_t *end)
{
    token_list eos = {0};
    size_t n_ids = ids->n;
    *end = t->n;
    if (tokenizer_eos_ids(tok, &eos, NULL) != ST_OK) return n_ids;
    for (size_t i = 0; i < eos.n; i++) {
        char *word;
        size_t n;
        if (tokenizer_bytes(tok, eos.ids[i], &word, &n, NULL) != ST_OK) continue;
        const size_t here = find_word(t, at, word, n);
        if (here < *end) n_ids = position_of(t, ids, eos.ids[i], word, n, *end = here);
        mem_free(word);
    }
    token_list_free(&eos);
    if (*end < t->n) return n_ids;
    const unsigned char *own = memchr(t->input + at, 0, t->n - at);
    if (own) *end = (size_t)(own - t->input);
    return ids_before(tok, t, ids, *end);
}

/* ---- replies ---- */

/* True if a text begins with another one, and the same signs are the template's. Letters may differ: the role of a
 * message is the template's in the prompt for it, and the request's afterwards. Spellings of special tokens have other
 * characters too, so that a spelling in the request stays text. */
static bool begins_with(const chat_text *t, const chat_text *begin)
{
    if (begin->n >= t->n || memcmp(begin->text, t->text, begin->n) != 0) return false;
    for (size_t i = 0; i < begin->n; i++)
        if (begin->input[i] != t->input[i] && !isalpha((unsigned char)t->text[i])) return false;
    return true;
}

/* Stores replies that may be part of a rendered text, longest prompts first. */
static size_t candidates(scheduler *s, const job *j, kept_reply **out)
{
    const chat_text *t = &j->text;
    size_t n = 0;
    pthread_mutex_lock(&s->kept.lock);
    for (size_t i = 0; i < s->kept.n && n < CANDIDATES; i++) {
        kept_reply *k = s->kept.list[i];
        if (strcmp(k->client, client_of(s, j)) != 0 || strcmp(k->salt, salt_of(j)) != 0 || !begins_with(t, &k->prompt))
            continue;
        k->refs++;
        k->used = ++s->kept.clock;
        out[n++] = k;
    }
    pthread_mutex_unlock(&s->kept.lock);
    return n;
}

/* Replaces the ids up to the end of a reply by its own. */
static status replace(token_list *ids, const kept_reply *k, size_t n, err *e)
{
    token_list all = {0};
    status st = ST_OK;
    for (size_t i = 0; i < k->ids.n && st == ST_OK; i++) st = token_list_push(&all, k->ids.ids[i], e);
    for (size_t i = n; i < ids->n && st == ST_OK; i++) st = token_list_push(&all, ids->ids[i], e);
    if (st != ST_OK) token_list_free(&all);
    if (st != ST_OK) return st;
    token_list_free(ids);
    *ids = all;
    return ST_OK;
}

status kept_encode(scheduler *s, const job *j, token_list *out, err *e)
{
    kept_reply *some[CANDIDATES];
    TRY(sched_encode_chat(s, &j->text, out, e));
    const size_t n = j->keeps ? candidates(s, j, some) : 0;
    bool found = false;
    status st = ST_OK;
    for (size_t i = 0; i < n && !found; i++) {
        size_t end;
        const size_t n_ids = find_end(s->o.tok, &j->text, out, some[i]->prompt.n, &end);
        found = (n_ids < out->n || end == j->text.n) && agrees(s, j, some[i], &j->text, end);
        if (found) st = replace(out, some[i], n_ids, e);
    }
    pthread_mutex_lock(&s->kept.lock);
    for (size_t i = 0; i < n; i++) drop(some[i]);
    pthread_mutex_unlock(&s->kept.lock);
    return st;
}

static void remove_at(kept_replies *all, size_t i)
{
    all->bytes -= bytes_of(all->list[i]);
    drop(all->list[i]);
    memmove(all->list + i, all->list + i + 1, (--all->n - i) * sizeof *all->list);
}

static size_t oldest(const kept_replies *all)
{
    size_t best = 0;
    for (size_t i = 1; i < all->n; i++)
        if (all->list[i]->used < all->list[best]->used) best = i;
    return best;
}

static status fill(kept_reply *k, const scheduler *s, const gen *g, size_t n, err *e)
{
    const chat_text *t = &g->j->text;
    k->client = mem_strdup(client_of(s, g->j));
    k->salt = mem_strdup(salt_of(g->j));
    if (!k->client || !k->salt) return err_set(e, ST_NOMEM, "out of memory for a reply");
    TRY(mem_alloc((void **)&k->prompt.text, t->n + 1, 1, "a reply", e));
    TRY(mem_alloc((void **)&k->prompt.input, t->n + 1, 1, "a reply", e));
    memcpy(k->prompt.text, t->text, t->n);
    memcpy(k->prompt.input, t->input, t->n);
    k->prompt.n = t->n;
    for (size_t i = 0; i < n; i++) TRY(token_list_push(&k->ids, g->q.ids.ids[i], e));
    k->n_prompt = g->prompt->n;
    k->thinking = g->j->thinking;
    return ST_OK;
}

void kept_add(scheduler *s, const gen *g)
{
    kept_replies *all = &s->kept;
    kept_reply *k;
    size_t n = g->q.ids.n, i = 0;
    if (n && tokenizer_is_eos(s->o.tok, g->q.ids.ids[n - 1])) n--;
    if (!g->j->keeps || g->out.stopped || n <= g->prompt->n || MEM_NEW(&k, 1, NULL) != ST_OK) return;
    k->refs = 1;
    pthread_mutex_lock(&all->lock);
    k->used = ++all->clock;
    if (fill(k, s, g, n, NULL) != ST_OK || bytes_of(k) > KEPT_BYTES ||
        MEM_ROOM(&all->list, &all->cap, all->n + 1, NULL) != ST_OK) {
        drop(k);
    } else {
        while (i < all->n && all->list[i]->prompt.n > k->prompt.n) i++;
        memmove(all->list + i + 1, all->list + i, (all->n++ - i) * sizeof *all->list);
        all->list[i] = k;
        all->bytes += bytes_of(k);
    }
    while (all->n > KEPT_REPLIES || all->bytes > KEPT_BYTES) remove_at(all, oldest(all));
    pthread_mutex_unlock(&all->lock);
}

void kept_free(kept_replies *all)
{
    while (all->n) remove_at(all, all->n - 1);
    mem_free(all->list);
    pthread_mutex_destroy(&all->lock);
}
