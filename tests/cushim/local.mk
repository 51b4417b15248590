# SPDX-License-Identifier: MIT
# CUDA kernels compiled for the host: the plain build, and one that finds races (-fsanitize=thread only marks accesses;
# races.cc answers). Programs of these tests link one of the two before libkcuda.a, which then has nothing to add.
cushim_headers = %D%/shim.h %D%/device_like.h %D%/races.h %D%/cuda_runtime.h %D%/cuda_fp16.h %D%/cuda_bf16.h %D%/ptx.h %D%/nccl.h
EXTRA_DIST += $(cushim_headers)
if CUSHIM
# make EMULATED=1: with a device's arithmetic (device_like.h), fused as nvcc_arithmetic allows it (kernels/local.mk)
shim_arithmetic = $(if $(EMULATED),-DSHIM_EMULATED $(if $(filter -fmad=false,$(nvcc_arithmetic)),-ffp-contract=off,-mfma -ffp-contract=fast),-ffp-contract=off)
cushim_sources = %D%/fibers.cc %D%/runtime.cc %D%/gemm.cc
cushim_cppflags = -I$(top_srcdir)/%D% -DHAVE_NCCL=1 $(AM_CPPFLAGS)
cushim_cxxflags = -std=c++17 -Wall -Wextra -Wno-unknown-pragmas -Wno-unused-function -fno-strict-aliasing $(shim_arithmetic)
race_cxxflags = $(cushim_cxxflags) -fsanitize=thread
shim_objects = $(cuda_shim_sources:.cu=.shim.o)
race_objects = $(cuda_shim_sources:.cu=.race.o)
check_LIBRARIES = libcushim.a
libcushim_a_SOURCES = $(cushim_sources) %D%/no_races.cc
libcushim_a_CPPFLAGS = $(cushim_cppflags)
libcushim_a_CXXFLAGS = $(cushim_cxxflags) $(SAN_FLAGS) $(CXXFLAGS)
libcushim_a_LIBADD = $(shim_objects)
cushim_compile = $(CXX) $(DEFS) $(DEFAULT_INCLUDES) $(cushim_cppflags) $(CPPFLAGS)
kernels/cuda/%.shim.o: kernels/cuda/%.cu
	@$(MKDIR_P) $(@D)/$(DEPDIR)
	$(AM_V_CXX)$(cushim_compile) $(cushim_cxxflags) $(SAN_FLAGS) $(CXXFLAGS) -MD -MP -MT $@ -MF $(@D)/$(DEPDIR)/$(*F).shim.Pcu -x c++ -c -o $@ $<
kernels/cuda/%.race.o: kernels/cuda/%.cu
	@$(MKDIR_P) $(@D)/$(DEPDIR)
	$(AM_V_CXX)$(cushim_compile) $(race_cxxflags) $(CXXFLAGS) -O1 -MD -MP -MT $@ -MF $(@D)/$(DEPDIR)/$(*F).race.Pcu -x c++ -c -o $@ $<
mostlyclean-local:
	-rm -f $(shim_objects) $(race_objects)
shim_libs = libtap.a libapi.a libengine.a libcushim.a $(link_libs)
if CURACE
check_LIBRARIES += libcurace.a
libcurace_a_SOURCES = $(cushim_sources) %D%/races.cc
libcurace_a_CPPFLAGS = $(cushim_cppflags)
libcurace_a_CXXFLAGS = $(cushim_cxxflags) $(SAN_FLAGS) $(CXXFLAGS)
libcurace_a_LIBADD = $(race_objects)
race_libs = libtap.a libengine.a libcurace.a $(link_libs)
endif
endif
