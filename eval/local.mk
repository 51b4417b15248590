# SPDX-License-Identifier: MIT
nobase_dist_pkgdata_DATA = $(eval_data)
# The dictionary is compressed in the repository; a release contains it unpacked.
dictionary = $(srcdir)/%D%/jieba/dict.txt
EXTRA_run_DEPENDENCIES = $(dictionary)
MAINTAINERCLEANFILES = $(dictionary)
$(dictionary): $(wildcard $(srcdir)/%D%/jieba/dict.txt.xz)
	$(AM_V_GEN)xz -dc $< >$@.tmp && mv $@.tmp $@ || { rm -f $@.tmp; echo "$@: cannot unpack $<; install xz-utils" >&2; exit 1; }
