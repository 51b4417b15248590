/* SPDX-License-Identifier: MIT */
/* Rotary frequencies against transformers (scripts/fixtures/make_rope_table.py), through config.json. */
#include "config.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "model/model.h"
#include "tests/tap.h"

static void test_case(const json_t *x)
{
    err e = {0};
    model_config c;
    float freq[128], mscale = 0, worst = 0, factor = (float)json_number_value(json_object_get(x, "factor"));
    const json_t *want = json_object_get(x, "freq");
    const char *name = json_string_value(json_object_get(x, "name"));
    char *config = json_dumps(json_object_get(x, "config"), 0);
    if (is_ok(model_config_parse(&c, config, strlen(config), "config.json", NULL, &e), &e, "%s: read", name)) {
        rope_frequencies(&c.rope, json_integer_value(json_object_get(x, "seq_len")), freq, &mscale);
        if (is_int(c.head_dim / 2, (long long)json_array_size(want), "%s: count", name)) {
            /* relative for each: the smallest frequencies decide at the largest positions */
            for (size_t k = 0; k < json_array_size(want); k++)
                worst = fmaxf(worst, fabsf(freq[k] / (float)json_number_value(json_array_get(want, k)) - 1));
            ok(worst < 1e-6f, "%s: frequencies within 1e-6 (worst %.2g)", name, (double)worst);
        }
        ok(fabsf(mscale / factor - 1) < 1e-6f, "%s: factor %.9g, want %.9g", name, (double)mscale, (double)factor);
        model_config_free(&c);
    }
    free(config);
}

int main(void)
{
    size_t i;
    json_t *cases = json_load_file(tap_path("tests/data/reference/rope.json"), 0, NULL), *x;
    if (ok(json_array_size(json_object_get(cases, "cases")) == 24, "24 cases"))
        json_array_foreach(json_object_get(cases, "cases"), i, x) test_case(x);
    json_decref(cases);
    return tap_done();
}
