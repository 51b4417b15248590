/* SPDX-License-Identifier: MIT */
/* A piece (attn_pieces.cuh) of block rows for groups of 3 to 8 heads, on tensor cores: products of tf32 with float32
 * sums. Codes are whole numbers of at most 8 bits, which tf32 holds. The other operand, a query or a weight times the
 * scale of a block, is split into two numbers of 11 bits, so that it is rounded to 22 bits. The result is thus as
 * accurate as float32 sums, and independent of other sequences.
 *
 * A warp multiplies 16 keys at a time. Lane 4 g + t has 8 neighbouring codes of each block of keys g and g + 8 (from
 * code 8 t on), and 4 of each block of values t, t + 4, t + 8 and t + 12 (from code 4 g on). The columns of a product
 * are 8 heads, in two products for the two parts, or 4 heads with both parts side by side.
 * Source: the split follows Markidis et al. 2018 (precision refinement on tensor cores). */
#ifndef KERNELS_CUDA_ATTN_BLOCKS_MMA_CUH
#define KERNELS_CUDA_ATTN_BLOCKS_MMA_CUH

#include "kernels/cuda/attn_span.cuh"

/* Bits of a float that tf32 has, and half of its last place. */
#define TF32_BITS 0xffffe000u
#define TF32_HALF 0x1000u

/* The two parts of x. PARTS 1: only one, the low part if `low`. */
template <int PARTS> struct split_parts {
    float part[PARTS];
    __device__ __forceinline__ split_parts(float x, bool low)
    {
        float high = __uint_as_float(__float_as_uint(x) & (PARTS == 2 || low ? TF32_BITS : 0));
        unsigned rest = __float_as_uint(x - high) + (PARTS == 2 || low ? TF32_HALF : 0);
        part[0] = high;
        part[PARTS - 1] = __uint_as_float(rest & TF32_BITS);
    }
};

/* Returns code i of a word as a float, minus its offset. The mask and the exponent make the code's last bit a one. */
template <class T> static __device__ __forceinline__ float code_in(unsigned word, int i)
{
    constexpr int BITS = row_form<T>::BITS;
    int bit = i * BITS % 16;
    unsigned exponent = 0x4b000000u - ((unsigned)bit << 23), code = (i * BITS < 16 ? word : word >> 16);
    float base = (float)(8388608 >> bit) + row_form<T>::OFFSET;
    return __uint_as_float(and_or(code, ((1u << BITS) - 1) << bit, exponent)) - base;
}

/* Loads N words, 8 bytes at a time if p is ALIGNED to 8. */
template <int N, int ALIGNED> static __device__ __forceinline__ void load_words(unsigned to[N], const void *p)
{
    if constexpr (ALIGNED == 8 && N % 2 == 0) {
#pragma unroll
        for (int i = 0; i < N / 2; i++) {
            uint2 v = ((const uint2 *)p)[i];
            to[2 * i] = v.x, to[2 * i + 1] = v.y;
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) to[i] = ((const unsigned *)p)[i];
    }
}

