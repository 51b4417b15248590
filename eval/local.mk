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
