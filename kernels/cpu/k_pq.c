/* SPDX-License-Identifier: MIT */
/* Scores of product-quantized keys: a sum of table entries for each token. Results do not depend on the level
 * (ops_pq.h). AVX-512 looks up the entries of 16 tokens by permuting registers. On other levels a gather is no faster
 * than single loads. */
#include "config.h"

#include "kernels/cpu/k.h"

#if SIMD_AVX512
/* Loads the codes of sub-space p of VF_LANES tokens. */
INLINE __m512i codes_at(const unsigned char *code, size_t parts, size_t p)
{
    __m512i all;
    if (parts == 1) return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)(const void *)code));
    if (parts == 2) all = _mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)(const void *)code));
    else if (parts == 4) all = _mm512_loadu_si512(code);
    else {
        __m512i lane = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
        all = _mm512_i32gather_epi32(_mm512_mullo_epi32(lane, _mm512_set1_epi32((int)parts)), code + p / 4 * 4, 1);
    }
    return _mm512_srl_epi32(all, _mm_cvtsi32_si128((int)(8 * (p % 4))));
}

/* Looks up entries `at` of a table of n, a power of two; only the bits of `at` below n count. */
INLINE VF entries(const float *table, size_t n, __m512i at)
{
    if (n < 2 * VF_LANES) {
        at = _mm512_and_si512(at, _mm512_set1_epi32((int)n - 1));
        return _mm512_permutexvar_ps(at, vf_load_n(table, n));
    }
    VF found = _mm512_permutex2var_ps(vf_load(table), at, vf_load(table + VF_LANES));
    at = _mm512_and_si512(at, _mm512_set1_epi32((int)n - 1));
    for (size_t i = 2 * VF_LANES; i < n; i += 2 * VF_LANES) {
        __mmask16 here = _mm512_cmpge_epi32_mask(at, _mm512_set1_epi32((int)i));
        VF v = _mm512_permutex2var_ps(vf_load(table + i), at, vf_load(table + i + VF_LANES));
        found = _mm512_mask_blend_ps(here, found, v);
    }
    return found;
}

/* Scores whole vectors of tokens; returns the number of tokens scored. */
INLINE size_t by_vectors(float *out, const unsigned char *code, size_t n, size_t parts, const float *table,
                         size_t words)
{
    size_t t = 0;
    for (; t + VF_LANES <= n; t += VF_LANES, code += VF_LANES * parts) {
        VF sum = entries(table, words, codes_at(code, parts, 0));
        for (size_t p = 1; p < parts; p++)
            sum = vf_add(sum, entries(table + p * words, words, codes_at(code, parts, p)));
        vf_store(out + t, sum);
    }
    return t;
}
#else
INLINE size_t by_vectors(float *out, const unsigned char *code, size_t n, size_t parts, const float *table,
                         size_t words)
{
    (void)out, (void)code, (void)n, (void)parts, (void)table, (void)words;
    return 0;
}
#endif

void LEVEL(k_pq_score)(float *out, const unsigned char *code, size_t n, size_t parts, const float *table, size_t words)
{
    for (size_t t = by_vectors(out, code, n, parts, table, words); t < n; t++) {
        float sum = table[code[t * parts] & (words - 1)];
        for (size_t p = 1; p < parts; p++) sum += table[p * words + (code[t * parts + p] & (words - 1))];
        out[t] = sum;
    }
}
