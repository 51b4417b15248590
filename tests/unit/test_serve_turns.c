/* SPDX-License-Identifier: MIT */
/* Replies in the prefix cache: a prompt that contains an earlier reply computes only what follows it. The reference is
 * a session that was fed the first prompt, the reply in steps, and the rest of the second prompt. */
#include "config.h"

#include "tests/unit/serve_util.h"

enum { PROMPT = 40, REPLY_IDS = 50, NEXT = 12, ANSWER = 8, MOST_IDS = 256, CTX_TOKENS = 512 };

static engine_parts own; /* of the reference */

/* One completion of token ids: the answer, and the number of cached prompt tokens. */
typedef struct {
    int32_t ids[MOST_IDS];
    float scores[MOST_IDS];
    size_t n;
    long long cached;
    char *text;
} turn;

static size_t chunks(size_t n)
{
    return n / U_CHUNK * U_CHUNK;
}

static void read_choice(turn *t, json_t *choice)
{
    json_t *ids = json_object_get(choice, "token_ids");
    json_t *scores = json_object_get(json_object_get(choice, "logprobs"), "token_logprobs");
    const char *text = json_string_value(json_object_get(choice, "text"));
    t->text = strdup(text ? text : "");
    for (; t->n < json_array_size(ids) && t->n < MOST_IDS; t->n++) {
        t->ids[t->n] = (int32_t)json_integer_value(json_array_get(ids, t->n));
        t->scores[t->n] = (float)json_number_value(json_array_get(scores, t->n));
    }
}

/* Writes a request for a greedy answer of n tokens with logprobs. */
static void write_body(char *body, size_t size, const int32_t *ids, size_t n_ids, int n, const char *fields)
{
    size_t at = (size_t)snprintf(body, size, "{\"prompt\":[");
    for (size_t i = 0; i < n_ids; i++) at += (size_t)snprintf(body + at, size - at, "%s%d", i ? "," : "", (int)ids[i]);
    snprintf(body + at, size - at,
             "],\"max_tokens\":%d,\"temperature\":0,\"logprobs\":0,\"ignore_eos\":true,\"return_token_ids\":true%s}", n,
             fields);
}

/* Replaces NUL characters of a JSON text, which jansson does not accept in keys. */
static void replace_nul(char *text)
{
    for (char *at = text; (at = strstr(at, "\\u0000"));) at[5] = '1';
}

static turn ask(const int32_t *ids, size_t n_ids, int n, const char *fields, size_t choice)
{
    char body[3500];
    turn t = {.cached = -1};
    write_body(body, sizeof body, ids, n_ids, n, fields);
    char *reply = post("/v1/completions", body), *at = reply ? strstr(reply, "\r\n\r\n") : NULL;
    if (at) replace_nul(at);
    json_t *j = at ? json_loads(at + 4, 0, NULL) : NULL;
    json_t *cached = json_object_get(json_object_get(j, "usage"), "prompt_tokens_details");
    if (j) t.cached = json_integer_value(json_object_get(cached, "cached_tokens"));
    read_choice(&t, json_array_get(json_object_get(j, "choices"), choice));
    json_decref(j);
    free(reply);
    return t;
}

/* Writes the first prompt of a conversation; conversations with different numbers have no common prefix. */
static void first_prompt(int32_t *ids, int conversation)
{
    for (int64_t i = 0; i < PROMPT; i++) ids[i] = (some_id(i) + 13 * conversation) % 300;
}

/* Writes the second prompt: the first, n tokens of the reply, and new ones. Returns its length. */
static size_t second_prompt(int32_t *ids, int conversation, const turn *reply, size_t n)
{
    first_prompt(ids, conversation);
    memcpy(ids + PROMPT, reply->ids, n * sizeof *ids);
    for (size_t i = 0; i < NEXT; i++) ids[PROMPT + n + i] = (some_id((int64_t)i) + 5) % 300;
    return PROMPT + n + NEXT;
}

/* ---- the reference ---- */

