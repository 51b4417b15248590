/* SPDX-License-Identifier: MIT */
/* Steps queued as a whole: the stream is captured between step_begin and step_end and runs as one graph. Each step is
 * captured again, since bounds and upload addresses differ, and updates the executable graph of an earlier step with
 * the same launches. The host does this while the previous step runs and leaves that step's graph alone, so two graphs
 * of one size alternate. Uploads pass through pinned memory that is not reused before they are complete. */
#include "config.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.cuh"

enum {
    PART = 256 << 10, /* bytes of a part of pinned memory, for uploads */
    LOAD = 8 << 20    /* the same, for large uploads */
};

cudaError_t cuda_step_open(cuda_ctx *c)
{
    cudaError_t rc = cudaMallocHost((void **)&c->pinned, CUDA_PARTS * PART + BACKEND_SLOTS * BACKEND_SLOT_BYTES);
    for (int i = 0; i < CUDA_PARTS && rc == cudaSuccess; i++)
        rc = cudaEventCreateWithFlags(&c->passed[i], cudaEventDisableTiming);
    for (int i = 0; i < BACKEND_SLOTS && rc == cudaSuccess; i++)
        rc = cudaEventCreateWithFlags(&c->sent[i], cudaEventDisableTiming);
    for (int i = 0; i < CUDA_LOADS && rc == cudaSuccess; i++)
        rc = cudaEventCreateWithFlags(&c->loaded[i], cudaEventDisableTiming);
    return rc;
}

/* Never launched: shows for which devices the kernels were compiled. */
static __global__ void version_k()
{
    grid_wait();
}

/* Graphs hold such launches from CUDA 12.3 on. PTX for older devices has no grid_wait, whatever it is translated to. */
bool cuda_step_dependent(void)
{
    int driver = 0;
    cudaFuncAttributes code = {};
    bool is = CUDART_VERSION >= 12030 && !getenv("KVASIR_NO_DEPENDENT") &&
              cudaDriverGetVersion(&driver) == cudaSuccess && driver >= 12030 &&
              cudaFuncGetAttributes(&code, version_k) == cudaSuccess && code.ptxVersion >= 90;
    cudaGetLastError(); /* otherwise the next launch would return an error of these calls */
    return is;
}

/* After a fault these calls fail too; their errors are ignored. */
void cuda_step_close(cuda_ctx *c)
{
    for (int i = 0; i < CUDA_GRAPHS; i++)
        if (c->graph[i].exec) cudaGraphExecDestroy(c->graph[i].exec);
    for (int i = 0; i < CUDA_PARTS; i++)
        if (c->passed[i]) cudaEventDestroy(c->passed[i]);
    for (int i = 0; i < BACKEND_SLOTS; i++)
        if (c->sent[i]) cudaEventDestroy(c->sent[i]);
    for (int i = 0; i < CUDA_LOADS; i++)
        if (c->loaded[i]) cudaEventDestroy(c->loaded[i]);
    if (c->load) cudaFreeHost(c->load);
    if (c->pinned) cudaFreeHost(c->pinned);
}

/* ---- graphs ---- */

/* Returns the entry for a step of n nodes: an executable graph of the same size that the previous step did not use, an
 * empty entry, or the least recently used one. */
static cuda_graph *graph_entry(cuda_ctx *c, size_t n)
{
    cuda_graph *best = &c->graph[0];
    for (int i = 0; i < CUDA_GRAPHS; i++) {
        cuda_graph *g = &c->graph[i];
        if (g->exec && g->nodes == n && g->used < c->n_steps) return g;
        if (g->used < best->used) best = g;
    }
    return best;
}

/* Makes the captured graph executable; returns NULL after a fault. */
static cudaGraphExec_t prepare(backend *be, cudaGraph_t made)
{
    cuda_ctx *c = cuda_of(be);
    size_t n = 0;
    cudaGraphExecUpdateResultInfo info;
    if (!cuda_check(be, cudaGraphGetNodes(made, NULL, &n), "the graph of a step")) return NULL;
    cuda_graph *g = graph_entry(c, n);
    g->used = ++c->n_steps;
    if (g->exec && g->nodes == n) {
        cudaError_t rc = cudaGraphExecUpdate(g->exec, made, &info);
        if (rc == cudaSuccess) return g->exec;
        if (rc != cudaErrorGraphExecUpdateFailure) {
            cuda_check(be, rc, "updating the graph of a step, %zu nodes", n);
            return NULL;
        }
        cudaGetLastError(); /* otherwise the next launch would return this error */
    }
    /* A graph that still runs is released when it finishes. */
    if (g->exec && !cuda_check(be, cudaGraphExecDestroy(g->exec), "the graph of a step")) return NULL;
    g->exec = NULL;
    if (!cuda_check(be, cudaGraphInstantiate(&g->exec, made, 0), "the graph of a step, %zu nodes", n)) return NULL;
    g->nodes = n;
    return g->exec;
}

