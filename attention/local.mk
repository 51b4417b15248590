# SPDX-License-Identifier: MIT
# Every source file of this folder: autogen.sh lists them, and make has it do so again once one came or went.
include attention/files.mk
engine_sources += $(attention_sources)
attention_sources_now = $(patsubst $(srcdir)/%,%,$(wildcard $(srcdir)/attention/*.[ch]))
$(srcdir)/attention/files.mk: $(if $(filter-out $(attention_sources),$(attention_sources_now))$(filter-out $(attention_sources_now),$(attention_sources)),list-attention)
	cd $(srcdir) && ./autogen.sh lists
list-attention:
.PHONY: list-attention
EXTRA_DIST += %D%/README.md
