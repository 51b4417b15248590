/* SPDX-License-Identifier: MIT */
/* Requests whose logits stop being finite: an error in the form of the request, and none for the others.
 * The choices of a device are those of the host. */
/* Builds: shim */
#include "config.h"

#include "model/decoder.h"
#include "tests/unit/poison.h"
#include "tests/unit/serve_util.h"

/* `last` of the prompt, and as many of its tokens are fed in steps. */
static char *ask(int last, int steps, const char *more)
{
    char body[512];
    snprintf(body, sizeof body,
             "{\"prompt\":[1,2,3,4,5,6,7,8,%d],\"decode\":%d,\"max_tokens\":24,\"seed\":5,\"ignore_eos\":true%s}", last,
             steps, more);
    return post("/v1/completions", body);
}

static void check_error(int last, int steps, const char *more)
{
    char *reply = ask(last, steps, more);
    bool named = reply && strstr(reply, "\"error\"") && strstr(reply, "keys of layer 0 exceed 65504") &&
                 strstr(reply, "use bf16 rows (kv bf16)");
    ok(reply && strncmp(reply, "HTTP/1.1 500", 12) == 0 && named, "token %d, %d steps%s: 500, with layer and remedy",
       last, steps, more);
    free(reply);
    reply = ask(last, steps, ",\"kv\":\"bf16\"");
    ok(reply && strncmp(reply, "HTTP/1.1 200", 12) == 0, "its remedy helps");
    free(reply);
}

static void *ask_good(void *arg)
{
    return ask(100 + (int)(intptr_t)arg, 0, ",\"temperature\":0");
}

/* Requests that run concurrently with a failing one give the same replies as alone. */
static void check_beside(void)
{
    enum { GOOD = 3 };
    pthread_t t[GOOD];
    for (int i = 0; i < GOOD; i++) pthread_create(&t[i], NULL, ask_good, (void *)(intptr_t)i);
    for (int i = 0; i < 4; i++) check_error(U_VOCAB - 1, 1 + i, "");
    for (int i = 0; i < GOOD; i++) {
        void *beside;
        pthread_join(t[i], &beside);
        char *alone = ask_good((void *)(intptr_t)i), *a = text_of(alone), *b = text_of(beside);
        ok(a && b && strcmp(a, b) == 0, "request %d: the text of alone", i);
        free(alone), free(beside), free(a), free(b);
    }
}

/* With logprobs the host chooses; without them, a device does. */
static void check_choices(void)
{
    static const char *const how[] = {"\"temperature\":0", "\"temperature\":1.5",
                                      "\"temperature\":1.2,\"top_k\":40,\"top_p\":0.9"};
    for (size_t i = 0; i < sizeof how / sizeof *how; i++) {
        char more[2][96];
        char *reply[2], *text[2];
        for (int k = 0; k < 2; k++) {
            uint64_t queued = v.p.dec->n_queued;
            snprintf(more[k], sizeof more[k], ",%s%s", how[i], k ? ",\"logprobs\":1" : "");
            reply[k] = ask(77, 0, more[k]);
            text[k] = text_of(reply[k]);
            bool chose = v.p.dec->n_queued > queued;
            ok(chose == (k == 0 && v.p.m->be->ops->queues), "%s: chosen on the %s", more[k], chose ? "device" : "host");
        }
        ok(text[0] && text[1] && *text[0] && strcmp(text[0], text[1]) == 0, "%s: the same text", how[i]);
        for (int k = 0; k < 2; k++) free(reply[k]), free(text[k]);
    }
}

/* Tokens, then an error event and the end. */
static void check_stream(void)
{
    char *reply = ask(9, 0, ",\"temperature\":2,\"stream\":true");
    const char *text = reply ? strstr(reply, "\"text\"") : NULL,
               *error = reply ? strstr(reply, "data: {\"error\"") : NULL;
    ok(text && error && text < error && strstr(error, "keys of layer 0"), "a stream ends with an error event");
    ok(reply && !strstr(reply, "[DONE]"), "and does not look whole");
    ok(error && strstr(error, "\r\n0\r\n\r\n"), "its last chunk follows, without which browsers drop the event");
    free(reply);
}

int main(void)
{
    err e = {0};
    bool up = start(&e);
    if (up) {
        poison(v.p.m, POISON_KEYS, 0, U_VOCAB - 1);
        check_choices();
        check_beside();
        check_error(U_VOCAB - 1, 0, "");
        check_error(U_VOCAB - 1, 2, ",\"n\":4");
        check_error(U_VOCAB - 1, 1, ",\"logprobs\":2");
        check_error(U_VOCAB - 1, 0, ",\"logprobs\":2,\"echo\":true");
        check_error(U_VOCAB - 1, 1, ",\"draft\":\"ngram\"");
        check_error(U_VOCAB - 1, 1, ",\"repeat_penalty\":1.2");
        poison(v.p.m, POISON_KEYS, 0, U_VOCAB / 2);
        check_stream();
        check_error(9, 0, ",\"temperature\":2");
        check_error(9, 0, ",\"temperature\":2,\"draft\":\"ngram\"");
        http_stop(v.http);
    }
    if (v.sched) sched_stop(v.sched);
    stop();
    return tap_done();
}
