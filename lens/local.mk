# SPDX-License-Identifier: MIT
# The page: page.html with its included parts and the names of all strategies, as a list of bytes that page.c includes.
page_parts = page.html page.css page_base.js page_lens.js page_chat.js page_test.js page_main.js
EXTRA_DIST += $(page_parts:%=%D%/%)
CLEANFILES += %D%/page.inc
%D%/page.$(OBJEXT): %D%/page.inc
%D%/page.inc: $(page_parts:%=%D%/%) attention/strategies.c
	@mkdir -p %D%
	$(AM_V_GEN)names=`sed -n 's:^    X(\([a-z0-9]*\)).*:<option value="\1">:p' $(srcdir)/attention/strategies.c | tr -d '\n'`; \
	awk -v dir=$(srcdir)/%D%/ '$$1 != "@include" { print; next } { while ((getline line <(dir $$2)) > 0) print line }' \
	  $(srcdir)/%D%/page.html | \
	sed "s:<!--strategies-->:$$names:" | od -An -v -tu1 | sed 's/[0-9][0-9]*/&,/g' >$@.tmp && mv $@.tmp $@
