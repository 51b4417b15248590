# SPDX-License-Identifier: MIT
engine_sources += %D%/base/err.c %D%/base/err.h %D%/base/err_names.c %D%/base/err_names.h %D%/base/utf8.c %D%/base/utf8.h %D%/base/nearest.c %D%/base/nearest.h %D%/base/fold.c %D%/base/fold.h %D%/base/mem.c %D%/base/mem.h \
  %D%/base/file.c %D%/base/file.h %D%/base/gguf.c %D%/base/gguf.h %D%/base/json.c %D%/base/json.h %D%/base/clock.c %D%/base/clock.h %D%/base/spin.c %D%/base/spin.h %D%/base/rng.h \
  %D%/base/sha256.c %D%/base/sha256.h %D%/base/sums.c %D%/base/sums.h %D%/base/base64.h %D%/base/temp_file.c %D%/base/temp_file.h \
  %D%/base/reader.c %D%/base/reader.h %D%/base/reader_impl.h %D%/base/reading.c %D%/base/reader_threads.c \
  %D%/ops.h %D%/ops_certify.h %D%/ops_coded.h %D%/ops_codes.h %D%/ops_evict.h %D%/ops_select.h %D%/ops_quest.h %D%/ops_fier.h %D%/ops_kmeans.h %D%/ops_lsh.h %D%/ops_pq.h %D%/ops_paris.h %D%/ops_block.h %D%/ops_cluster.h %D%/ops_token.h %D%/ops_tail.h %D%/ops_tier.h %D%/ops_weights.h %D%/qblock_random.h %D%/draw.h %D%/gumbel.h \
  %D%/meter.h %D%/meter.c %D%/backend.h %D%/backend.c %D%/half.h %D%/comm.h %D%/comm_impl.h %D%/comm.c %D%/comm_local.c %D%/comm_wait.c \
  %D%/ref/ref.h %D%/ref/memory.c %D%/ref/values.c %D%/ref/ranks.c %D%/ref/transformer.c %D%/ref/attention.c %D%/ref/certify.c %D%/ref/coded.c %D%/ref/codes.c %D%/ref/evict.c \
  %D%/ref/block.c %D%/ref/cluster.c %D%/ref/token.c %D%/ref/draw.c %D%/ref/select.c %D%/ref/quest.c %D%/ref/fier.c %D%/ref/kmeans.c %D%/ref/lsh.c %D%/ref/pq.c %D%/ref/tail.c %D%/ref/paris.c %D%/ref/tier.c %D%/ref/tier_file.c %D%/ref/tier_file.h %D%/ref/quant.c %D%/ref/rows.c %D%/ops_rows.h

# Ranks in other processes
if HAVE_MPI
engine_sources += %D%/comm_mpi.c
else
engine_sources += %D%/comm_mpi_none.c
endif

# CPU: files that split work over threads, then the kernels, compiled once per SIMD level
engine_sources += %D%/cpu/cpu.h %D%/cpu/cpu.c %D%/cpu/cpu_attn.c %D%/cpu/cpu_elementwise.c %D%/cpu/cpu_linear.c %D%/cpu/cpu_linear_tiles.c %D%/cpu/cpu_evict.c \
  %D%/cpu/cpu_common.c %D%/cpu/cpu_levels.c %D%/cpu/cpu_block.c %D%/cpu/cpu_cluster.c %D%/cpu/cpu_token.c %D%/cpu/cpu_certify.c %D%/cpu/cpu_coded.c %D%/cpu/cpu_codes.c \
  %D%/cpu/cpu_select.c %D%/cpu/votes.h %D%/cpu/votes.c %D%/cpu/cpu_quest.c %D%/cpu/cpu_fier.c %D%/cpu/cpu_kmeans.c %D%/cpu/cpu_lsh.c %D%/cpu/cpu_pq.c %D%/cpu/cpu_paris.c %D%/cpu/draw.c %D%/cpu/host.c %D%/host.h \
  %D%/cpu/level.h %D%/cpu/limits.h %D%/cpu/limits.c %D%/cpu/threads.h %D%/cpu/threads.c %D%/cpu/gemm.h
