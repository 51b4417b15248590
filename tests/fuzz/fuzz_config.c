/* SPDX-License-Identifier: MIT */
/* A config.json from outside: whatever parses must be within the caps that the engine relies on. */
#include "config.h"

#include <math.h>
#include <stdlib.h>

#include "model/model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check_rope(const rope_config *r, int64_t seq_len)
{
    float freq[128], mscale;
    rope_frequencies(r, seq_len, freq, &mscale);
    if (!isfinite(mscale)) abort();
    for (int i = 0; i < r->head_dim / 2; i++)
        if (!isfinite(freq[i])) abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    model_config c;
    err e = {0}; /* messages are built from the input too */
    if (model_config_parse(&c, (const char *)data, size, "fuzz", NULL, &e) != ST_OK) return 0;
    if (c.n_layers < 1 || c.head_dim < 2 || c.head_dim > 256 || c.head_dim % 2) abort();
    if (c.n_kv_heads < 1 || c.n_heads % c.n_kv_heads || c.hidden < 1 || c.n_params < 1) abort();
    for (int i = 0; i < c.n_layers; i++)
        if (c.window[i] < 0) abort();
    check_rope(&c.rope, 1);
    check_rope(&c.rope, c.max_positions);
    check_rope(&c.rope, 2 * c.max_positions);
    model_config_free(&c);
    return 0;
}
