# SPDX-License-Identifier: MIT
# Tests of the cuda backend. The same sources run on the host's shim, in its race build, and on a device.
cuda_tests =
if CUSHIM
cuda_tests += %D%/test_ops %D%/test_attn %D%/test_parity %D%/test_faults %D%/test_select %D%/test_quest %D%/test_fier
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
%C%_test_faults_SOURCES = %D%/test_faults.c
%C%_test_faults_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_faults_SOURCES = link-as-cxx.cc
%C%_test_select_SOURCES = tests/unit/test_select.c
%C%_test_select_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_select_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_select_SOURCES = link-as-cxx.cc
%C%_test_quest_SOURCES = tests/unit/test_quest.c
%C%_test_quest_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_quest_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_quest_SOURCES = link-as-cxx.cc
%C%_test_fier_SOURCES = tests/unit/test_fier.c
%C%_test_fier_CPPFLAGS = $(AM_CPPFLAGS) -DCUDA_SHIM
%C%_test_fier_LDADD = $(shim_libs)
nodist_EXTRA_%C%_test_fier_SOURCES = link-as-cxx.cc
if CURACE
cuda_tests += tests/cushim/test_shim %D%/test_ops_race %D%/test_attn_race %D%/test_select_race %D%/test_fier_race
tests_cushim_test_shim_SOURCES = tests/cushim/test_shim.cc
tests_cushim_test_shim_CPPFLAGS = $(cushim_cppflags)
tests_cushim_test_shim_CXXFLAGS = $(race_cxxflags) $(CXXFLAGS) -O1
tests_cushim_test_shim_LDADD = $(race_libs)
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
endif
# the program itself on the shim, for the command line
check_PROGRAMS += %D%/run_shim
%C%_run_shim_SOURCES = run.c
%C%_run_shim_LDADD = $(shim_libs)
nodist_EXTRA_%C%_run_shim_SOURCES = link-as-cxx.cc
endif
if HAVE_CUDA
cuda_tests += %D%/device_ops %D%/device_attn %D%/device_parity
%C%_device_ops_SOURCES = %D%/test_ops.c
nodist_EXTRA_%C%_device_ops_SOURCES = link-as-cxx.cc
%C%_device_attn_SOURCES = %D%/test_attn.c
nodist_EXTRA_%C%_device_attn_SOURCES = link-as-cxx.cc
%C%_device_parity_SOURCES = tests/unit/test_parity.c
%C%_device_parity_CPPFLAGS = $(AM_CPPFLAGS) -DPARITY_CUDA
nodist_EXTRA_%C%_device_parity_SOURCES = link-as-cxx.cc
endif
unit_tests += $(cuda_tests)
