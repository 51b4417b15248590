/* SPDX-License-Identifier: MIT */
#include "config.h"

#include "kernels/backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/base/clock.h"
#include "kernels/base/mem.h"
#include "kernels/comm.h"

const char *dtype_name(dtype t)
{
    static const char *const names[] = {"f32", "f16", "bf16", "q8",  "q4",  "q4z",
                                        "q4k", "q5k", "q6k",  "fp8", "q4g", "q4g32"};
    return names[t];
}

dtype dtype_named(const char *name)
{
    dtype t = DT_F32;
    while (t < DT_COUNT && strcmp(name, dtype_name(t)) != 0) t++;
    return t;
}

/* "cuda" -> -1, "cuda:N" -> N, anything else -> -2. */
static int cuda_index(const char *device)
{
    if (strcmp(device, "cuda") == 0) return -1;
    if (strncmp(device, "cuda:", 5) != 0) return -2;
    char *end;
    long n = strtol(device + 5, &end, 10);
    return *end || end == device + 5 || n < 0 || n > 1023 ? -2 : (int)n;
}

status backend_open(backend **out, const backend_options *o, err *e)
{
    const char *device = o->device ? o->device : "auto";
    backend *be;
    *out = NULL;
    TRY(MEM_NEW(&be, 1, e));
    status st;
    be->ranks = o->ranks;
    if (strcmp(device, "auto") == 0 || strcmp(device, "cpu") == 0) st = backend_cpu_init(be, o->n_threads, e);
    else if (backend_ranks(be) > 1 && cuda_index(device) != -1)
        st = err_set(e, ST_UNSUPPORTED, "--device %s: %d ranks require cpu, or cuda with one GPU each", device,
                     backend_ranks(be));
    else if (backend_ranks(be) > 1) st = backend_cuda_init(be, be->ranks->local_rank, e);
    else if (strcmp(device, "ref") == 0) st = backend_ref_init(be, e);
    else if (cuda_index(device) >= -1) st = backend_cuda_init(be, cuda_index(device), e);
    else st = err_set(e, ST_USAGE, "--device: unknown device '%s'; use auto, cpu, cuda or cuda:N", device);
    if (st != ST_OK) {
        mem_free(be);
        return st;
    }
    *out = be;
    return ST_OK;
}

void backend_close(backend *be)
{
    if (!be) return;
    if (be->close) be->close(be);
    mem_free(be);
}

void backend_mark(backend *be, int stage)
{
    if (!be->stage_ns) return;
    be->ops->sync(be);
    int64_t now = clock_ns();
    if (stage >= 0) be->stage_ns[stage] += now - be->marked_ns;
    be->marked_ns = now;
}

void backend_threads_text(char out[BACKEND_THREADS_TEXT], const backend *be)
{
    const char *s = be->n_threads == 1 ? "" : "s";
    if (be->n_promised <= be->n_threads) snprintf(out, BACKEND_THREADS_TEXT, "%d thread%s", be->n_threads, s);
    else snprintf(out, BACKEND_THREADS_TEXT, "%d of %d threads (OpenMP grants no more)", be->n_threads, be->n_promised);
}

status backend_fault(const backend *be, err *e)
{
    return be->fault.code == ST_OK ? ST_OK : err_set(e, be->fault.code, "%s", be->fault.msg);
}

/* With backend_mark, steps are not delayed: a mark waits for the ops of each stage. */
void backend_step_begin(backend *be)
{
    if (!be->stage_ns) be->ops->step_begin(be);
}

void backend_step_end(backend *be)
{
    be->ops->step_end(be);
}

int backend_ahead(const backend *be)
{
    return be->ops->queues ? 1 : 0;
}

void backend_send(backend *be, unsigned slot, buf src, size_t bytes)
{
    be->ops->send(be, slot, src, bytes);
}

void backend_receive(backend *be, void *dst, unsigned slot, size_t bytes)
{
    be->ops->receive(be, dst, slot, bytes);
}
