# SPDX-License-Identifier: MIT
# The page, with the names of all strategies, as a list of bytes, which page.c includes.
EXTRA_DIST += %D%/page.html
CLEANFILES += %D%/page.inc
%D%/page.$(OBJEXT): %D%/page.inc
%D%/page.inc: %D%/page.html attention/strategies.c
	@mkdir -p %D%
	$(AM_V_GEN)names=`sed -n 's:^    X(\([a-z0-9]*\)).*:<option value="\1">:p' $(srcdir)/attention/strategies.c | tr -d '\n'`; \
	sed "s:<!--strategies-->:$$names:" $(srcdir)/%D%/page.html | od -An -v -tu1 | sed 's/[0-9][0-9]*/&,/g' >$@.tmp && mv $@.tmp $@
