# SPDX-License-Identifier: MIT
engine_sources += %D%/strategy.h %D%/state.h %D%/method.h %D%/strategies.c %D%/attention.c %D%/store.h %D%/store.c \
  %D%/store_impl.h %D%/store_codes.c %D%/store_rules.c %D%/store_near.c %D%/tier.h %D%/tier.c %D%/format.h %D%/format.c \
  %D%/full.h %D%/full.c %D%/streaming.c %D%/kivi.c %D%/logquant.c \
  %D%/evict.h %D%/evict.c %D%/h2o.c %D%/snapkv.c %D%/tova.c \
  %D%/budget.h %D%/bounds.c %D%/bounds.h %D%/coarse.c %D%/coarse.h %D%/budget.c %D%/blocks.h %D%/blocks.c %D%/actqkv.c \
  %D%/retrieve.h %D%/retrieve.c %D%/quest.c %D%/fier.c \
  %D%/paris_index.h %D%/paris_index.c %D%/pariskv.c
