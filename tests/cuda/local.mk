# SPDX-License-Identifier: MIT
# Tests of the cuda backend. The same sources run on the host's shim, in its race build, and on a device.
cuda_tests =
staged_sources = %D%/staged.h %D%/staged.c
if CUSHIM
cuda_tests += \
  %D%/test_draw \
  %D%/test_graph \
  %D%/test_tier_host \
  %D%/test_near \
  %D%/test_ops \
  %D%/test_attn \
  %D%/test_parity \
  %D%/test_device \
  %D%/test_faults \
  %D%/test_select \
  %D%/test_quest \
  %D%/test_fier \
  %D%/test_groups \
  %D%/test_paris_ops \
  %D%/test_evict_ops \
  %D%/test_codes \
  %D%/test_block_ops
%C%_test_draw_SOURCES = %D%/test_draw.c %D%/cuda_util.h
%C%_test_draw_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_draw_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_draw_SOURCES = link-as-cxx.cc
%C%_test_graph_SOURCES = %D%/test_graph.c tests/unit/session_util.h
%C%_test_graph_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_graph_SOURCES = link-as-cxx.cc
%C%_test_tier_host_SOURCES = %D%/test_tier_host.c tests/unit/session_util.h
%C%_test_tier_host_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_tier_host_SOURCES = link-as-cxx.cc
%C%_test_near_SOURCES = %D%/test_near.c %D%/cuda_util.h
%C%_test_near_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_near_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_near_SOURCES = link-as-cxx.cc
%C%_test_ops_SOURCES = %D%/test_ops.c %D%/cuda_util.h
%C%_test_ops_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_ops_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_ops_SOURCES = link-as-cxx.cc
%C%_test_attn_SOURCES = %D%/test_attn.c %D%/cuda_util.h tests/unit/attn_call.h
%C%_test_attn_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_attn_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_attn_SOURCES = link-as-cxx.cc
%C%_test_parity_SOURCES = tests/unit/test_parity.c
%C%_test_parity_CPPFLAGS = $(AM_CPPFLAGS) -DPARITY_CUDA
%C%_test_parity_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_parity_SOURCES = link-as-cxx.cc
%C%_test_device_SOURCES = %D%/test_device.c
%C%_test_device_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_device_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_device_SOURCES = link-as-cxx.cc
%C%_test_faults_SOURCES = %D%/test_faults.c
%C%_test_faults_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_faults_SOURCES = link-as-cxx.cc
%C%_test_select_SOURCES = tests/unit/test_select.c $(staged_sources)
%C%_test_select_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_select_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_select_SOURCES = link-as-cxx.cc
%C%_test_quest_SOURCES = tests/unit/test_quest.c $(staged_sources)
%C%_test_quest_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_quest_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_quest_SOURCES = link-as-cxx.cc
%C%_test_fier_SOURCES = tests/unit/test_fier.c $(staged_sources)
%C%_test_fier_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_fier_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_fier_SOURCES = link-as-cxx.cc
%C%_test_groups_SOURCES = tests/unit/test_groups.c $(staged_sources)
%C%_test_groups_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_groups_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_groups_SOURCES = link-as-cxx.cc
%C%_test_paris_ops_SOURCES = tests/unit/test_paris_ops.c $(staged_sources)
%C%_test_paris_ops_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_paris_ops_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_paris_ops_SOURCES = link-as-cxx.cc
%C%_test_evict_ops_SOURCES = tests/unit/test_evict_ops.c $(staged_sources)
%C%_test_evict_ops_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_evict_ops_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_evict_ops_SOURCES = link-as-cxx.cc
%C%_test_codes_SOURCES = tests/unit/test_codes.c $(staged_sources)
%C%_test_codes_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_codes_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_codes_SOURCES = link-as-cxx.cc
%C%_test_block_ops_SOURCES = tests/unit/test_block_ops.c $(staged_sources)
%C%_test_block_ops_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM -DCUDA_STAGED
%C%_test_block_ops_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_block_ops_SOURCES = link-as-cxx.cc
# Whole strategies beside their ops take long where a sanitizer looks on. What drops tokens runs in test_batch and tests/cli/cuda.t.
if CURACE
cuda_tests += \
  %D%/test_batch \
  %D%/test_pariskv \
  %D%/test_actqkv \
  %D%/test_quantized \
  tests/cushim/test_shim \
  %D%/test_draw_race \
  %D%/test_near_race \
  %D%/test_ops_race \
  %D%/test_attn_race \
  %D%/test_select_race \
  %D%/test_fier_race \
  %D%/test_quest_race \
  %D%/test_groups_race \
  %D%/test_paris_ops_race \
  %D%/test_evict_ops_race \
  %D%/test_codes_race \
  %D%/test_block_ops_race
