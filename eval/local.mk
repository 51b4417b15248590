# SPDX-License-Identifier: MIT
engine_sources += %D%/cli.h %D%/cli.c %D%/options.c %D%/options.h %D%/output.c %D%/generate.h %D%/generate.c %D%/chat.c %D%/inspect.c \
  %D%/stats.h %D%/stats.c %D%/passkey_prompt.h %D%/passkey_prompt.c %D%/passkey_run.h %D%/passkey_run.c %D%/passkey.c \
  %D%/bench_run.h %D%/bench_run.c %D%/bench.c \
  %D%/recall_score.h %D%/recall_score.c %D%/recall_run.h %D%/recall_follow.h %D%/recall_follow.c %D%/recall_text.c \
  %D%/recall_tensors.c %D%/recall.c
