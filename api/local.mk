# SPDX-License-Identifier: MIT
# The library: the objects of the program with one header. Only names of kvasir.h are exported (libkvasir.map).
# Increment api_current with an incompatible change.
noinst_LIBRARIES += libapi.a
libapi_a_SOURCES = %D%/kvasir.h %D%/impl.h %D%/load.c %D%/text.c %D%/sessions.c %D%/logits.c %D%/feed.c %D%/selection.c
include_HEADERS = %D%/kvasir.h
# Manual pages: one of the whole header, and a link to it for each function.
man3_functions := $(shell sed -n 's/^KVASIR_API [a-z0-9_ ]*[ *]\(kvasir_[a-z_]*\)[^a-z_].*/\1/p' $(srcdir)/%D%/kvasir.h)
man3_links = $(man3_functions:%=man3/%.3)
man3_MANS = man3/kvasir.3 $(man3_links)
CLEANFILES += $(man3_MANS)
man3/kvasir.3: %D%/kvasir.h %D%/man3.awk
	@mkdir -p man3
	$(AM_V_GEN)$(AWK) -v version=$(PACKAGE_VERSION) -f $(srcdir)/%D%/man3.awk \
	  $(srcdir)/%D%/kvasir.h >$@.tmp && mv $@.tmp $@
$(man3_links): man3/kvasir.3
	@echo '.so man3/kvasir.3' >$@
EXTRA_DIST += %D%/libkvasir.map %D%/man3.awk examples/complete.c examples/compare.cc pyproject.toml setup.py \
  $(wildcard $(srcdir)/python/kvasir/*.py $(srcdir)/python/tests/*.py)
EXTRA_DIST += %D%/wait/before.c
noinst_LIBRARIES += libwait.a
libwait_a_SOURCES = %D%/wait/wait.h %D%/wait/after.c
api_current = 0
libkvasir_name = libkvasir.so.$(api_current)
libkvasir_file = libkvasir.so.$(PACKAGE_VERSION)
# libkvasir finds libkvasir-wait in its own folder. Debian's build sets this to nothing.
libkvasir_runpath = -Wl,-rpath,'$$ORIGIN'
libwait_file = libkvasir-wait.so.$(api_current)
if SHARED
libkvasirdir = $(libdir)
libkvasir_DATA = $(libkvasir_file) $(libwait_file)
pkgconfigdir = $(libdir)/pkgconfig
pkgconfig_DATA = kvasir.pc
CLEANFILES += $(libkvasir_file) $(libwait_file)
engine_archives = libengine.a $(kernel_libs) libspm.a
# Built without OpenMP and sanitizers: its dependencies would be initialized before it.
$(libwait_file): %D%/wait/before.c %D%/wait/wait.h kernels/base/spin.c kernels/base/spin.h
	$(AM_V_CCLD)$(CC) $(DEFS) -I$(top_srcdir) -I$(top_builddir) $(CPPFLAGS) -std=c11 $(WARN_CFLAGS) $(CFLAGS) -fPIC -fvisibility=hidden \
	  $(LDFLAGS) -shared -o $@ -Wl,-soname,$@ $(filter %.c,$^)
# The dynamic linker initializes independent libraries in reverse order: OpenMP's is named before libkvasir-wait.
openmp_lib = $(if $(OPENMP_CFLAGS),$(if $(findstring clang,$(CC)),-lomp,-lgomp))
$(libkvasir_file): libapi.a $(engine_archives) libwait.a $(libwait_file) $(srcdir)/%D%/libkvasir.map
	$(AM_V_CXXLD)$(CXX) $(AM_CXXFLAGS) $(CXXFLAGS) $(AM_LDFLAGS) $(LDFLAGS) -shared -o $@ \
	  -Wl,-soname,$(libkvasir_name) -Wl,--version-script=$(srcdir)/%D%/libkvasir.map -Wl,--no-undefined \
	  $(libkvasir_runpath) -Wl,--whole-archive libapi.a libwait.a -Wl,--no-whole-archive $(link_libs) $(LIBS) -Wl,--no-as-needed $(openmp_lib) $(libwait_file)
install-data-hook:
	cd "$(DESTDIR)$(libdir)" && ln -sf $(libkvasir_file) $(libkvasir_name) && ln -sf $(libkvasir_name) libkvasir.so
uninstall-hook:
	cd "$(DESTDIR)$(libdir)" && rm -f $(libkvasir_name) libkvasir.so
endif
