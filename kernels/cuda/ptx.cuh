/* SPDX-License-Identifier: MIT */
/* Instructions that CUDA C++ has no name for. tests/cushim/ptx.h has the same functions in plain C++, and dev.cuh takes
 * one of the two files. Fragments of a warp's matrices, with g = lane / 4 and t = lane % 4, as PTX lays them out:
 *   a of 16 x 16 halves: word i holds row g + 8 (i % 2), columns 2 t + 8 (i / 2) and the next
 *   b of 16 x 8 halves:  word i holds rows 2 t + 8 i and the next of column g
 *   a of 16 x 32 bytes:  word i holds row g + 8 (i % 2), columns 4 t + 16 (i / 2) .. + 4
 *   b of 32 x 8 bytes:   word i holds rows 4 t + 16 i .. + 4 of column g
 *   a of 16 x 8 tf32:    word i holds row g + 8 (i % 2), column t + 4 (i / 2)
 *   b of 8 x 8 tf32:     word i holds row t + 4 i of column g
 *   d of 16 x 8:         element i is row g + 8 (i / 2), column 2 t + i % 2
 * Source: PTX ISA, "Matrix fragments for mma.m16n8k8, m16n8k16, m16n8k32". */
#ifndef KERNELS_CUDA_PTX_CUH
#define KERNELS_CUDA_PTX_CUH

static __device__ __forceinline__ float exp2_fast(float x)
{
    asm("ex2.approx.ftz.f32 %0, %0;" : "+f"(x));
    return x;
}

/* Returns (x & mask) | bits in one instruction; two constants make the compiler use two. */
static __device__ __forceinline__ unsigned and_or(unsigned x, unsigned mask, unsigned bits)
{
    unsigned u;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(u) : "r"(x), "r"(mask), "r"(bits));
    return u;
}

/* Packs two numbers, rounded to nearest even, lo in the low half. */
static __device__ __forceinline__ unsigned pack2(float lo, float hi, __nv_bfloat16)
{
    unsigned u;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(hi), "f"(lo));
    return u;
}
static __device__ __forceinline__ unsigned pack2(float lo, float hi, __half)
{
    unsigned u;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(u) : "f"(hi), "f"(lo));
    return u;
}

/* Computes d += a b with sums in float32. The last argument selects the type of a and b. */
static __device__ __forceinline__ void mma(float d[4], const unsigned a[4], const unsigned b[2], __nv_bfloat16)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
static __device__ __forceinline__ void mma(float d[4], const unsigned a[4], const unsigned b[2], __half)
{
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
/* The same for tf32: floats whose lowest 13 bits are 0. */
static __device__ __forceinline__ void mma(float d[4], const float a[4], const float b[2])
{
    asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, "
        "%2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(__float_as_uint(a[0])), "r"(__float_as_uint(a[1])), "r"(__float_as_uint(a[2])),
          "r"(__float_as_uint(a[3])), "r"(__float_as_uint(b[0])), "r"(__float_as_uint(b[1])));
}
/* Computes d = a b of signed bytes, plus c in every element; the sums are exact. */
static __device__ __forceinline__ void mma_bytes(int d[4], const unsigned a[4], const unsigned b[2], int c)
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, "
        "%10};"
        : "=r"(d[0]), "=r"(d[1]), "=r"(d[2]), "=r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(c));
}

/* Computes d += a b of signed bytes. */
static __device__ __forceinline__ void mma_bytes(int d[4], const unsigned a[4], const unsigned b[2])
{
    asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, "
        "%3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}

/* Returns 255 for each byte whose top bit is set, and 0 for the others. */
static __device__ __forceinline__ unsigned top_bits(unsigned x)
{
    unsigned mask;
    asm("prmt.b32 %0, %1, %1, 0xba98;" : "=r"(mask) : "r"(x));
    return mask;
}

/* Loads 16, 8 or 4 bytes that are read once; v is unchanged if inside is false. volatile keeps these loads in order,
 * before the first use of any. */
static __device__ __forceinline__ void load_stream(uint4 &v, const void *p, bool inside)
{
    asm volatile("{.reg .pred in; setp.ne.b32 in, %5, 0; "
                 "@in ld.global.nc.L1::no_allocate.L2::256B.v4.b32 {%0, %1, %2, %3}, [%4];}"
                 : "+r"(v.x), "+r"(v.y), "+r"(v.z), "+r"(v.w)
                 : "l"(__cvta_generic_to_global(p)), "r"((int)inside));
}
static __device__ __forceinline__ void load_stream(uint2 &v, const void *p, bool inside)
{
    asm volatile("{.reg .pred in; setp.ne.b32 in, %3, 0; "
                 "@in ld.global.nc.L1::no_allocate.L2::256B.v2.b32 {%0, %1}, [%2];}"
                 : "+r"(v.x), "+r"(v.y)
                 : "l"(__cvta_generic_to_global(p)), "r"((int)inside));
}
static __device__ __forceinline__ void load_stream(unsigned &v, const void *p, bool inside)
{
    asm volatile("{.reg .pred in; setp.ne.b32 in, %2, 0; @in ld.global.nc.L1::no_allocate.L2::256B.b32 %0, [%1];}"
                 : "+r"(v)
                 : "l"(__cvta_generic_to_global(p)), "r"((int)inside));
}

static __device__ __forceinline__ unsigned shared_address(const void *p)
{
    return (unsigned)__cvta_generic_to_shared(p);
}

/* Loads four matrices of 8 x 8 halves from shared memory. Lane l gives the address of row l % 8 of matrix l / 8: 16
 * bytes at a multiple of 16. Word i receives columns 2 t and 2 t + 1 of row g of matrix i; with `transposed`, rows 2 t
 * and 2 t + 1 of column g. */
static __device__ __forceinline__ void load_matrices(unsigned r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}
static __device__ __forceinline__ void load_matrices_transposed(unsigned r[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Copies 16 bytes from global to shared memory, or writes 16 zero bytes if inside is false. The data is visible to this
 * thread after copies_wait, and to others after a barrier that follows it. */
static __device__ __forceinline__ void copy16_async(void *to, const void *from, bool inside)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(to)), "l"(__cvta_generic_to_global(from)), "r"(inside ? 16 : 0)
                 : "memory");
}
/* Ends a group of copies; waits until at most N groups of this thread are in flight. */
static __device__ __forceinline__ void copies_end_group()
{
    asm volatile("cp.async.commit_group;" : : : "memory");
}
template <int N> static __device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group %0;" : : "n"(N) : "memory");
}

/* Lets the next launch start, and waits until all earlier ones are complete and their writes are visible. Without
 * launch_dependent they already are. Code for devices before 9.0 has no such instructions. */
static __device__ __forceinline__ void grid_wait()
{
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" : : : "memory");
    asm volatile("griddepcontrol.wait;" : : : "memory");
#endif
}

#endif
