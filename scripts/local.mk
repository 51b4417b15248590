# SPDX-License-Identifier: MIT
EXTRA_DIST += %D%/train_demo.py %D%/demo_tasks.py %D%/demo_net.py %D%/make_golden.py %D%/make_rope_table.py %D%/make_tokens.py %D%/install_deps %D%/build %D%/demo %D%/check
