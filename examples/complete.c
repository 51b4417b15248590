/* SPDX-License-Identifier: MIT */
/* Continues a text: complete DIR STRATEGY TEXT
 *     cc complete.c $(pkg-config --cflags --libs kvasir) -o complete
 *     ./complete $(pkg-config --variable=demodir kvasir) quest:budget=256 "It was a dark night, and the"
 * The source is both C11 and C++. */
#include <kvasir.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_NEW = 24 };

static char message[256];

static void must(kvasir_status status)
{
    if (status == KVASIR_OK) return;
    fprintf(stderr, "complete: %s\n", message);
    exit(1);
}

/* Generates tokens and prints them one by one. */
static void generate(kvasir_session *session, kvasir_text *text, const kvasir_model *model)
{
    kvasir_sampling sampling;
    memset(&sampling, 0, sizeof sampling);
    sampling.struct_size = sizeof sampling;
    sampling.temperature = 0.7;
    sampling.seed = 1;
    for (int i = 0; i < N_NEW; i++) {
        int32_t id;
        const char *piece;
        size_t n;
        must(kvasir_session_sample(session, &sampling, &id, message, sizeof message));
        if (kvasir_is_end(model, id)) break;
        must(kvasir_text_push(text, id, &piece, &n, message, sizeof message));
        fwrite(piece, 1, n, stdout);
        must(kvasir_decode(&session, 1, &id, message, sizeof message));
    }
    putchar('\n');
}

int main(int argc, char **argv)
{
    kvasir_model *model;
    kvasir_session *session;
    kvasir_text *text;
    kvasir_stats stats;
    int32_t ids[4096];
    size_t n;
    if (argc != 4) {
        fprintf(stderr, "usage: complete DIR STRATEGY TEXT\n");
        return 2;
    }
    must(kvasir_model_load(&model, argv[1], NULL, message, sizeof message));
    must(kvasir_tokenize(model, argv[3], strlen(argv[3]), KVASIR_BOS, ids, 4096, &n, message, sizeof message));
    if (n > 4096) {
        fprintf(stderr, "complete: the text has %zu tokens, at most 4096 are read\n", n);
        return 1;
    }
    must(kvasir_session_create(&session, model, argv[2], "f16", (int64_t)n + N_NEW, message, sizeof message));
    must(kvasir_session_feed(session, ids, n, KVASIR_PROMPT, NULL, message, sizeof message));
    must(kvasir_text_create(&text, model, message, sizeof message));
    generate(session, text, model);
    memset(&stats, 0, sizeof stats);
    stats.struct_size = sizeof stats;
    must(kvasir_session_stats(session, &stats, message, sizeof message));
    fprintf(stderr, "%lld tokens, %.1f %% of them attended in a step\n", (long long)stats.length,
            stats.visible > 0 ? 100 * stats.attended / stats.visible : 100.0);
    kvasir_text_free(text);
    kvasir_session_free(session);
    kvasir_model_free(model);
    return 0;
}
