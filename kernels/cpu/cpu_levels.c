/* SPDX-License-Identifier: MIT */
/* The SIMD levels of this build, and the best one that this CPU supports. */
#include "config.h"

#include "kernels/cpu/cpu.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef HAVE_X86_KERNELS
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#ifdef HAVE_NEON_KERNELS
#include <sys/auxv.h>
#endif

/* configure --with-simd may exclude levels. */
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
#ifdef HAVE_AMX_KERNELS
#define KERNELS_AMX &cpu_kernels_amx
#else
#define KERNELS_AMX NULL
#endif

static bool always(void)
{
    return true;
}

#ifdef HAVE_X86_KERNELS
static bool has_avx2(void)
{
    unsigned a, b, c = 0, d;
    /* F16C via CPUID: Clang 14's __builtin_cpu_supports does not know it */
    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_F16C)) return false;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}

static bool has_avx512(void)
{
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
}

/* CPUID leaf 7.1, EAX bit 5: AVX512_BF16. All CPUs with it have VBMI and GFNI except Cooper Lake, which uses the next
 * lower level. */
static bool has_avx512_bf16(void)
{
    unsigned a = 0, b, c, d;
    return has_avx512() && __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi") &&
           __builtin_cpu_supports("gfni") && __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & 1u << 5);
}

/* CPUID leaf 7, EDX bits 22 and 24: AMX-BF16, AMX-TILE. Linux allows a process to use the 8 KB of tile data only on
 * request, which a virtual machine or a filter of system calls may refuse. The request holds for all threads of the
 * process, now and later. */
static bool has_amx(void)
{
#ifdef SYS_arch_prctl
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    unsigned a, b, c, d = 0;
    return has_avx512_bf16() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & 1u << 22) && (d & 1u << 24) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
#else
    return false;
#endif
}
#endif

#ifdef HAVE_NEON_KERNELS
static bool has_neon_dot(void)
{
    return getauxval(AT_HWCAP) & HWCAP_ASIMDDP;
}
#endif

/* Ascending; the last usable level is chosen. So those with tiles are chosen by KVASIR_CPU only: the unit has never run
 * amx, and its emulation is for tests. */
static const cpu_level levels[] = {
    {"amx-emulated", &cpu_kernels_amx_emulated, false, always},
#ifdef HAVE_X86_KERNELS
    {"amx", KERNELS_AMX, true, has_amx},
#endif
    {"generic", &cpu_kernels_generic, false, always},
#ifdef HAVE_X86_KERNELS
    {"avx2", KERNELS_AVX2, false, has_avx2},
    {"avx512", KERNELS_AVX512, false, has_avx512},
    {"avx512_bf16", KERNELS_AVX512_BF16, true, has_avx512_bf16},
#endif
#ifdef HAVE_NEON_KERNELS
    {"neon", &cpu_kernels_neon, false, always}, /* supported by every AArch64 CPU */
    {"neon_dot", &cpu_kernels_neon_dot, false, has_neon_dot},
#endif
};

enum { N_LEVELS = sizeof levels / sizeof levels[0] };

status cpu_choose_level(const cpu_level **out, err *e)
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
            return err_set(e, ST_UNSUPPORTED, "KVASIR_CPU=%s: not supported by this CPU; its best level is %s", want,
                           levels[best].name);
        if (!levels[i].kernels)
            return err_set(e, ST_UNSUPPORTED, "KVASIR_CPU=%s: not in this build; configure with --with-simd=all", want);
        *out = &levels[i];
        return ST_OK;
    }
    char names[80]; /* levels of this build */
    for (size_t i = 0, n = 0; i < N_LEVELS && n < sizeof names; i++)
        n += (size_t)snprintf(names + n, sizeof names - n, "%s%s", i ? ", " : "", levels[i].name);
    return err_set(e, ST_USAGE, "KVASIR_CPU: unknown level '%s'; use one of: %s", want, names);
}

const cpu_kernels *cpu_best_kernels(void)
{
    static _Atomic(const cpu_kernels *) chosen; /* CPUID takes microseconds on a virtual machine */
    const cpu_kernels *k = atomic_load(&chosen);
    const cpu_level *level;
    if (k) return k;
    cpu_choose_level(&level, NULL);
    atomic_store(&chosen, level->kernels);
    return level->kernels;
}