%C%_test_batch_SOURCES = tests/unit/test_batch.c tests/unit/session_util.h
%C%_test_batch_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_batch_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_batch_SOURCES = link-as-cxx.cc
%C%_test_pariskv_SOURCES = tests/unit/test_pariskv.c
%C%_test_pariskv_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_pariskv_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_pariskv_SOURCES = link-as-cxx.cc
%C%_test_actqkv_SOURCES = tests/unit/test_actqkv.c
%C%_test_actqkv_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_actqkv_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_actqkv_SOURCES = link-as-cxx.cc
%C%_test_quantized_SOURCES = tests/unit/test_quantized.c
%C%_test_quantized_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_quantized_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_quantized_SOURCES = link-as-cxx.cc
tests_cushim_test_shim_SOURCES = tests/cushim/test_shim.cc
tests_cushim_test_shim_CPPFLAGS = $(cushim_cppflags)
tests_cushim_test_shim_CXXFLAGS = $(race_cxxflags) $(CXXFLAGS) -O1
tests_cushim_test_shim_LDADD = $(race_libs)
%C%_test_draw_race_SOURCES = %D%/test_draw.c
%C%_test_draw_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_draw_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_draw_race_SOURCES = link-as-cxx.cc
%C%_test_near_race_SOURCES = %D%/test_near.c
%C%_test_near_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_near_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_near_race_SOURCES = link-as-cxx.cc
%C%_test_ops_race_SOURCES = %D%/test_ops.c
%C%_test_ops_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_ops_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_ops_race_SOURCES = link-as-cxx.cc
%C%_test_attn_race_SOURCES = %D%/test_attn.c
%C%_test_attn_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_attn_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_attn_race_SOURCES = link-as-cxx.cc
%C%_test_select_race_SOURCES = tests/unit/test_select.c
%C%_test_select_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_select_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_select_race_SOURCES = link-as-cxx.cc
%C%_test_fier_race_SOURCES = tests/unit/test_fier.c
%C%_test_fier_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_fier_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_fier_race_SOURCES = link-as-cxx.cc
%C%_test_quest_race_SOURCES = tests/unit/test_quest.c
%C%_test_quest_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_quest_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_quest_race_SOURCES = link-as-cxx.cc
%C%_test_groups_race_SOURCES = tests/unit/test_groups.c
%C%_test_groups_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_groups_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_groups_race_SOURCES = link-as-cxx.cc
%C%_test_paris_ops_race_SOURCES = tests/unit/test_paris_ops.c
%C%_test_paris_ops_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_paris_ops_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_paris_ops_race_SOURCES = link-as-cxx.cc
%C%_test_evict_ops_race_SOURCES = tests/unit/test_evict_ops.c
%C%_test_evict_ops_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_evict_ops_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_evict_ops_race_SOURCES = link-as-cxx.cc
%C%_test_codes_race_SOURCES = tests/unit/test_codes.c
%C%_test_codes_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_codes_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_codes_race_SOURCES = link-as-cxx.cc
%C%_test_block_ops_race_SOURCES = tests/unit/test_block_ops.c
%C%_test_block_ops_race_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_block_ops_race_LDADD = $(race_libs)
nodist_EXTRA_%C%_test_block_ops_race_SOURCES = link-as-cxx.cc
endif
# the program itself on the shim, for the command line
check_PROGRAMS += %D%/run_shim
%C%_run_shim_SOURCES = run.c
%C%_run_shim_LDADD = $(shim_libs)
%C%_run_shim_LDFLAGS = $(AM_LDFLAGS) -rdynamic
nodist_EXTRA_%C%_run_shim_SOURCES = link-as-cxx.cc
EXTRA_DIST += %D%/fake_nccl.cc
# NCCL for it, in a folder of its own, and calls the shim's runtime in the program that opens it
check_DATA = %D%/nccl/libnccl.so.2
%D%/nccl/libnccl.so.2: %D%/fake_nccl.cc $(cushim_headers)
	@$(MKDIR_P) $(@D)
	$(AM_V_CXX)$(cushim_compile) $(cushim_cxxflags) $(SAN_FLAGS) $(CXXFLAGS) -fPIC -shared $(LDFLAGS) -o $@ $(top_srcdir)/%D%/fake_nccl.cc -lrt