noinst_LIBRARIES += libkgemm.a
kernel_libs += libkgemm.a
libkgemm_a_CPPFLAGS = $(AM_CPPFLAGS) $(BLAS_CFLAGS)
if GEMM_ONEDNN
libkgemm_a_SOURCES = %D%/cpu/gemm_onednn.c
else
if GEMM_BLAS
libkgemm_a_SOURCES = %D%/cpu/gemm_blas.c
else
libkgemm_a_SOURCES = %D%/cpu/gemm_none.c
endif
endif
if HAVE_URING
engine_sources += %D%/base/reader_uring.c
else
engine_sources += %D%/base/reader_uring_none.c
endif
EXTRA_DIST += %D%/base/reader_uring.c %D%/base/reader_uring_none.c
EXTRA_DIST += %D%/cpu/gemm_onednn.c %D%/cpu/gemm_blas.c %D%/cpu/gemm_none.c
cpu_kernel_sources = %D%/cpu/k.h %D%/cpu/simd.h %D%/cpu/simd_generic.h %D%/cpu/simd_avx2.h %D%/cpu/simd_avx512.h %D%/cpu/simd_neon.h \
  %D%/cpu/k_table.c %D%/cpu/k_elementwise.c %D%/cpu/k_linear.c %D%/cpu/decode.h %D%/cpu/codes_avx2.h %D%/cpu/codes_vbmi.h %D%/cpu/k_decode.c %D%/cpu/k_decode_codes.c %D%/cpu/prefill.h %D%/cpu/k_prefill.c \
  %D%/cpu/k_evict.c %D%/cpu/k_quant.c %D%/cpu/k_linear_blocks.c %D%/cpu/simd_int8.h %D%/cpu/simd_pairs.h \
  %D%/cpu/rows.h %D%/cpu/k_rows.c %D%/cpu/k_block.c %D%/cpu/k_coded.c %D%/cpu/k_codes.c \
  %D%/cpu/dots.h %D%/cpu/k_select.c %D%/cpu/k_quest.c %D%/cpu/k_fier.c %D%/cpu/k_kmeans.c %D%/cpu/k_pq.c %D%/cpu/k_lsh.c %D%/cpu/simd_bits.h %D%/cpu/simd8.h %D%/cpu/simd8_vbmi.h %D%/cpu/k_paris.c %D%/cpu/k_draw.c
# The kernels that use tiles, compiled for the unit and emulated
cpu_tile_sources = %D%/cpu/tile.h %D%/cpu/tile_attend.h %D%/cpu/k_prefill_tiles.c %D%/cpu/k_decode_tiles.c %D%/cpu/k_linear_tiles.c %D%/cpu/k_table_tiles.c
noinst_LIBRARIES += libkcpu_generic.a
kernel_libs += libkcpu_generic.a
libkcpu_generic_a_SOURCES = $(cpu_kernel_sources) $(cpu_tile_sources)
libkcpu_generic_a_CPPFLAGS = $(AM_CPPFLAGS) -DCPU_LEVEL=0
if SIMD_AVX2
noinst_LIBRARIES += libkcpu_avx2.a
kernel_libs += libkcpu_avx2.a
libkcpu_avx2_a_SOURCES = $(cpu_kernel_sources)
libkcpu_avx2_a_CPPFLAGS = $(AM_CPPFLAGS) -DCPU_LEVEL=1
libkcpu_avx2_a_CFLAGS = $(AM_CFLAGS) $(AVX2_CFLAGS)
endif
if SIMD_AVX512
noinst_LIBRARIES += libkcpu_avx512.a
kernel_libs += libkcpu_avx512.a
libkcpu_avx512_a_SOURCES = $(cpu_kernel_sources)
libkcpu_avx512_a_CPPFLAGS = $(AM_CPPFLAGS) -DCPU_LEVEL=2
libkcpu_avx512_a_CFLAGS = $(AM_CFLAGS) $(AVX512_CFLAGS)
endif
if SIMD_AVX512_BF16
noinst_LIBRARIES += libkcpu_avx512_bf16.a
kernel_libs += libkcpu_avx512_bf16.a
libkcpu_avx512_bf16_a_SOURCES = $(cpu_kernel_sources)
libkcpu_avx512_bf16_a_CPPFLAGS = $(AM_CPPFLAGS) -DCPU_LEVEL=3
libkcpu_avx512_bf16_a_CFLAGS = $(AM_CFLAGS) $(AVX512BF16_CFLAGS)
endif
if SIMD_AMX
noinst_LIBRARIES += libkcpu_amx.a
kernel_libs += libkcpu_amx.a
libkcpu_amx_a_SOURCES = $(cpu_tile_sources)
libkcpu_amx_a_CPPFLAGS = $(AM_CPPFLAGS) -DCPU_LEVEL=3 -DTILE_UNIT
libkcpu_amx_a_CFLAGS = $(AM_CFLAGS) $(AVX512BF16_CFLAGS) $(AMX_CFLAGS)
endif
if SIMD_NEON
noinst_LIBRARIES += libkcpu_neon.a libkcpu_neon_dot.a
kernel_libs += libkcpu_neon.a libkcpu_neon_dot.a
libkcpu_neon_a_SOURCES = $(cpu_kernel_sources)
libkcpu_neon_a_CPPFLAGS = $(AM_CPPFLAGS) -DCPU_LEVEL=4
libkcpu_neon_a_CFLAGS = $(AM_CFLAGS) $(NEON_CFLAGS)
libkcpu_neon_dot_a_SOURCES = $(cpu_kernel_sources)
libkcpu_neon_dot_a_CPPFLAGS = $(AM_CPPFLAGS) -DCPU_LEVEL=5
libkcpu_neon_dot_a_CFLAGS = $(AM_CFLAGS) $(NEON_DOT_CFLAGS)
endif

