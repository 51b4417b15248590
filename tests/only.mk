# SPDX-License-Identifier: MIT
# `make check TESTS=...` builds the programs of these tests only. GNU make reads this file after Automake's rules, so that
# the lists are passed on. Scripts that run the CUDA backend on the host need the program tests/cuda/run_shim.
ifeq ($(origin TESTS),command line)
ifneq ($(origin check_PROGRAMS),command line)
only_scripts := $(wildcard $(addprefix $(srcdir)/,$(filter %.t,$(TESTS))))
only_shim := $(if $(only_scripts),$(shell grep -ls -e run_shim -e libnccl $(only_scripts)))
check_PROGRAMS := $(filter $(addsuffix $(EXEEXT),$(filter-out %.t,$(TESTS))) $(if $(only_shim),tests/cuda/run_shim$(EXEEXT)),$(check_PROGRAMS))
check_LIBRARIES :=
check_DATA := $(if $(only_shim),$(check_DATA))
AM_MAKEFLAGS := check_PROGRAMS="$(check_PROGRAMS)" check_LIBRARIES= check_DATA="$(check_DATA)"
endif
endif