mostlyclean-local: clean-fake-nccl
clean-fake-nccl:
	-rm -rf %D%/nccl
endif
if HAVE_CUDA
device_tests = \
  %D%/device_draw \
  %D%/device_near \
  %D%/device_ops \
  %D%/device_attn \
  %D%/device_parity \
  %D%/device_select \
  %D%/device_quest \
  %D%/device_fier \
  %D%/device_groups \
  %D%/device_paris_ops \
  %D%/device_evict_ops \
  %D%/device_codes \
  %D%/device_block_ops \
  %D%/device_faults
cuda_tests += $(device_tests)
%C%_device_draw_SOURCES = %D%/test_draw.c
nodist_EXTRA_%C%_device_draw_SOURCES = link-as-cxx.cc
%C%_device_near_SOURCES = %D%/test_near.c
nodist_EXTRA_%C%_device_near_SOURCES = link-as-cxx.cc
%C%_device_ops_SOURCES = %D%/test_ops.c
nodist_EXTRA_%C%_device_ops_SOURCES = link-as-cxx.cc
%C%_device_attn_SOURCES = %D%/test_attn.c
nodist_EXTRA_%C%_device_attn_SOURCES = link-as-cxx.cc
%C%_device_parity_SOURCES = tests/unit/test_parity.c
%C%_device_parity_CPPFLAGS = $(AM_CPPFLAGS) -DPARITY_CUDA
nodist_EXTRA_%C%_device_parity_SOURCES = link-as-cxx.cc
%C%_device_select_SOURCES = tests/unit/test_select.c $(staged_sources)
%C%_device_select_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_select_SOURCES = link-as-cxx.cc
%C%_device_quest_SOURCES = tests/unit/test_quest.c $(staged_sources)
%C%_device_quest_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_quest_SOURCES = link-as-cxx.cc
%C%_device_fier_SOURCES = tests/unit/test_fier.c $(staged_sources)
%C%_device_fier_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_fier_SOURCES = link-as-cxx.cc
%C%_device_groups_SOURCES = tests/unit/test_groups.c $(staged_sources)
%C%_device_groups_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_groups_SOURCES = link-as-cxx.cc
%C%_device_paris_ops_SOURCES = tests/unit/test_paris_ops.c $(staged_sources)
%C%_device_paris_ops_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_paris_ops_SOURCES = link-as-cxx.cc
%C%_device_evict_ops_SOURCES = tests/unit/test_evict_ops.c $(staged_sources)
%C%_device_evict_ops_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_evict_ops_SOURCES = link-as-cxx.cc
%C%_device_codes_SOURCES = tests/unit/test_codes.c $(staged_sources)
%C%_device_codes_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_codes_SOURCES = link-as-cxx.cc
%C%_device_block_ops_SOURCES = tests/unit/test_block_ops.c $(staged_sources)
%C%_device_block_ops_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_STAGED
nodist_EXTRA_%C%_device_block_ops_SOURCES = link-as-cxx.cc
%C%_device_faults_SOURCES = %D%/test_device.c
nodist_EXTRA_%C%_device_faults_SOURCES = link-as-cxx.cc
endif
device-tests: $(device_tests)
.PHONY: device-tests
unit_tests += $(cuda_tests)
