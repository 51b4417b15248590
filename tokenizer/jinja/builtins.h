/* SPDX-License-Identifier: MIT */
/* Filters on sequences, for the table of filters. */
#ifndef TOKENIZER_JINJA_BUILTINS_H
#define TOKENIZER_JINJA_BUILTINS_H

#include "tokenizer/jinja/impl.h"

status filter_dictsort(jctx *c, const jcall *call, jvalue *out);
status filter_extreme(jctx *c, const jcall *call, jvalue *out); /* max, min */
status filter_first(jctx *c, const jcall *call, jvalue *out);
status filter_items(jctx *c, const jcall *call, jvalue *out);
status filter_join(jctx *c, const jcall *call, jvalue *out);
status filter_last(jctx *c, const jcall *call, jvalue *out);
status filter_length(jctx *c, const jcall *call, jvalue *out);
status filter_list(jctx *c, const jcall *call, jvalue *out);
status filter_map(jctx *c, const jcall *call, jvalue *out);
status filter_reverse(jctx *c, const jcall *call, jvalue *out);
status filter_select(jctx *c, const jcall *call, jvalue *out); /* select, reject, selectattr, rejectattr */
status filter_sort(jctx *c, const jcall *call, jvalue *out);
status filter_sum(jctx *c, const jcall *call, jvalue *out);
status filter_unique(jctx *c, const jcall *call, jvalue *out);

#endif
