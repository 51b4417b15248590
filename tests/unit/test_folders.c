/* SPDX-License-Identifier: MIT */
/* Folders as other programs write them: logits of transformers 5.24 for edited copies of tests/data/models. */
#include "config.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <jansson.h>

#include "tests/unit/session_util.h"

#define DIR_NAME "test_folders.tmp"

enum { N_IDS = 64, N_VALUES = 8 };

/* First logits after tokens 1 to 64, from AutoModelForCausalLM in float32 with eager attention. */
static const struct {
    const char *fixture, *change; /* members of config.json */
    float want[N_VALUES];
} cases[] = {
    {"mistral-swa-bf16",
     "{\"layer_types\":[\"full_attention\",\"sliding_attention\"]}",
     {0.9058869f, -0.1741707f, -0.5506237f, -1.078407f, 1.044182f, 1.199378f, 0.04565726f, -1.605904f}},
    {"mistral-swa-bf16",
     "{\"layer_types\":[\"sliding_attention\",\"attention\"],\"model_type\":\"ministral\","
     "\"architectures\":[\"MinistralForCausalLM\"]}",
     {1.033728f, -0.8507702f, -1.34136f, 0.7510027f, 1.424824f, -3.668903f, -3.320969f, -1.425937f}},
    {"mistral-swa-bf16",
     "{\"model_type\":\"llama\"}",
     {2.276879f, -0.6351354f, -0.4700418f, -0.3530849f, 1.23276f, 3.136616f, -0.7327747f, -0.9849374f}},
};

/* A folder with links to a fixture's files and an edited config.json. */
static void make_folder(const char *fixture, const char *change)
{
    char rel[96], to[PATH_MAX + 32];
    static const char *const files[] = {"config.json", "model.safetensors"};
    mkdir(DIR_NAME, 0777);
    for (size_t i = 0; i < 2; i++) {
        snprintf(rel, sizeof rel, "tests/data/models/%s/%s", fixture, files[i]);
        snprintf(to, sizeof to, DIR_NAME "/%s", files[i]);
        unlink(to);
        char *from = realpath(tap_path(rel), NULL);
        json_t *j = i == 0 ? json_load_file(tap_path(rel), 0, NULL) : NULL, *edit = json_loads(change, 0, NULL);
        if (!from || (i == 0 && (json_object_update(j, edit) != 0 || json_dump_file(j, to, 0) != 0))) exit(1);
        if (i == 1 && symlink(from, to) != 0) exit(1);
        json_decref(j);
        json_decref(edit);
        free(from);
    }
}

static status last_logits(engine_parts *p, session **s, float *out, err *e)
{
    int32_t ids[N_IDS];
    prefill_options o = {.which = LOGITS_LAST, .rows = keep_last_row, .ctx = out};
    for (int i = 0; i < N_IDS; i++) ids[i] = i + 1;
    TRY(backend_open(&p->be, &(backend_options){.device = "ref"}, e));
    TRY(model_open(&p->m, DIR_NAME, p->be, e));
    TRY(decoder_create(&p->dec, p->m, &(decoder_options){.chunk = N_IDS, .max_batch = 1, .exact = true}, e));
    TRY(session_new(s, p, "full", "f32", N_IDS, e));
    return session_prefill(s, 1, ids, N_IDS, &o, e);
}

int main(void)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        engine_parts p = {0};
        session *s = NULL;
        float logits[U_VOCAB];
        err e = {0};
        make_folder(cases[i].fixture, cases[i].change);
        if (is_ok(last_logits(&p, &s, logits, &e), &e, "%s with %s", cases[i].fixture, cases[i].change))
            is_near(logits, cases[i].want, N_VALUES, 1e-10, "  logits");
        session_free(s);
        parts_close(&p);
    }
    unlink(DIR_NAME "/config.json");
    unlink(DIR_NAME "/model.safetensors");
    rmdir(DIR_NAME);
    return tap_done();
}
