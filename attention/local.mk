# SPDX-License-Identifier: MIT
engine_sources += %D%/strategy.h %D%/method.h %D%/strategies.c %D%/attention.c %D%/store.h %D%/store.c \
  %D%/full.c %D%/streaming.c
