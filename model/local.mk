# SPDX-License-Identifier: MIT
engine_sources += %D%/model.h %D%/safetensors.h %D%/safetensors.c %D%/config.c %D%/config_rope.c %D%/keys.h %D%/keys.c \
  %D%/rope.c %D%/block.h %D%/block_attention.c %D%/block_swiglu.c %D%/walk.c %D%/recurrent.h %D%/recurrent.c %D%/weights.h %D%/weights.c %D%/weights_cache.h %D%/weights_cache.c %D%/convert.c %D%/shapes.c %D%/info.c %D%/finite.c \
  %D%/session.h %D%/session.c %D%/session_file.h %D%/session_file_impl.h %D%/session_file.c %D%/session_state.c \
  %D%/session_copy.h %D%/decoder.h %D%/decoder.c %D%/sampler.h %D%/sampler.c \
  %D%/ngram.h %D%/ngram.c
demodir = $(pkgdatadir)/demo
dist_demo_DATA = %D%/demo/config.json %D%/demo/generation_config.json %D%/demo/model.safetensors \
  %D%/demo/tokenizer.model %D%/demo/tokenizer_config.json %D%/demo/README.md
EXTRA_DIST += %D%/demo/loss.png %D%/demo/loss.csv %D%/demo/train.json