static status feed(session *s, const int32_t *ids, size_t from, size_t n, float *logits, err *e)
{
    for (size_t at = from, k; at < n; at += k) {
        k = n - at < U_CHUNK ? n - at : U_CHUNK;
        const prefill_options o = {.rows = keep_last_row, .ctx = logits, .before = at, .after = n - at - k};
        TRY(session_prefill(&s, 1, ids + at, k, &o, e));
    }
    return ST_OK;
}

static status answer(session *s, turn *t, float *logits, err *e)
{
    for (t->n = 0; t->n < ANSWER; t->n++) {
        int32_t id = logits_argmax(logits, U_VOCAB);
        t->ids[t->n] = id;
        t->scores[t->n] = (float)-logits_nll(logits, U_VOCAB, id);
        TRY(session_decode(&s, 1, &id, logits, e));
    }
    return ST_OK;
}

/* Answers the second prompt after the first `cached` tokens, of which those from PROMPT on are fed in steps. */
static status continued(turn *t, const int32_t *ids, size_t n, size_t cached, err *e)
{
    session *s;
    float logits[U_VOCAB];
    TRY(session_new(&s, &own, "full", "f16", CTX_TOKENS, e));
    status st = feed(s, ids, 0, PROMPT, logits, e);
    for (size_t i = PROMPT; i < cached && st == ST_OK; i++) st = session_decode(&s, 1, &ids[i], logits, e);
    if (st == ST_OK) st = feed(s, ids, cached, n, logits, e);
    if (st == ST_OK) st = answer(s, t, logits, e);
    session_free(s);
    return st;
}

/* ---- checks ---- */

static bool same_ids(const turn *a, const turn *b)
{
    return a->n == b->n && a->n > 0 && memcmp(a->ids, b->ids, a->n * sizeof *a->ids) == 0;
}

static bool same(const turn *a, const turn *b)
{
    return same_ids(a, b) && memcmp(a->scores, b->scores, a->n * sizeof *a->scores) == 0;
}

static void check_full(int conversation, const char *first, const char *second, size_t used, size_t choice)
{
    int32_t ids[MOST_IDS];
    err e = {0};
    turn want = {0};
    first_prompt(ids, conversation);
    turn reply = ask(ids, PROMPT, REPLY_IDS, first, choice);
    is_int(reply.cached, 0, "%s: a new conversation", first);
    size_t n = second_prompt(ids, conversation, &reply, used);
    size_t cached = chunks(PROMPT + (used < reply.n ? used : reply.n - 1));
    turn warm = ask(ids, n, ANSWER, second, 0);
    is_int(warm.cached, (long long)cached, "%s: reused up to the last chunk of %zu tokens of the reply", first, used);
    is_ok(continued(&want, ids, n, cached, &e), &e, "a session is continued");
    ok(same(&warm, &want), "%s: the same tokens and logprobs as a continued session", first);
    turn cold = ask(ids, n, ANSWER, ",\"cache_prefix\":false", 0);
    ok(same_ids(&warm, &cold), "%s: and the tokens of a prompt computed as a whole", first);
    turn again = ask(ids, n, ANSWER, second, 0);
    ok(again.cached == (long long)chunks(n - 1) && same(&again, &warm), "%s: repeated: %lld cached tokens", first,
       again.cached);
    free(reply.text);
    free(warm.text);
    free(cold.text);
    free(again.text);
}

/* Steps that select tokens give other rows than a prompt: only the prompt is reused, with the bits of a cold run. */
static void check_selecting(int conversation, const char *fields)
{
    int32_t ids[MOST_IDS];
    char cold_fields[128];
    snprintf(cold_fields, sizeof cold_fields, "%s,\"cache_prefix\":false", fields);
    first_prompt(ids, conversation);
    turn reply = ask(ids, PROMPT, REPLY_IDS, fields, 0);
    size_t n = second_prompt(ids, conversation, &reply, reply.n);
    turn warm = ask(ids, n, ANSWER, fields, 0), cold = ask(ids, n, ANSWER, cold_fields, 0);
    is_int(warm.cached, (long long)chunks(PROMPT - 1), "%s: the prompt is reused, the reply is not", fields);
    ok(same(&warm, &cold), "%s: with the bits of a prompt computed as a whole", fields);
    free(reply.text);
    free(warm.text);
    free(cold.text);
}

