# SPDX-License-Identifier: MIT
# Tests run in parallel: threads that wait by spinning would take the cores of those that work.
AM_TESTS_ENVIRONMENT = LC_ALL=C.UTF-8; export LC_ALL; OMP_WAIT_POLICY=passive; export OMP_WAIT_POLICY; SRCDIR='$(abs_top_srcdir)'; export SRCDIR; \
  RUN='$(abs_top_builddir)/run$(EXEEXT)'; export RUN;
TAP_DRIVER = env AM_TAP_AWK='$(AWK)' $(SHELL) $(top_srcdir)/build-aux/tap-driver.sh
TEST_EXTENSIONS = .t
LOG_DRIVER = $(TAP_DRIVER)
T_LOG_DRIVER = $(TAP_DRIVER)
T_LOG_COMPILER = $(SHELL)
LDADD = libtap.a $(link_libs)
noinst_LIBRARIES += libtap.a
libtap_a_SOURCES = %D%/tap.c %D%/tap.h
if ENABLE_FUZZ
fuzz_ldflags = $(AM_LDFLAGS) -fsanitize=fuzzer
fuzz_tests =
else
# Whoever has no main of its own is a fuzz target.
libtap_a_SOURCES += %D%/fuzz/replay.c
fuzz_ldflags = $(AM_LDFLAGS)
fuzz_tests = $(fuzz_targets)
endif
unit_tests =
slow_cli_tests =
cli_tests =
fuzz_targets =
shim_tests =
race_tests =
device_tests =
include tests/cushim/local.mk
include tests/cuda/local.mk
include tests/list.mk
# The list is rewritten if a test was added or removed; otherwise it is not touched.
$(srcdir)/tests/list.mk: look-for-tests
	@cd $(srcdir) && $(SHELL) tests/list.sh
compiled_tests = $(unit_tests) $(shim_tests) $(race_tests)
check_PROGRAMS += $(compiled_tests) $(fuzz_targets)
TESTS = $(slow_cli_tests) $(compiled_tests) $(device_tests) $(fuzz_tests) $(cli_tests)
EXTRA_DIST += $(slow_cli_tests) $(cli_tests) %D%/ci.txt %D%/list.sh %D%/only.mk %D%/data $(wildcard $(srcdir)/tests/clients/*.py) %D%/fuzz/corpus %D%/fuzz/ignore.txt %D%/fuzz/replay.c
-include $(srcdir)/%D%/only.mk
list-tests:
	@echo $(TESTS)
device-tests: $(device_tests)
.PHONY: list-tests look-for-tests device-tests
