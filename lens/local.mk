# SPDX-License-Identifier: MIT
# The page as a list of bytes, which page.c includes.
EXTRA_DIST += %D%/page.html
CLEANFILES += %D%/page.inc
%D%/page.$(OBJEXT): %D%/page.inc
%D%/page.inc: %D%/page.html
	@mkdir -p %D%
	$(AM_V_GEN)od -An -v -tu1 $(srcdir)/%D%/page.html | sed 's/[0-9][0-9]*/&,/g' >$@.tmp && mv $@.tmp $@