# CUDA
noinst_LIBRARIES += libkcuda.a
kernel_libs += libkcuda.a
# gemm_lt.cu is replaced in host tests
cuda_shim_sources = \
  kernels/cuda/backend.cu \
  kernels/cuda/step.cu \
  kernels/cuda/library.cu \
  kernels/cuda/draw.cu \
  kernels/cuda/elementwise.cu \
  kernels/cuda/heads.cu \
  kernels/cuda/linear.cu \
  kernels/cuda/linear_few.cu \
  kernels/cuda/linear_blocks.cu \
  kernels/cuda/linear_blocks_mma.cu \
  kernels/cuda/attn_decode.cu \
  kernels/cuda/attn_decode_exact.cu \
  kernels/cuda/attn_decode_codes.cu \
  kernels/cuda/attn_decode_blocks.cu \
  kernels/cuda/attn_decode_near.cu \
  kernels/cuda/attn_prefill.cu \
  kernels/cuda/attn_prefill_mma.cu \
  kernels/cuda/codes.cu \
  kernels/cuda/near.cu \
  kernels/cuda/evict.cu \
  kernels/cuda/select.cu \
  kernels/cuda/select_wide.cu \
  kernels/cuda/mass.cu \
  kernels/cuda/quest.cu \
  kernels/cuda/fier.cu \
  kernels/cuda/kmeans.cu \
  kernels/cuda/pq.cu \
  kernels/cuda/tail.cu \
  kernels/cuda/coded.cu \
  kernels/cuda/paris.cu \
  kernels/cuda/lsh.cu \
  kernels/cuda/block.cu \
  kernels/cuda/cluster.cu \
  kernels/cuda/token.cu \
  kernels/cuda/ranks.cu \
  kernels/cuda/nccl.cu
# Kernels have the bits of plain C: fused multiply-add only where the source has fmaf.
nvcc_arithmetic = -fmad=false
cuda_sources = $(cuda_shim_sources) %D%/cuda/gemm_lt.cu
EXTRA_DIST += $(cuda_sources) %D%/cuda/cuda.cuh %D%/cuda/library.h %D%/cuda/dev.cuh %D%/cuda/ptx.cuh %D%/cuda/rows.cuh %D%/cuda/product.cuh %D%/cuda/norm.cuh %D%/cuda/scores.cuh %D%/cuda/choose.cuh %D%/cuda/groups.cuh %D%/cuda/last.cuh %D%/cuda/blocks.cuh %D%/cuda/attention.cuh %D%/cuda/attn_decode.cuh %D%/cuda/attn_span.cuh %D%/cuda/attn_blocks_mma.cuh %D%/cuda/attn_pieces.cuh %D%/cuda/codes.cuh %D%/cuda/row_blocks.cuh %D%/cuda/near.cuh %D%/cuda/nearest.cuh %D%/cuda/tiles.cuh %D%/cuda/radix.cuh %D%/cuda/votes.cuh %D%/cuda/README.md
if HAVE_CUDA
libkcuda_a_SOURCES = $(cuda_sources)
else
libkcuda_a_SOURCES = %D%/cuda/cuda_none.c
endif
NVCC_V = $(NVCC_V_@AM_V@)
NVCC_V_ = $(NVCC_V_@AM_DEFAULT_V@)
NVCC_V_0 = @echo "  NVCC     $@";
.cu.o:
	@$(MKDIR_P) $(@D)/$(DEPDIR)
	$(NVCC_V)$(NVCC) -ccbin "$(NVCC_CCBIN)" -std=c++17 $(nvcc_arithmetic) $(NVCC_GENCODE) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) $(NVCCFLAGS) \
	  -Xcompiler -Wall $(foreach f,$(PIC_FLAGS),-Xcompiler $f) -MD -MP -MT $@ -MF $(@D)/$(DEPDIR)/$(*F).Pcu -c -o $@ $<
-include $(wildcard kernels/cuda/$(DEPDIR)/*.Pcu)
distclean-local:
	-rm -rf kernels/cuda/$(DEPDIR)
