/* SPDX-License-Identifier: MIT */
/* The cpu backend: which SIMD level, how many threads, which operations. */
#include "config.h"

#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_X86_KERNELS
#include <cpuid.h>
#endif
#ifdef HAVE_NEON_KERNELS
#include <sys/auxv.h>
#endif

#include "kernels/backend.h"
#include "kernels/base/mem.h"
#include "kernels/comm.h"
#include "kernels/cpu/threads.h"

/* configure --with-simd leaves levels out. */
#ifdef HAVE_AVX2_KERNELS
#define KERNELS_AVX2 &cpu_kernels_avx2
#else
#define KERNELS_AVX2 NULL
#endif
#ifdef HAVE_AVX512_KERNELS
#define KERNELS_AVX512 &cpu_kernels_avx512
#else
#define KERNELS_AVX512 NULL
#endif
#ifdef HAVE_AVX512_BF16_KERNELS
#define KERNELS_AVX512_BF16 &cpu_kernels_avx512_bf16
#else
#define KERNELS_AVX512_BF16 NULL
#endif

typedef struct {
    const char *name;           /* of KVASIR_CPU */
    const cpu_kernels *kernels; /* NULL: not built */
    bool bf16_gemm;             /* a library may multiply bf16 */
    bool (*usable)(void);
} cpu_level;

static bool always(void)
{
    return true;
}

#ifdef HAVE_X86_KERNELS
static bool has_avx2(void)
{
    unsigned a, b, c = 0, d;
    /* F16C by hand: Clang 14's __builtin_cpu_supports does not know it */
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return false;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

/* CPUID leaf 7.1, EAX bit 5: AVX512_BF16. All CPUs that have it but Cooper Lake, which takes the level
 * below, have VBMI and GFNI. */
static bool has_avx512_bf16(void)
{
    unsigned a = 0, b, c, d;
    return has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("gfni") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}
#endif

#ifdef HAVE_NEON_KERNELS
static bool has_neon_dot(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
#endif

/* Ascending; the last usable one is taken. */
static const cpu_level levels[] = {
    {"generic", &cpu_kernels_generic, false, always},
#ifdef HAVE_X86_KERNELS
    {"avx2", KERNELS_AVX2, false, has_avx2},
    {"avx512", KERNELS_AVX512, false, has_avx512},
    {"avx512_bf16", KERNELS_AVX512_BF16, true, has_avx512_bf16},
#endif
#ifdef HAVE_NEON_KERNELS
    {"neon", &cpu_kernels_neon, false, always}, /* every AArch64 has it */
    {"neon_dot", &cpu_kernels_neon_dot, false, has_neon_dot},
#endif
};

/* Address space costs nothing until it is touched; small contexts then never reallocate. */
enum { SCRATCH_MIN = 4 << 20 };

enum { N_LEVELS = sizeof levels / sizeof levels[0] };

static status choose_level(const cpu_level **out, err *e)
{
    const char *want = getenv("KVASIR_CPU");
    size_t best = 0;
    for (size_t i = 0; i < N_LEVELS; i++)
        if (levels[i].kernels && levels[i].usable()) best = i;
    *out = &levels[best];
    if (!want || !*want) return ST_OK;
    for (size_t i = 0; i < N_LEVELS; i++) {
        if (strcmp(want, levels[i].name) != 0) continue;
        if (!levels[i].usable())
            return err_set(e, ST_UNSUPPORTED, "KVASIR_CPU=%s: this CPU lacks it; its best level is %s", want,
                           levels[best].name);
        if (!levels[i].kernels)
            return err_set(e, ST_UNSUPPORTED, "KVASIR_CPU=%s: this build lacks it (configure --with-simd=all)", want);
        *out = &levels[i];
        return ST_OK;
    }
    char names[64] = "generic"; /* of this build */
    for (size_t i = 1, n = strlen(names); i < N_LEVELS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, ", %s", levels[i].name);
    return err_set(e, ST_USAGE, "KVASIR_CPU: unknown level '%s' (%s)", want, names);
}

const cpu_kernels *cpu_best_kernels(void)
{
    static _Atomic(const cpu_kernels *) chosen; /* asking a virtual machine's CPU takes microseconds */
    const cpu_kernels *k = atomic_load(&chosen);
    const cpu_level *level;
    if (k) return k;
    choose_level(&level, NULL);
    atomic_store(&chosen, level->kernels);
    return level->kernels;
}

void *cpu_scratch(backend *be, scratch *s, size_t n, size_t size, const char *what)
{
    size_t bytes;
    if (size_mul(&bytes, n, size, what, &be->fault) != ST_OK) return NULL;
    if (s->p && bytes <= s->bytes) return s->p;
    if (s->p) bytes += bytes / 2;
    if (bytes < SCRATCH_MIN) bytes = SCRATCH_MIN;
    mem_unmap(s->p, s->bytes);
    *s = (scratch){0};
    if (mem_map_anon(&s->p, bytes, what, &be->fault) != ST_OK) return NULL;
    s->bytes = bytes;
    return s->p;
}

void cpu_over_ranks(backend *be, float *x, size_t n, bool mean)
{
    int ranks = backend_ranks(be);
    if (ranks == 1 || be->fault.code != ST_OK) return;
    comm_all_reduce(be->ranks, x, n, &be->fault);
    for (size_t i = 0; mean && i < n; i++) x[i] /= (float)ranks;
}

static void cpu_close(backend *be)
{
    cpu_ctx *c = be->ctx;
    gemm_destroy(c->gemm);
    mem_unmap(c->panel.p, c->panel.bytes);
    mem_unmap(c->halves.p, c->halves.bytes);
    mem_unmap(c->bytes.p, c->bytes.bytes);
    mem_unmap(c->tasks.p, c->tasks.bytes);
    mem_unmap(c->parts.p, c->parts.bytes);
    mem_free(c);
    be->ctx = NULL;
}

#define CPU_TABLE(name, OPS, type)  static const type cpu_##name = {OPS(OP_ENTRY, cpu_##name##_, ref_##name##_)};
#define CPU_FAMILY(name, OPS, type) .name = &cpu_##name,

OP_FAMILIES(CPU_TABLE)

static const backend_ops cpu_ops = {.chunk = 512,
                                    .tier = &ref_tier,
                                    .host = &ref_host,
                                    .certify = &cpu_certify,
                                    CORE_OPS(OP_ENTRY, cpu_, ref_) OP_FAMILIES(CPU_FAMILY)};

status backend_cpu_init(backend *be, int n_threads, err *e)
{
    const cpu_level *level;
    cpu_ctx *c;
    TRY(choose_level(&level, e));
    TRY(MEM_NEW(&c, 1, e));
    be->n_promised = threads_choose(n_threads, be->ranks ? be->ranks->local_size : 1);
    be->n_threads = threads_granted(be->n_promised);
    status st = gemm_create(&c->gemm, be->n_threads, e);
    if (st != ST_OK) {
        mem_free(c);
        return st;
    }
    c->k = level->kernels;
    c->bf16_gemm = c->gemm && level->bf16_gemm && gemm_has_bf16(c->gemm);
    be->ctx = c;
    be->ops = &cpu_ops;
    be->close = cpu_close;
    be->name = "cpu";
    snprintf(be->about, sizeof be->about, "%s, %s%s", c->k->name, c->gemm ? gemm_name(c->gemm) : "built-in GEMM",
             c->bf16_gemm ? " (bf16)" : "");
    return ST_OK;
}