void cuda_step_end(backend *be)
{
    cuda_ctx *c = cuda_of(be);
    cudaGraph_t made = NULL;
    cuda_enter(be);
    if (!c->recording) return;
    c->recording = false;
    cudaError_t rc = cudaStreamEndCapture(c->stream, &made); /* also after a fault, so that the stream stays usable */
    if (be->fault.code == ST_OK && cuda_check(be, rc, "recording a step up to %s", c->last)) {
        cudaGraphExec_t x = prepare(be, made);
        if (x) cuda_check(be, cudaGraphLaunch(x, c->stream), "launching a step up to %s", c->last);
    }
    if (made) cudaGraphDestroy(made);
    for (int i = 0; i < BACKEND_SLOTS; i++) {
        if (c->due[i] && be->fault.code == ST_OK)
            cuda_check(be, cudaEventRecord(c->sent[i], c->stream), "marking a step");
        c->due[i] = false;
    }
}

/* Starts a new part of pinned memory for the uploads of a step, so that none needs a wait inside the step. */
static bool next_part(backend *be)
{
    cuda_ctx *c = cuda_of(be);
    if (!cuda_check(be, cudaEventRecord(c->passed[c->part], c->stream), "marking uploads")) return false;
    c->part = (c->part + 1) % CUDA_PARTS;
    c->used = 0;
    return cuda_check(be, cudaEventSynchronize(c->passed[c->part]), "waiting for uploads after %s", c->last);
}

void cuda_step_begin(backend *be)
{
    cuda_ctx *c = cuda_of(be);
    cuda_enter(be);
    if (be->fault.code != ST_OK || c->no_graphs || c->recording || !next_part(be)) return;
    c->recording = cuda_check(be, cudaStreamBeginCapture(c->stream, cudaStreamCaptureModeRelaxed), "recording a step");
}

/* ---- between host and device ---- */

unsigned char *cuda_staging(backend *be, size_t bytes)
{
    cuda_ctx *c = cuda_of(be);
    cuda_enter(be);
    if (be->fault.code != ST_OK || bytes > PART / 4) return NULL;
    if (c->used + bytes > PART) {
        cuda_step_end(be);
        if (!next_part(be)) return NULL;
    }
    unsigned char *p = c->pinned + c->part * PART + c->used;
    c->used += (bytes + 63) / 64 * 64;
    return p;
}

/* One piece of pinned memory is filled while the other is copied. */
void cuda_load(backend *be, buf dst, const void *src, size_t bytes)
{
    cuda_ctx *c = cuda_of(be);
    cuda_step_end(be);
    if (be->fault.code != ST_OK) return;
    if (!c->load && !cuda_check(be, cudaMallocHost((void **)&c->load, CUDA_LOADS * LOAD), "pinned memory for uploads"))
        return;
    for (size_t at = 0; at < bytes; at += LOAD) {
        size_t n = bytes - at < LOAD ? bytes - at : (size_t)LOAD;
        unsigned char *by = c->load + c->next_load * LOAD;
        if (!cuda_check(be, cudaEventSynchronize(c->loaded[c->next_load]), "waiting for an upload after %s", c->last))
            return;
        memcpy(by, (const unsigned char *)src + at, n);
        if (!cuda_check(be, cudaMemcpyAsync(dst.p + at, by, n, cudaMemcpyHostToDevice, c->stream),
                        "upload of %zu bytes", bytes) ||
            !cuda_check(be, cudaEventRecord(c->loaded[c->next_load], c->stream), "marking an upload"))
            return;
        c->next_load = (c->next_load + 1) % CUDA_LOADS;
    }
}

static unsigned char *slot_of(const cuda_ctx *c, unsigned slot)
{
    return c->pinned + CUDA_PARTS * PART + slot * BACKEND_SLOT_BYTES;
}

void cuda_send(backend *be, unsigned slot, buf src, size_t bytes)
{
    cuda_ctx *c = cuda_of(be);
    if (!cuda_begin(be, "send")) return;
    if (!cuda_check(be, cudaMemcpyAsync(slot_of(c, slot), src.p, bytes, cudaMemcpyDeviceToHost, c->stream),
                    "sending %zu bytes", bytes))
        return;
    c->due[slot] = c->recording;
    if (!c->recording) cuda_check(be, cudaEventRecord(c->sent[slot], c->stream), "sending %zu bytes", bytes);
}

void cuda_receive(backend *be, void *dst, unsigned slot, size_t bytes)
{
    cuda_ctx *c = cuda_of(be);
    memset(dst, 0, bytes); /* defined after a fault too */
    cuda_step_end(be);
    if (be->fault.code != ST_OK) return;
    if (cuda_check(be, cudaEventSynchronize(c->sent[slot]), "waiting for a step, %s", c->last))
        memcpy(dst, slot_of(c, slot), bytes);
}