/* A reply that a stop string ended: what follows it in the session is not reused. */
static void check_stop_text(int conversation)
{
    int32_t ids[MOST_IDS];
    char fields[64], stop[8];
    first_prompt(ids, conversation);
    turn all = ask(ids, PROMPT, REPLY_IDS, ",\"cache_prefix\":false", 0);
    const char *at = all.text + strlen(all.text) / 2;
    while (*at && !(*at > ' ' && *at < 127 && *at != '"' && *at != '\\')) at++;
    snprintf(stop, sizeof stop, "%.1s", at);
    snprintf(fields, sizeof fields, ",\"stop\":\"%s\"", stop);
    turn cut = ask(ids, PROMPT, REPLY_IDS, fields, 0);
    ok(*stop && cut.n > 0 && cut.n < all.n && !strstr(cut.text, stop), "'%s' ends a reply after %zu tokens", stop,
       cut.n);
    size_t n = second_prompt(ids, conversation, &all, all.n);
    turn next = ask(ids, n, ANSWER, "", 0);
    is_int(next.cached, (long long)chunks(PROMPT + cut.n - 1), "tokens after the stop are not reused");
    free(all.text);
    free(cut.text);
    free(next.text);
}

/* Sends a streamed request and closes the connection after some tokens. */
static void leave(const int32_t *ids, const char *fields, int events)
{
    char body[3000], request[4096];
    write_body(body, sizeof body, ids, PROMPT, 400, fields);
    write_post(request, sizeof request, "/v1/completions", body);
    int fd = call();
    say(fd, request);
    for (int i = 0; i < events; i++) free(hear(fd, "data: "));
    close(fd);
    ok(wait_for_none(), "a client leaves");
}

static void check_cancelled(int conversation)
{
    int32_t ids[MOST_IDS];
    first_prompt(ids, conversation);
    turn reply = ask(ids, PROMPT, REPLY_IDS, ",\"cache_prefix\":false", 0);
    leave(ids, ",\"stream\":true,\"draft\":\"ngram\"", 1);
    size_t n = second_prompt(ids, conversation, &reply, reply.n);
    turn warm = ask(ids, n, ANSWER, "", 0), again = ask(ids, n, ANSWER, "", 0);
    ok(warm.cached >= (long long)chunks(PROMPT - 1) && warm.cached % U_CHUNK == 0, "%lld cached tokens", warm.cached);
    ok(same(&warm, &again), "and the server continues");
    free(reply.text);
    free(warm.text);
    free(again.text);
}

static void check_limits(int conversation)
{
    int32_t ids[MOST_IDS];
    first_prompt(ids, conversation);
    turn reply = ask(ids, PROMPT, REPLY_IDS, ",\"cache_prefix\":false", 0);
    size_t n = second_prompt(ids, conversation, &reply, reply.n);
    turn next = ask(ids, n, ANSWER, "", 0);
    is_int(next.cached, 0, "cache_prefix false: a reply is not kept");
    turn other = ask(ids, n, ANSWER, ",\"cache_salt\":\"x\"", 0);
    is_int(other.cached, 0, "nor found with another salt");
    free(reply.text);
    free(next.text);
    free(other.text);
}

int main(void)
{
    err e = {0};
    bool up = start(&e) && is_ok(parts_open(&own, "llama31-f32-tied", "cpu", &e), &e, "the reference's model");
    if (up) {
        check_full(1, "", "", REPLY_IDS, 0);
        check_full(2, "", "", 20, 0);
        check_full(3, ",\"n\":3", "", REPLY_IDS, 2);
        check_full(4, ",\"draft\":\"ngram:adapt=off\"", ",\"draft\":\"ngram:adapt=off\"", REPLY_IDS, 0);
        check_selecting(5, ",\"attn\":\"quest:budget=24:skip=0\"");
        check_selecting(6, ",\"attn\":\"oracle:budget=24:skip=0\"");
        check_stop_text(7);
        check_cancelled(8);
        check_limits(9);
    }
    if (v.sched) sched_stop(v.sched);
    if (up) http_stop(v.http);
    stop();
    parts_close(&own);
    return tap_done();
}
