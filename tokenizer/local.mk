# SPDX-License-Identifier: MIT
engine_sources += %D%/tokenizer.c %D%/tokenizer.h %D%/impl.h %D%/encode.c %D%/decode.c %D%/chat.c \
  %D%/settings.c %D%/added.c %D%/added.h %D%/chars.c %D%/chars.h %D%/normalize.c %D%/normalize.h \
  %D%/pretokenize.c %D%/pretokenize.h %D%/bpe.c %D%/bpe.h %D%/bpe_json.c %D%/json_parts.c \
  %D%/token_list.c %D%/tiktoken.c %D%/spm_model.c %D%/spm.h %D%/stop_text.c %D%/stop_text.h
noinst_LIBRARIES += libspm.a
if HAVE_SPM
libspm_a_SOURCES = %D%/spm.cc
libspm_a_CPPFLAGS = $(AM_CPPFLAGS) $(SPM_CFLAGS)
else
libspm_a_SOURCES = %D%/spm_none.c
endif
