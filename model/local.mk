# SPDX-License-Identifier: MIT
engine_sources += %D%/model.h %D%/safetensors.h %D%/safetensors.c %D%/config.c %D%/config_rope.c %D%/keys.h %D%/keys.c \
  %D%/rope.c %D%/weights.h %D%/weights.c %D%/shapes.c %D%/info.c \
  %D%/session.h %D%/session.c %D%/decoder.h %D%/decoder.c %D%/sampler.h %D%/sampler.c