/* D: head size, a multiple of 64 (attn_blocks_fit). G: heads at a time, 4 or 8. */
template <class T, int D, int GROUP, int FORM_> struct block_piece : span<T, 8, FORM_> {
    typedef span<T, 8, FORM_> base;
    typedef typename base::reader reader;
    using base::j, base::n, base::u;
    static constexpr int FORM = FORM_;
    enum {
        G = GROUP,
        NB = D / ROW_BLOCK,
        PARTS = G / 4,                      /* products for the parts of a query or weight */
        FRAGMENTS = D / 8 * 32 * 2 * PARTS, /* floats of the queries as operands */
        EIGHT = row_form<T>::BITS / 4,      /* words of 8 codes */
        ALIGNED = D % 128 ? 4 : 8,          /* bytes */
        TRIP = 16 * WARPS,
        WANTED = D == 256                                ? 2
                 : D == 128 && (G == 8 || FORM != EXACT) ? 3
                                                         : 4 /* thread blocks on a multiprocessor */
    };
    typedef split_parts<PARTS> split;
    struct some_keys {
        unsigned code[2][NB][EIGHT], scale[2][NB / 2];
    };
    struct some_values {
        unsigned code[4][NB], scale[4][NB / 2];
    };
    using base::base;

    /* Returns the distance between the scores of two heads, which puts their accesses into different banks. */
    static __host__ __device__ __forceinline__ int apart(int keys)
    {
        return (keys + 31) / 32 * 32 + 4;
    }
    static __device__ __forceinline__ int lane()
    {
        return threadIdx.x % 32;
    }
    static __device__ __forceinline__ float scale_of(const unsigned scale[NB / 2], int b)
    {
        return __half2float(__ushort_as_half((unsigned short)(scale[b / 2] >> 16 * (b % 2))));
    }

    static __device__ __forceinline__ const unsigned char *bytes_of_row(const reader &rows, int row)
    {
        return (const unsigned char *)(const void *)rows.at(row);
    }

    /* Loads keys g and g + 8 from entry `at` on. Those past the end become 0. */
    __device__ __forceinline__ void load(some_keys &k, const reader &rows, int at) const
    {
        k = {};
#pragma unroll
        for (int r = 0; r < 2; r++) {
            int i = at + lane() / 4 + 8 * r;
            const unsigned char *p = bytes_of_row(rows, base::row_of_entry(i));
            if (i >= n) continue;
            load_words<NB / 2, ALIGNED>(k.scale[r], p + code_bytes<T>(D));
#pragma unroll
            for (int b = 0; b < NB; b++)
                load_words<EIGHT, ALIGNED>(k.code[r][b], p + code_bytes<T>(ROW_BLOCK * b + lane() % 4 * 8));
        }
    }

    /* Loads values t, t + 4, t + 8 and t + 12 from entry `at` on. */
    __device__ __forceinline__ void load(some_values &v, const reader &rows, int at) const
    {
        v = {};
#pragma unroll
        for (int r = 0; r < 4; r++) {
            int i = at + lane() % 4 + 4 * r;
            const unsigned char *p = bytes_of_row(rows, base::row_of_entry(i));
            if (i >= n) continue;
            load_words<NB / 2, ALIGNED>(v.scale[r], p + code_bytes<T>(D));
#pragma unroll
            for (int b = 0; b < NB; b++) {
                const void *four = p + code_bytes<T>(ROW_BLOCK * b + lane() / 4 * 4);
                v.code[r][b] = EIGHT == 2 ? *(const unsigned *)four : *(const unsigned short *)four;
            }
        }
    }

    /* Writes queries [heads][D] as right operands: those of 8 columns follow each other, for each lane its words. */
    __device__ __forceinline__ void split_queries(float *fragments, const float *q, int heads) const
    {
        for (int i = threadIdx.x; i < D / 8 * 32; i += BLOCK) {
            int g = i % 32 / 4, head = g % G, c = i / 128 * ROW_BLOCK + i % 4 * 8 + i / 32 % 4 * 2;
            float2 x = make_float2(0, 0);
            if (head < heads) x = *(const float2 *)(q + head * D + c);
            split a(x.x, g >= G), b(x.y, g >= G);
#pragma unroll
            for (int p = 0; p < PARTS; p++) ((float2 *)fragments)[PARTS * i + p] = make_float2(a.part[p], b.part[p]);
        }
    }

    /* Adds the products of all heads with keys g and g + 8 to s. */
    static __device__ __forceinline__ void multiply(float s[4], const some_keys &k, const float *fragments)
    {
#pragma unroll
        for (int b = 0; b < NB; b++) {
            float sum[4] = {};
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float2 *q = (const float2 *)fragments + PARTS * (32 * (4 * b + i) + lane());
                float a[4];
#pragma unroll
                for (int w = 0; w < 4; w++) {
                    int c = 2 * i + w / 2;
                    a[w] = code_in<T>(k.code[w % 2][b][c * EIGHT / 8], c % (8 / EIGHT));
                }
#pragma unroll
                for (int p = 0; p < PARTS; p++) {
                    const float right[2] = {q[p].x, q[p].y};
                    mma(sum, a, right);
                }
            }
#pragma unroll
            for (int i = 0; i < 4; i++) s[i] = fmaf(scale_of(k.scale[i / 2], b), sum[i], s[i]);
        }
    }

    /* Sums the parts in columns of their own. */
    static __device__ __forceinline__ float whole(float x)
    {
        return PARTS == 2 ? x : x + __shfl_xor_sync(ALL_LANES, x, 2);
    }

    /* Writes the scaled products of heads [h0, h0 + G) after the FRAGMENTS numbers at room. */
    __device__ void products(float *room, int h0) const
    {
        float *score = room + FRAGMENTS;
        const half_rows half = half_of(j, false);
        const reader rows = base::reader_of(half, j.near.k);
        const int first = (int)threadIdx.x / 32 * 16, g = lane() / 4, t = lane() % 4;
        some_keys now, next;
        load(now, rows, first);
        base::template stage_queries<G>(score, h0, half.rotated);
        split_queries(room, score, min((int)G, u.heads - h0));
        __syncthreads();
#pragma unroll 1
        for (int at = first; at < n; at += TRIP) {
            float s[4] = {};
            load(next, rows, at + TRIP);
            multiply(s, now, room);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                float x = whole(s[i]) * j.scale;
                int key = at + g + 8 * (i / 2);
                if (2 * t < G && key < n) score[(2 * t + i % 2) * apart(n) + key] = x;
            }
            now = next;
        }
    }

    /* Adds values times weights w: the sums of dimensions c, c + 1 of a block and of two heads are 4 numbers. */
    static __device__ __forceinline__ void add(float sum[NB][2][4], const some_values &v, const float w[4])
    {
#pragma unroll
        for (int b = 0; b < NB; b++) {
            float right[PARTS][4];
#pragma unroll
            for (int r = 0; r < 4; r++) {
                split x(w[r] * scale_of(v.scale[r], b), lane() / 4 >= G);
#pragma unroll
                for (int p = 0; p < PARTS; p++) right[p][r] = x.part[p];
            }
#pragma unroll
            for (int c = 0; c < 2; c++)
#pragma unroll
                for (int r = 0; r < 4; r += 2) {
                    float a[4];
#pragma unroll
                    for (int i = 0; i < 4; i++) a[i] = code_in<T>(v.code[r + i / 2][b], 2 * c + i % 2);
#pragma unroll
                    for (int p = 0; p < PARTS; p++) mma(sum[b][c], a, right[p] + r);
                }
        }
    }

    /* Writes part [WARPS][G][D], the weighted sums of V rows of each warp, over the weights, which follow the FRAGMENTS
     * numbers at room. */
    __device__ void values(float *room) const
    {
        const float *weight = room + FRAGMENTS + lane() / 4 % G * apart(n);
        const half_rows half = half_of(j, true);
        const reader rows = base::reader_of(half, j.near.v);
        const int first = (int)threadIdx.x / 32 * 16, g = lane() / 4, t = lane() % 4;
        float sum[NB][2][4] = {};
        some_values now, next;
        load(now, rows, first);
#pragma unroll 1
        for (int at = first; at < n; at += TRIP) {
            float w[4];
            load(next, rows, at + TRIP);
#pragma unroll
            for (int r = 0; r < 4; r++) w[r] = at + t + 4 * r < n ? weight[at + t + 4 * r] : 0;
            add(sum, now, w);
            now = next;
        }
        __syncthreads(); /* the parts overwrite the weights */
#pragma unroll
        for (int i = 0; i < NB * 4; i++) {
            float2 x = make_float2(whole(sum[i / 4][i / 2 % 2][i % 2]), whole(sum[i / 4][i / 2 % 2][2 + i % 2]));
            float *to = room + ((int)threadIdx.x / 32 * G + 2 * t + i % 2) * D;
            if (2 * t < G) *(float2 *)(to + ROW_BLOCK * (i / 4) + 4 * g + 2 * (i / 2 % 2)) = x;
        }
    }
};

/* True if block_piece supports the rows of a job. */
static inline bool attn_blocks_fit(const attn_args *j)
{
    size_t aligned = j->dim == 64 ? 4 : 8;
    bool size = j->dim == 64 || j->dim == 128 || j->dim == 256;
    return size && ((uintptr_t)j->k | (uintptr_t)j->v | (uintptr_t)j->near.k | (uintptr_t)j->near.v) % aligned == 0;
}

#endif
