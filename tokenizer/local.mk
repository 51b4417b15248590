# SPDX-License-Identifier: MIT
engine_sources += %D%/tokenizer.c %D%/tokenizer.h %D%/impl.h %D%/encode.c %D%/decode.c %D%/chat.c %D%/chat.h %D%/chat_set.c %D%/chat_set.h %D%/chat_builtin.c \
  %D%/call_format.c %D%/call_format.h %D%/call_json.c %D%/call_json.h %D%/call_tags.c %D%/call_tags.h %D%/call_parse.c %D%/call_parse.h %D%/call_state.h %D%/call_step.c %D%/call_reply.c %D%/call_reply.h %D%/call_support.c %D%/call_support.h \
  %D%/settings.c %D%/added.c %D%/added.h %D%/chars.c %D%/chars.h %D%/normalize.c %D%/normalize.h \
  %D%/pretokenize.c %D%/pretokenize.h %D%/bpe.c %D%/bpe.h %D%/bpe_json.c %D%/gguf_pre.c %D%/gguf_tokens.c %D%/gguf_tokens.h %D%/json_parts.c \
  %D%/token_list.c %D%/tiktoken.c %D%/spm_model.c %D%/spm.h %D%/stop_text.c %D%/stop_text.h \
  %D%/jinja/jinja.c %D%/jinja/jinja.h %D%/jinja/impl.h %D%/jinja/builtins.h %D%/jinja/parser.h %D%/jinja/lexer.c \
  %D%/jinja/parser.c %D%/jinja/statements.c %D%/jinja/value.c %D%/jinja/marked.c %D%/jinja/print.c %D%/jinja/operators.c \
  %D%/jinja/eval.c %D%/jinja/exec.c %D%/jinja/filters.c %D%/jinja/sequences.c %D%/jinja/tests.c %D%/jinja/methods.c \
  %D%/jinja/functions.c %D%/jinja/formatting.c %D%/jinja/percent.c %D%/jinja/state.c %D%/jinja/call.c
noinst_LIBRARIES += libspm.a
if HAVE_SPM
libspm_a_SOURCES = %D%/spm.cc
libspm_a_CPPFLAGS = $(AM_CPPFLAGS) $(SPM_CFLAGS)
else
libspm_a_SOURCES = %D%/spm_none.c
endif
