# SPDX-License-Identifier: MIT
# Every source and data file below this folder: autogen.sh lists them, and make has it do so again once one came or went.
include eval/files.mk
engine_sources += $(eval_sources)
nobase_dist_pkgdata_DATA = $(eval_data)
eval_sources_now = $(patsubst $(srcdir)/%,%,$(wildcard $(srcdir)/eval/*.[ch] $(srcdir)/eval/*/*.[ch]))
$(srcdir)/eval/files.mk: $(if $(filter-out $(eval_sources),$(eval_sources_now))$(filter-out $(eval_sources_now),$(eval_sources)),list-eval)
	cd $(srcdir) && ./autogen.sh lists
list-eval:
.PHONY: list-eval
# The page as a list of bytes, which page.c includes.
EXTRA_DIST += %D%/lens/page.html
CLEANFILES += %D%/lens/page.inc
%D%/lens/page.$(OBJEXT): %D%/lens/page.inc
%D%/lens/page.inc: %D%/lens/page.html
	@mkdir -p %D%/lens
	$(AM_V_GEN)od -An -v -tu1 $(srcdir)/%D%/lens/page.html | sed 's/[0-9][0-9]*/&,/g' >$@.tmp && mv $@.tmp $@
