# SPDX-License-Identifier: MIT
demodir = $(pkgdatadir)/demo
dist_demo_DATA = %D%/demo/config.json %D%/demo/generation_config.json %D%/demo/model.safetensors \
  %D%/demo/chat_template.jinja %D%/demo/tokenizer.model %D%/demo/tokenizer_config.json %D%/demo/README.md
EXTRA_DIST += %D%/demo/loss.png %D%/demo/loss.csv %D%/demo/train.json
