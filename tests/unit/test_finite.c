/* SPDX-License-Identifier: MIT */
/* Numbers that are not finite are not left out. */
#include "config.h"

#include <math.h>

#include "kernels/base/rng.h"
#include "kernels/ops.h"
#include "tests/tap.h"

static buf buf_of(float *p)
{
    return (buf){(unsigned char *)p};
}

/* A NaN among the scores of a query is not left out, wherever it lies, and neither is a part of a merge. */
static void check_attention(const char *device)
{
    enum { N = 70, DIM = 16 };
    static float k[N * DIM], v[N * DIM], q[2 * DIM], out[2 * DIM], lse[2], parts[2 * DIM];
    backend *be;
    err e = {0};
    int wrong = 0;
    if (!is_ok(backend_open(&be, &(backend_options){.device = device, .n_threads = 1}, &e), &e, "%s", device)) return;
    rng r = {8};
    for (int i = 0; i < N * DIM; i++) k[i] = rng_float(&r), v[i] = rng_float(&r);
    for (int i = 0; i < 2 * DIM; i++) q[i] = rng_float(&r);
    attn_job j = {.q = buf_of(q), .out = buf_of(out), .lse = buf_of(lse), .n_tok = 1, .n_heads = 2, .scale = 1};
    j.rows = (kv_rows){.k = buf_of(k), .v = buf_of(v), .type = DT_F32, .n_kv_heads = 1, .head_dim = DIM, .cap = N};
    for (int n = 1; n <= N; n++) {
        float kept = k[n / 2 * DIM];
        k[n / 2 * DIM] = NAN;
        j.n_lists = 1, j.n_max = n;
        be->ops->attn_decode(be, &j, 1);
        wrong += !isnan(out[0]) || !isnan(lse[0]) || !isnan(out[DIM]) || !isnan(lse[1]);
        be->ops->attn_prefill(be, &j);
        wrong += !isnan(out[0]) || !isnan(lse[0]) || !isnan(out[DIM]) || !isnan(lse[1]);
        k[n / 2 * DIM] = kept;
    }
    ok(wrong == 0, "%s: NaN among 1 to %d scores (%d wrong)", device, N, wrong);
    float lses[] = {NAN, 1};
    be->ops->attn_merge(be, buf_of(out), buf_of(lse), buf_of(parts), buf_of(lses), 2, 1, DIM);
    ok(isnan(out[0]) && isnan(lse[0]), "%s: merged with a part that is NaN", device);
    backend_close(be);
}

int main(void)
{
    check_attention("ref");
    check_attention("cpu");
    return tap_done();
}
