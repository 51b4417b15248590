# SPDX-License-Identifier: MIT
# Tests of the cuda backend: the same sources run on the host's shim, in its race build, and on a device (tests/list.sh).
if CUSHIM
if CURACE
race_tests += tests/cushim/test_shim
tests_cushim_test_shim_SOURCES = tests/cushim/test_shim.cc
tests_cushim_test_shim_CPPFLAGS = $(cushim_cppflags)
tests_cushim_test_shim_CXXFLAGS = $(race_cxxflags) $(CXXFLAGS) -O1
tests_cushim_test_shim_LDADD = $(race_libs)
endif
# the program itself on the shim, for the command line
check_PROGRAMS += %D%/run_shim
%C%_run_shim_SOURCES = run.c
%C%_run_shim_LDADD = $(shim_libs)
%C%_run_shim_LDFLAGS = $(AM_LDFLAGS) -rdynamic
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
# The device tests as one program; tests/cuda/device_NAME is a link to it.
EXTRA_DIST += %D%/devices.c
if HAVE_CUDA
check_PROGRAMS += %D%/devices
%C%_devices_SOURCES = %D%/devices.c
%C%_devices_CPPFLAGS = $(AM_CPPFLAGS) '-DDEVICE_TESTS=$(device_table)'
%C%_devices_LDADD = $(device_tests:=.o) $(LDADD)
check_SCRIPTS = $(device_tests)
device_compile = $(CC) $(DEFS) $(DEFAULT_INCLUDES) $(AM_CPPFLAGS) $(CPPFLAGS) $(AM_CFLAGS) -Wno-missing-prototypes $(CFLAGS) -DCUDA_DEVICE \
  -Dmain=$(basename $(@F))_main -MD -MP -MT $@ -MF $(@D)/$(DEPDIR)/$(basename $(@F)).Po -c -o $@ $<
$(device_tests): %D%/devices
	@cd $(@D) && rm -f $(@F) && $(LN_S) devices $(@F)
mostlyclean-local: clean-devices
clean-devices:
	-rm -f $(device_tests) $(device_tests:=.o)
endif
