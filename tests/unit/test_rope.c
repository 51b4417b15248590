/* SPDX-License-Identifier: MIT */
/* Rotary frequencies against transformers (rope_table.h), through config.json. */
#include "config.h"

#include <math.h>
#include <string.h>

#include "model/model.h"
#include "tests/tap.h"
#include "tests/unit/rope_table.h"

int main(void)
{
    for (size_t i = 0; i < sizeof rope_cases / sizeof *rope_cases; i++) {
        err e = {0};
        model_config c;
        float freq[128], mscale = 0, worst = 0;
        const char *name = rope_cases[i].name, *json = rope_cases[i].json;
        if (!is_ok(model_config_parse(&c, json, strlen(json), "config.json", &e), &e, "%s: read", name)) continue;
        rope_frequencies(&c.rope, rope_cases[i].seq_len, freq, &mscale);
        if (is_int(c.head_dim / 2, rope_cases[i].half, "%s: count", name)) {
            /* relative for each: the smallest frequencies decide at the largest positions */
            for (int k = 0; k < rope_cases[i].half; k++)
                worst = fmaxf(worst, fabsf(freq[k] / rope_cases[i].freq[k] - 1));
            ok(worst < 1e-6f, "%s: frequencies within 1e-6 (worst %.2g)", name, (double)worst);
        }
        ok(fabsf(mscale / rope_cases[i].mscale - 1) < 1e-6f, "%s: factor %.9g, want %.9g", name, (double)mscale,
           (double)rope_cases[i].mscale);
        model_config_free(&c);
    }
    return tap_done();
}
